//! The flows that have used something of their budgets.
//!
//! A flow that has used nothing has no entry. Entries are in the order of their last charges, so that the first ones are those that are
//! most likely empty: every new one removes a few of them.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use hashbrown::HashMap;
use hashlink::LinkedHashMap;
use smallvec::SmallVec;

use super::Now;
use super::flow::{Amount, FlowBudget, Reservation};
use super::resets::Resets;
use super::window::Counted;
use crate::ids::JobId;
use crate::limits::BUDGET_FLOWS_MAX;
use crate::policy::{Budget, Flows, Over};
use crate::time::Instant;

/// Empty entries that a new one removes, at most.
const REMOVED_AT_ONCE: usize = 2;
/// Entries that are looked at for one that can be evicted. If all of them stay, the table exceeds its limit by one.
const EVICTION_TRIES: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct Table {
    budgets: Vec<Budget>,
    /// The flows that the policy names. They are never evicted.
    named: BTreeSet<Box<str>>,
    /// Least recently charged first.
    pub(super) flows: LinkedHashMap<Box<str>, FlowBudget>,
    /// What each running request has reserved, until it is settled.
    reservations: HashMap<JobId, Reservation>,
    /// When flows that are held may go again.
    wakes: BTreeSet<(Instant, Box<str>)>,
    resets: Resets,
    generations: u32,
}

impl Table {
    pub(crate) fn budget(&self, index: usize) -> &Budget {
        &self.budgets[index]
    }

    /// Whether the flow may send a request now.
    pub(crate) fn has_room(&mut self, name: &str, now: &Now<'_>) -> bool {
        self.get(name, now).is_none_or(|flow| flow.has_room())
    }

    /// Whether the flow may send a request now. Nothing changes.
    pub(crate) fn would_have_room(&self, name: &str, now: &Now<'_>) -> bool {
        self.flows.get(name).is_none_or(|flow| {
            let mut flow = flow.clone();
            flow.advance(self.budget(flow.budget), &now.under(flow.budget).moment);
            flow.has_room()
        })
    }

    /// When the flow may send a request; `None`: unknown.
    pub(crate) fn has_room_at(&mut self, name: &str, now: &Now<'_>) -> Option<Instant> {
        let flow = self.get(name, now)?;
        let index = flow.budget;
        self.flows.get(name)?.has_room_at(&self.budgets[index], &now.under(index))
    }

    /// The flow's usage at this moment.
    pub(super) fn get(&mut self, name: &str, now: &Now<'_>) -> Option<&mut FlowBudget> {
        let flow = self.flows.get_mut(name)?;
        flow.advance(&self.budgets[flow.budget], &now.under(flow.budget).moment);
        Some(flow)
    }

    /// The usage at this moment of a flow under the budget `index`, which gets an entry.
    fn entry(&mut self, name: &str, index: usize, now: &Now<'_>) -> &mut FlowBudget {
        if self.flows.to_back(name).is_none() {
            let generation = self.next_generation();
            let flow = FlowBudget::new(index, &self.budgets[index], generation, &now.under(index).moment);
            self.remove_some(now);
            self.flows.insert(name.into(), flow);
        }
        let flow = self.flows.get_mut(name).expect("invariant: it has an entry by now");
        flow.advance(&self.budgets[flow.budget], &now.under(flow.budget).moment);
        flow
    }

    const fn next_generation(&mut self) -> u32 {
        self.generations = self.generations.wrapping_add(1);
        self.generations
    }

    /// Removes the first entries if they are empty, and further ones for which there is no place.
    fn remove_some(&mut self, now: &Now<'_>) {
        for _ in 0..REMOVED_AT_ONCE {
            let Some((_, flow)) = self.flows.iter_mut().next() else {
                return;
            };
            flow.advance(&self.budgets[flow.budget], &now.under(flow.budget).moment);
            if !flow.is_idle() {
                break;
            }
            self.flows.pop_front();
        }
        for _ in 0..EVICTION_TRIES {
            let Some((name, flow)) = self.flows.front().filter(|_| self.flows.len() >= BUDGET_FLOWS_MAX)
            else {
                return;
            };
            if flow.is_in_use() || self.named.contains(name) {
                let name = name.clone();
                self.flows.to_back(&name);
            } else {
                self.flows.pop_front();
            }
        }
    }

    /// `job` of this flow, which is under the budget `index`, is dispatched at an estimate of `tokens`.
    pub(crate) fn reserve(&mut self, job: JobId, name: &str, index: usize, tokens: u64, now: &Now<'_>) {
        self.entry(name, index, now);
        if let Some(flow) = self.flows.get_mut(name) {
            let moment = now.under(flow.budget).moment;
            let reservation = flow.reserve(&self.budgets[flow.budget], moment, tokens);
            self.reservations.insert(job, reservation);
        }
    }

    /// `job` of this flow has really used `tokens`; `None`: nothing was served. Returns whether that counts, and since when: once for
    /// each request, and not if a reset was in between.
    pub(crate) fn settle(
        &mut self,
        job: JobId,
        name: &str,
        tokens: Option<u64>,
        now: &Now<'_>,
    ) -> Option<Settled> {
        let reservation = self.reservations.remove(&job)?;
        let real = tokens.map_or_else(Amount::default, Amount::request);
        let flow = self.get(name, now)?;
        if flow.generation != reservation.generation {
            return None;
        }
        let index = flow.budget;
        let flow = self.flows.get_mut(name)?;
        let counted = flow.settle(&self.budgets[index], &reservation, real);
        Some(Settled { reservation, real, counted })
    }

    /// The request has no reservation any more, because its flow has no budget.
    pub(crate) fn forget_reservation(&mut self, job: JobId) {
        self.reservations.remove(&job);
    }

