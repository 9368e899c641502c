//! What one flow has used in one window of its budget.
//!
//! The window is counted in numbered steps: a sliding window keeps the present step and some before it, a calendar window keeps one.
//! A step leaves the window as a whole, once all of it is older than the window. The window is never filled above its limit: what a request takes beyond is a debt, and the room
//! that leaving steps free goes to the debt first. So the limit holds over time, but for one request and what runs.
//!
//! Every call takes time that is bounded by the number of steps in a window, whatever the idle time before and the size of a debt.

mod audit;
mod debt;
#[cfg(test)]
mod tests;
mod top_ups;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use self::top_ups::TopUps;

/// A number of a step. A later step has a higher one.
pub(crate) type StepNumber = i64;

/// What counts in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Step {
    number: StepNumber,
    /// Used by requests that were dispatched in this step.
    own: u64,
    /// Debt of earlier steps that was paid in this one.
    paid: u64,
    /// The estimates of the requests of this step that run.
    reserved: u64,
}

impl Step {
    const fn counted(&self) -> u64 {
        self.own + self.paid
    }
}

/// In which steps a settled request counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// With all that it has used, in the step of its dispatch.
    AtDispatch,
    /// The step of the dispatch has left the window. What is still filled or owed because of the request, by step, oldest first.
    Later(Vec<(StepNumber, u64)>),
}

/// A window of one flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    limit: u64,
    /// Steps in the window; at least 1.
    kept: i64,
    /// The present step.
    now: StepNumber,
    /// Oldest first, none without content.
    steps: VecDeque<Step>,
    /// The sum over the steps.
    filled: u64,
    /// What was used beyond the limit and isn't paid back. While there is any, the window is full.
    debt: u64,
    /// What other gateways run.
    elsewhere: u64,
    top_ups: TopUps,
}

impl Window {
    pub(crate) const fn new(limit: u64, kept: i64, now: StepNumber) -> Self {
        Self {
            limit,
            kept,
            now,
            steps: VecDeque::new(),
            filled: 0,
            debt: 0,
            elsewhere: 0,
            top_ups: TopUps::none(now),
        }
    }

    /// What may be used now: above 0 while a request may go.
    pub(crate) fn room(&self) -> u64 {
        if self.debt > 0 {
            return 0;
        }
        let counted = self.filled.saturating_add(self.elsewhere);
        let most = self.limit.saturating_add(self.top_ups.left());
        most.saturating_sub(counted)
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn debt(&self) -> u64 {
        self.debt
    }

    /// The estimates of running requests that count in the window, other gateways' too.
    pub(crate) fn reserved(&self) -> u64 {
        let reserved: u64 = self.steps.iter().map(|step| step.reserved).sum();
        reserved.saturating_add(self.elsewhere)
    }

    /// What counts in the window without the reserved part: above the limit by the debt, and by what was used of top-ups.
    pub(crate) fn used(&self) -> u64 {
        let here: u64 = self.steps.iter().map(|step| step.reserved).sum();
        let counted = self.filled.saturating_add(self.top_ups.used());
        counted.saturating_add(self.debt).saturating_sub(here)
    }

    /// A new window would equal this one.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.debt == 0 && self.elsewhere == 0 && self.top_ups.is_empty()
    }

    /// The present step becomes `now`. An earlier one than before changes nothing.
    pub(crate) fn advance(&mut self, now: StepNumber) {
        if now <= self.now {
            return;
        }
        self.now = now;
        self.top_ups.advance(now);
        while let Some(oldest) = self.steps.front() {
            let leaves = oldest.number.saturating_add(self.kept);
            if leaves > now {
                break;
            }
            let turns = self.turns_of_debt(now - leaves);
            if turns > 0 {
                self.skip(turns);
                continue;
            }
            self.filled -= oldest.counted();
            self.steps.pop_front();
            self.pay(leaves);
        }
    }

    /// Steps are numbered otherwise from now on: each gets a number that is so much higher.
    pub(crate) fn shift(&mut self, steps: i64) {
        self.now = self.now.saturating_add(steps);
        for step in &mut self.steps {
            step.number = step.number.saturating_add(steps);
        }
        self.top_ups.shift(steps);
    }

    /// A request is dispatched in `step`, at this estimate. Returns how much of it is taken from top-ups.
    pub(crate) fn reserve(&mut self, step: StepNumber, estimate: u64) -> u64 {
        if self.has_left(step) {
            return 0;
        }
        let of_top_ups = self.use_in(step, estimate);
        self.step_mut(step).reserved += estimate;
        of_top_ups
    }

