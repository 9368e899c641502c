//! The windows of one flow.

use alloc::boxed::Box;
use alloc::vec::Vec;

use smallvec::SmallVec;

use super::LocalNow;
use super::moment::{Moment, Shift};
use super::window::{Counted, Window};
use crate::policy::{Budget, BudgetPeriod, BudgetWindow, CostUnit};
use crate::time::Instant;

/// What a running request has reserved: the moment of its dispatch, and the estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reservation {
    pub(super) moment: Moment,
    pub(super) tokens: u64,
    /// What of that was taken from top-ups, by the periods of the windows, where anything was.
    of_top_ups: Vec<(BudgetPeriod, u64)>,
    /// The flow's at that time. A reset since then has forgotten the reservation.
    pub(super) generation: u32,
}

impl Reservation {
    fn of_top_ups(&self, window: &BudgetWindow) -> u64 {
        let mut taken = self.of_top_ups.iter();
        let taken = taken.find(|(period, _)| *period == window.period);
        taken.filter(|_| window.unit == CostUnit::Tokens).map_or(0, |(_, taken)| *taken)
    }
}

/// Usage in both units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) tokens: u64,
    pub(super) requests: u64,
}

impl Amount {
    /// One request of so many tokens.
    pub(super) const fn request(tokens: u64) -> Self {
        Self { tokens, requests: 1 }
    }