    /// After a change of policy: `job` runs, and isn't settled.
    pub(crate) fn reserve_again(&mut self, job: JobId, name: &str, index: usize, tokens: u64, now: &Now<'_>) {
        let Some(reservation) = self.reservations.get_mut(&job) else {
            return self.reserve(job, name, index, tokens, now);
        };
        if let Some(flow) = self.flows.get_mut(name)
            && flow.generation == reservation.generation
        {
            flow.reserve_in_added(&self.budgets[flow.budget], reservation);
        }
    }

    /// Everything that runs is reserved.
    pub(crate) fn end_change(&mut self) {
        for (_, flow) in &mut self.flows {
            flow.end_change();
        }
    }

    /// See [`crate::Input::TopUp`]. `index` is the flow's budget.
    pub(crate) fn top_up(&mut self, name: &str, index: usize, tokens: u64, now: &Now<'_>) {
        self.entry(name, index, now);
        if let Some(flow) = self.flows.get_mut(name) {
            flow.top_up(&self.budgets[flow.budget], &now.under(flow.budget).moment, tokens);
        }
    }

    /// See [`crate::Input::ResetBudget`]. Returns the reset's number. `is_told`: other engines hear of it.
    pub(crate) fn reset(&mut self, name: &str, is_told: bool, now: &Now<'_>) -> u64 {
        self.forget(name, now);
        self.resets.begin(name, is_told, now.instant)
    }

    /// See [`crate::input::BudgetReset::Here`].
    pub(crate) fn end_reset(&mut self, name: &str, number: u64) {
        self.resets.end(name, number);
    }

    /// Usage that other engines report may be from before the flow's last reset here.
    pub(crate) fn awaits_reset(&self, name: &str, now: &Now<'_>) -> bool {
        self.resets.is_pending(name, now.instant)
    }

    /// Nothing of the flow counts any more.
    pub(crate) fn forget(&mut self, name: &str, now: &Now<'_>) {
        let generation = self.next_generation();
        if let Some(flow) = self.get(name, now) {
            flow.reset(generation);
        }
    }

    /// The flow under the budget `index` for usage that other engines report.
    pub(super) fn entry_with_budget(
        &mut self,
        name: &str,
        index: usize,
        now: &Now<'_>,
    ) -> Option<(&mut FlowBudget, &Budget)> {
        self.entry(name, index, now);
        let flow = self.flows.get_mut(name)?;
        let budget = &self.budgets[flow.budget];
        Some((flow, budget))
    }

    /// Whether the flow is held: its budget says so, and has no room. Sets when it may go again.
    pub(crate) fn update_hold(&mut self, name: &str, now: &Now<'_>) -> bool {
        let Some(flow) = self.get(name, now) else {
            return false;
        };
        let index = flow.budget;
        let budget = &self.budgets[index];
        let Some(flow) = self.flows.get_mut(name) else {
            return false;
        };
        let held = budget.over == Over::Hold && !budget.shadow && !flow.has_room();
        let wake = if held { flow.has_room_at(budget, &now.under(index)) } else { None };
        flow.held = held;
        let before = core::mem::replace(&mut flow.wake, wake);
        if before != wake {
            if let Some(before) = before {
                self.wakes.remove(&(before, name.into()));
            }
            if let Some(wake) = wake {
                self.wakes.insert((wake, name.into()));
            }
        }
        held
    }

    /// When a flow that is held may go; `None`: it isn't held, or that is unknown.
    pub(crate) fn wake_of(&self, name: &str) -> Option<Instant> {
        self.flows.get(name)?.wake
    }

    pub(crate) fn next_wake(&self) -> Option<Instant> {
        self.wakes.first().map(|(wake, _)| *wake)
    }

    pub(super) fn reservation(&self, job: JobId) -> Option<&Reservation> {
        self.reservations.get(&job)
    }

    pub(super) fn reservations_count(&self) -> usize {
        self.reservations.len()
    }

    /// All flows.
    pub(crate) fn names(&self) -> Vec<Box<str>> {
        self.flows.keys().cloned().collect()
    }

    /// The flows that wait for a time.
    pub(crate) fn waking(&self) -> Vec<Box<str>> {
        self.wakes.iter().map(|(_, name)| name.clone()).collect()
    }

    /// The next flow whose wake is due. It has none after that.
    pub(crate) fn woken(&mut self, now: Instant) -> Option<Box<str>> {
        self.wakes.first().filter(|(wake, _)| *wake <= now)?;
        let (_, name) = self.wakes.pop_first()?;
        if let Some(flow) = self.flows.get_mut(&name) {
            (flow.held, flow.wake) = (false, None);
        }
        Some(name)
    }

    /// `before`: the present moment by the calendars of the `old` budgets.
    pub(super) fn reconfigure(&mut self, old: &[Budget], flows: &Flows, before: &Now<'_>, now: &Now<'_>) {
        let new = &flows.budgets;
        self.budgets.clone_from(new);
        self.named = flows.all_names().map(Into::into).collect();
        for (name, mut flow) in core::mem::take(&mut self.flows) {
            let index = new.iter().position(|budget| budget.flows.matches(&name));
            if let Some(index) = index {
                let (budget, before) = (&old[flow.budget], before.under(flow.budget).moment);
                flow.advance(budget, &before);
                flow.change((budget, &before), (index, &new[index]), &now.under(index).moment);
                (flow.held, flow.wake) = (false, None);
                self.flows.insert(name, flow);
            }
        }
        self.wakes.clear();
    }
}

/// A settled request.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(super) reservation: Reservation,
    pub(super) real: Amount,
    /// By window of the flow's budget.
    pub(super) counted: SmallVec<[Counted; 1]>,
}