    /// A request that was dispatched in `step`, at this estimate, has really used `real`; 0: nothing was served. `of_top_ups`: the
    /// part of the estimate that was taken from top-ups. `running`: the estimates of the flow's other requests that run.
    pub(crate) fn settle(
        &mut self,
        step: StepNumber,
        estimate: u64,
        of_top_ups: u64,
        real: u64,
        running: u64,
    ) -> Counted {
        let has_left = self.has_left(step);
        if let Ok(position) = self.steps.binary_search_by_key(&step, |step| step.number) {
            let reserved = &mut self.steps[position].reserved;
            *reserved = reserved.saturating_sub(estimate);
        }
        let refund = estimate.saturating_sub(real);
        // The window's own part was taken last, so it goes back first.
        let own = refund.min(estimate.saturating_sub(of_top_ups));
        if refund > 0 {
            self.take_back(step, own);
            self.return_to_top_ups(step, refund - own);
        }
        let excess = real.saturating_sub(estimate);
        let counted = if has_left {
            let kept = estimate.saturating_sub(of_top_ups) - own;
            Counted::Later(self.still_counted(running, kept, excess))
        } else {
            Counted::AtDispatch
        };
        if excess > 0 {
            // What is used after its step has left the window must count all the same: a request may run for long.
            let step = if has_left { self.now } else { step };
            self.use_in(step, excess);
        }
        self.remove_empty_steps();
        counted
    }

    fn remove_empty_steps(&mut self) {
        self.steps.retain(|step| *step != Step { number: step.number, ..Step::default() });
    }

    /// `amount` was used in `step`, here before or by another gateway. Ignored once the step has left the window.
    pub(crate) fn add_used(&mut self, step: StepNumber, amount: u64) {
        if !self.has_left(step) && amount > 0 {
            self.use_in(step.min(self.now), amount);
        }
    }

    /// `amount` was used so long ago that its steps have left, and isn't paid back yet.
    pub(crate) fn add_debt(&mut self, amount: u64) {
        self.debt = self.debt.saturating_add(amount);
        self.pay_by_top_ups();
        self.pay(self.now);
    }

    /// Adds what counts in `later`, which has the same limit and the same present step, as if it were used after all that counts here.
    pub(crate) fn add_later(&mut self, later: &Self) {
        self.elsewhere = later.elsewhere;
        for step in &later.steps {
            self.use_in(step.number, step.counted());
            self.step_mut(step.number).reserved += step.reserved;
        }
        self.top_ups.add_later(&later.top_ups);
        self.add_debt(later.debt);
        self.remove_empty_steps();
    }

    /// What other gateways run now.
    pub(crate) const fn set_elsewhere(&mut self, running: u64) {
        self.elsewhere = running;
    }

    /// From `step` on, `amount` more may be used: a debt is paid by it first, and the rest may be used until as much time has passed
    /// since `step` as the window keeps, or until the end of the calendar's period. Ignored once `step` has left the window.
    pub(crate) fn top_up(&mut self, step: StepNumber, amount: u64) {
        if self.has_left(step) {
            return;
        }
        let until = step.min(self.now).saturating_add(self.kept);
        self.top_ups.add(amount, self.now, until);
        self.pay_by_top_ups();
    }

    /// Nothing counts any more, but what other gateways run.
    pub(crate) fn reset(&mut self) {
        *self = Self { elsewhere: self.elsewhere, ..Self::new(self.limit, self.kept, self.now) };
    }

    /// Applies another limit. What was used stays.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
        self.pay(self.now);
    }

    /// `step` no longer counts.
    const fn has_left(&self, step: StepNumber) -> bool {
        step.saturating_add(self.kept) <= self.now
    }

    /// The entry of `step`, which is in the window. An entry that stays empty is removed by the caller.
    fn step_mut(&mut self, number: StepNumber) -> &mut Step {
        let position = match self.steps.back() {
            Some(newest) if newest.number == number => self.steps.len() - 1,
            _ => match self.steps.binary_search_by_key(&number, |step| step.number) {
                Ok(position) => position,
                Err(position) => {
                    let step = Step { number, ..Step::default() };
                    self.steps.insert(position, step);
                    position
                }
            },
        };
        &mut self.steps[position]
    }
}