    pub(super) const fn of(self, unit: CostUnit) -> u64 {
        match unit {
            CostUnit::Tokens => self.tokens,
            CostUnit::Requests => self.requests,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct FlowBudget {
    /// The budget, as an index into the policy's list.
    pub(super) budget: usize,
    /// The windows, as the budget lists them.
    pub(super) windows: SmallVec<[Window; 1]>,
    /// The windows that the last change of policy has added, as bits, until all that runs is reserved in them.
    added: u8,
    /// The last change of policy has changed the calendar, until all that runs has the steps of the new one.
    shift: Option<Box<Shift>>,
    /// A number that no other state of any flow has had.
    pub(super) generation: u32,
    /// The reservations of what runs here.
    pub(super) running: Amount,
    /// The flow is held.
    pub(super) held: bool,
    /// When a held flow may go again, unless that is unknown.
    pub(super) wake: Option<Instant>,
}

fn new_window(window: &BudgetWindow, moment: &Moment) -> Window {
    Window::new(window.limit, super::moment::kept(window.period), moment.step(window.period))
}

impl FlowBudget {
    pub(super) fn new(index: usize, budget: &Budget, generation: u32, moment: &Moment) -> Self {
        Self {
            budget: index,
            windows: budget.windows.iter().map(|window| new_window(window, moment)).collect(),
            added: 0,
            shift: None,
            generation,
            running: Amount::default(),
            held: false,
            wake: None,
        }
    }

    pub(super) fn advance(&mut self, budget: &Budget, moment: &Moment) {
        for (window, definition) in self.windows.iter_mut().zip(&budget.windows) {
            window.advance(moment.step(definition.period));
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.windows.iter().all(|window| window.room() > 0)
    }

    /// Something refers to it.
    pub(super) const fn is_in_use(&self) -> bool {
        self.running.requests > 0 || self.held
    }

    /// Nothing would change without it.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_in_use() && self.windows.iter().all(Window::is_empty)
    }

    /// The first moment with room in all windows, if nothing more is used; `None`: unknown, because what other gateways run fills a
    /// window.
    pub(super) fn has_room_at(&self, budget: &Budget, now: &LocalNow<'_>) -> Option<Instant> {
        let mut latest = now.moment.at;
        for (window, definition) in self.windows.iter().zip(&budget.windows) {
            if window.room() == 0 {
                latest = latest.max(now.begins(definition.period, window.has_room_in()?));
            }
        }
        Some(latest)
    }

    pub(super) fn reserve(&mut self, budget: &Budget, moment: Moment, tokens: u64) -> Reservation {
        let amount = Amount::request(tokens);
        let mut of_top_ups = Vec::new();
        for (window, definition) in self.windows.iter_mut().zip(&budget.windows) {
            let taken = window.reserve(moment.step(definition.period), amount.of(definition.unit));
            if taken > 0 {
                of_top_ups.push((definition.period, taken));
            }
        }
        self.running.tokens += tokens;
        self.running.requests += 1;
        Reservation { moment, tokens, of_top_ups, generation: self.generation }
    }

    /// A request has really used `real`. Returns how each window counts it.
    pub(super) fn settle(
        &mut self,
        budget: &Budget,
        reservation: &Reservation,
        real: Amount,
    ) -> SmallVec<[Counted; 1]> {
        self.running.tokens -= reservation.tokens;
        self.running.requests -= 1;
        let (estimate, running) = (Amount::request(reservation.tokens), self.running);
        let windows = self.windows.iter_mut().zip(&budget.windows);
        let settled = windows.map(|(window, definition)| {
            let (unit, step) = (definition.unit, reservation.moment.step(definition.period));
            let of_top_ups = reservation.of_top_ups(definition);
            window.settle(step, estimate.of(unit), of_top_ups, real.of(unit), running.of(unit))
        });
        settled.collect()
    }

    /// `tokens` more may be used of each window that counts tokens.
    pub(super) fn top_up(&mut self, budget: &Budget, moment: &Moment, tokens: u64) {
        for (window, definition) in self.windows.iter_mut().zip(&budget.windows) {
            if definition.unit == CostUnit::Tokens {
                window.top_up(moment.step(definition.period), tokens);
            }
        }
    }

    /// Nothing that was used or runs here counts any more.
    pub(super) fn reset(&mut self, generation: u32) {
        self.windows.iter_mut().for_each(Window::reset);
        self.running = Amount::default();
        self.generation = generation;
    }

    /// The flow's budget was `old` and is `new`. Windows of the same glob, unit and period stay. If the calendar changes, what was used in
    /// the present day, week and month counts in those that the new one has now.
    pub(super) fn change(
        &mut self,
        old: (&Budget, &Moment),
        (index, new): (usize, &Budget),
        moment: &Moment,
    ) {
        let (old, before) = old;
        let same = old.flows == new.flows;
        let shift = (old.calendar != new.calendar).then(|| Shift::between(before, moment));
        let mut added = 0;
        let windows = new.windows.iter().enumerate().map(|(position, definition)| {
            let key = |window: &BudgetWindow| (window.unit, window.period);
            let kept = old.windows.iter().position(|window| key(window) == key(definition));
            let Some(kept) = kept.filter(|_| same) else {
                added |= 1 << position;
                return new_window(definition, moment);
            };
            let mut window = self.windows[kept].clone();
            window.set_limit(definition.limit);
            if let Some(shift) = &shift {
                window.shift(shift.of(definition.period));
            }
            window
        });
        self.windows = windows.collect();
        self.added = added;
        self.shift = shift.map(Box::new);
        self.budget = index;
    }

    /// What `reservation` stands for runs: moves it to the flow's calendar, and reserves it in the windows that the change of policy has added.
    pub(super) fn reserve_in_added(&mut self, budget: &Budget, reservation: &mut Reservation) {
        if let Some(shift) = &self.shift {
            reservation.moment = reservation.moment.shifted(shift);
        }
        let amount = Amount::request(reservation.tokens);
        for (position, definition) in budget.windows.iter().enumerate() {
            if self.added & 1 << position != 0 {
                let step = reservation.moment.step(definition.period);
                self.windows[position].reserve(step, amount.of(definition.unit));
                // The window that it was taken from is gone, and a new one has no top-up.
                reservation.of_top_ups.retain(|(period, _)| *period != definition.period);
            }
        }
    }

    pub(super) fn end_change(&mut self) {
        self.added = 0;
        self.shift = None;
    }
}
