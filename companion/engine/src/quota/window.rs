//! What one flow has used in one window of its quota.
//!
//! The window is counted in numbered steps: a sliding window keeps the present step and some before it, a calendar window keeps one.
//! A step leaves the window as a whole. The window is never filled above its limit: what a request takes beyond is a debt, and the room
//! that leaving steps free goes to the debt first. So the limit holds over time, but for one request and what runs.
//!
//! Every call takes time that is bounded by the number of steps in a window, whatever the idle time before and the size of a debt.

mod audit;
mod debt;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;

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
    /// What is left of top-ups, and what was used of them. Both end in `extra_until`.
    extra: u64,
    extra_used: u64,
    extra_until: StepNumber,
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
            extra: 0,
            extra_used: 0,
            extra_until: now,
        }
    }

    /// What may be used now: above 0 while a request may go.
    pub(crate) fn room(&self) -> u64 {
        if self.debt > 0 {
            return 0;
        }
        let counted = self.filled.saturating_add(self.elsewhere);
        self.limit.saturating_add(self.extra).saturating_sub(counted)
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

    /// What counts in the window without the reserved part: above the limit by the debt.
    pub(crate) fn used(&self) -> u64 {
        let here: u64 = self.steps.iter().map(|step| step.reserved).sum();
        let counted = self.filled.saturating_add(self.extra_used);
        counted.saturating_add(self.debt).saturating_sub(here)
    }

    /// A new window would equal this one.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.debt == 0 && self.elsewhere == 0 && self.extra == 0
    }

    /// The present step becomes `now`. An earlier one than before changes nothing.
    pub(crate) fn advance(&mut self, now: StepNumber) {
        if now <= self.now {
            return;
        }
        self.now = now;
        if now >= self.extra_until {
            (self.extra, self.extra_used) = (0, 0);
        }
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

    /// A request is dispatched in `step`, at this estimate.
    pub(crate) fn reserve(&mut self, step: StepNumber, estimate: u64) {
        if self.has_left(step) {
            return;
        }
        self.use_in(step, estimate);
        self.step_mut(step).reserved += estimate;
    }

    /// A request that was dispatched in `step`, at this estimate, has really used `real`; 0: nothing was served.
    pub(crate) fn settle(&mut self, step: StepNumber, estimate: u64, real: u64) {
        if let Ok(position) = self.steps.binary_search_by_key(&step, |step| step.number) {
            let reserved = &mut self.steps[position].reserved;
            *reserved = reserved.saturating_sub(estimate);
        }
        if real > estimate {
            // What is used after its step has left the window must count all the same: a request may run for long.
            let step = if self.has_left(step) { self.now } else { step };
            self.use_in(step, real - estimate);
        } else {
            self.take_back(step, estimate - real);
        }
        self.steps.retain(|step| {
            *step
                != Step {
                    number: step.number,
                    ..Step::default()
                }
        });
    }

    /// `amount` was used in `step`, here before or by another gateway. Ignored once the step has left the window.
    pub(crate) fn add_used(&mut self, step: StepNumber, amount: u64) {
        if !self.has_left(step) && amount > 0 {
            self.use_in(step.min(self.now), amount);
        }
    }

    /// `amount` was used so long ago that its steps have left, and isn't paid back yet.
    pub(crate) fn add_debt(&mut self, amount: u64) {
        let rest = self.use_extra(amount);
        self.debt = self.debt.saturating_add(rest);
        self.pay(self.now);
    }

    /// What other gateways run now.
    pub(crate) const fn set_elsewhere(&mut self, running: u64) {
        self.elsewhere = running;
    }

    /// `amount` more may be used: a debt is paid by it first, and the rest may be used until as much time has passed as the window
    /// keeps, or until the end of the calendar's period.
    pub(crate) fn top_up(&mut self, amount: u64) {
        let paid = self.debt.min(amount);
        self.debt -= paid;
        self.extra = self.extra.saturating_add(amount - paid);
        self.extra_until = self.now.saturating_add(self.kept);
    }

    /// Nothing counts any more, but what other gateways run.
    pub(crate) fn reset(&mut self) {
        *self = Self {
            elsewhere: self.elsewhere,
            ..Self::new(self.limit, self.kept, self.now)
        };
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
                    let step = Step {
                        number,
                        ..Step::default()
                    };
                    self.steps.insert(position, step);
                    position
                }
            },
        };
        &mut self.steps[position]
    }
}
