//! Budgets of flows: what happens to a request of a flow without room, and what its dispatch charges.
//!
//! A request is judged at its arrival and at its turn. A flow that is held is blocked like one at its limit of running requests, and its
//! entry among the wakes, or whatever gives it room, unblocks it: nothing is judged again while it waits.

mod changes;

use alloc::vec::Vec;
use core::time::Duration;

use super::Engine;
use crate::band::TreeBand;
use crate::budget::Table;
use crate::effect::{BudgetReport, Effect};
use crate::ids::{FlowId, IdentityId, JobId};
use crate::input::{RequestId, Service};
use crate::outcome::Outcome;
use crate::policy::{CostUnit, Over};
use crate::snapshot::{BudgetWindowSnapshot, FlowBudgetSnapshot};
use crate::time::Instant;
use crate::tree::ANONYMOUS;

impl Engine {
    /// Whether budgets give all [`BudgetReport`]s but [`BudgetReport::Shadowed`].
    pub const fn report_budgets(&mut self, reported: bool) {
        self.reports_budgets = reported;
    }

    /// Whether other engines hear of this one's resets, and [`crate::Input::BudgetResets`] has them as [`crate::input::BudgetReset::Here`].
    pub const fn share_budgets(&mut self, shared: bool) {
        self.shares_budgets = shared;
    }

    /// What flows have used of their budgets, by name: those that have used something. In time proportional to their number.
    #[must_use]
    pub fn budgets(&self) -> Vec<FlowBudgetSnapshot> {
        let table = self.budgets.read();
        table.map_or_else(Vec::new, |(table, now)| table.snapshots(&now))
    }

    /// [`Self::budgets`] at `now`, which isn't before the last input: steps and days may have passed since then.
    #[must_use]
    pub fn budgets_at(&self, now: Instant) -> Vec<FlowBudgetSnapshot> {
        let all = self.budgets.read_at(now, Table::snapshots);
        all.unwrap_or_default()
    }

    /// One flow at `now`, even if it has used nothing; `None`: it has no budget. Empty: `anonymous`.
    #[must_use]
    pub fn budget_at(&self, now: Instant, flow: &str) -> Option<FlowBudgetSnapshot> {
        let name = named(flow);
        let index = self.policy.flows.budget_of(name)?;
        self.budgets.read_at(now, |table, now| table.snapshot(name, index, now))
    }

    /// The window of which the smallest part is left, in the budget to which a request of the flow would be charged now: if the table of
    /// identities is full, that may be a shared flow's. `None`: there is no budget that decides. Empty: `anonymous`.
    pub fn tightest_window(&mut self, flow: &str) -> Option<BudgetWindowSnapshot> {
        let name = self.tree.account(named(flow), &self.policy.flows);
        let index = self.budget_index(&name)?;
        let (table, now) = self.budgets.table()?;
        table.tightest_deciding(&name, index, &now)
    }

    /// [`Self::tightest_window`] of the flow to which a request is charged that waits or runs.
    pub fn tightest_window_of(&mut self, id: RequestId) -> Option<BudgetWindowSnapshot> {
        let (table, now) = self.budgets.table()?;
        let job = &self.jobs[self.jobs.find(id)?];
        let identity = self.tree.identity_of(job.queued.flow);
        table.tightest_deciding(&identity.name, identity.budget?, &now)
    }

    /// Whether the flow has a budget. Empty: `anonymous`.
    #[must_use]
    pub fn has_budget(&self, flow: &str) -> bool {
        self.budgets.is_on() && self.budget_index(named(flow)).is_some()
    }

    /// The budget of a flow, as an index into the policy's list. A flow that waits or runs knows it; other names are matched against the
    /// budgets one by one.
    fn budget_index(&self, name: &str) -> Option<usize> {
        match self.tree.identity_named(name) {
            Some(identity) => identity.budget,
            None => self.policy.flows.budget_of(name),
        }
    }

    /// What its flow's budget says to the request `id` now, because there is no room; `None`: it goes.
    fn over_budget(&mut self, id: JobId) -> Option<Over> {
        let (table, now) = self.budgets.table()?;
        let job = &mut self.jobs[id];
        let identity = self.tree.identity_of(job.queued.flow);
        let budget = table.budget(identity.budget?);
        let (over, shadow) = (budget.over, budget.shadow);
        if job.band == TreeBand::Demoted || table.has_room(&identity.name, &now) {
            return None;
        }
        if !shadow {
            return Some(over);
        }
        if !core::mem::replace(&mut job.is_shadowed, true) {
            let flow = (*identity.name).into();
            let shadowed = BudgetReport::Shadowed { flow, over };
            self.effects.push_back(Effect::Budget(shadowed));
        }
        None
    }

    /// Whether its flow's budget would hold, demote or refuse `id` if its turn came now. Nothing changes.
    pub(super) fn would_exceed_budget(&self, id: JobId) -> bool {
        let Some((table, now)) = self.budgets.read() else {
            return false;
        };
        let identity = self.tree.identity_of(self.jobs[id].queued.flow);
        identity.budget.is_some_and(|index| {
            !self.policy.flows.budgets[index].shadow && !table.would_have_room(&identity.name, &now)
        })
    }

    /// Whether the budget of `id`, a newcomer, lets it go on. It is demoted or rejected otherwise.
    #[inline]
    pub(super) fn admits_newcomer(&mut self, id: JobId) -> bool {
        if !self.budgets.is_on() {
            return true;
        }
        match self.over_budget(id) {
            None | Some(Over::Hold) => true,
            Some(Over::Demote) => {
                self.move_to_band(id, TreeBand::Demoted);
                true
            }
            Some(Over::Refuse) => {
                self.reject_newcomer(id, Outcome::RejectedBudget);
                false
            }
        }
    }

    /// Whether `id`, whose turn it is, goes. It waits elsewhere, or is rejected, otherwise.
    #[inline]
    pub(super) fn admits_next(&mut self, id: JobId) -> bool {
        !self.budgets.is_on() || self.judge_next(id)
    }

    #[inline(never)]
    fn judge_next(&mut self, id: JobId) -> bool {
        let arrival = self.jobs[id].queued.arrival.sequence;
        match self.over_budget(id) {
            None => return true,
            Some(Over::Demote) => {
                let queued = self.jobs[id].queued;
                self.tree.remove(id, &queued, &self.endpoints);
                self.evictions.remove_waiting(id, queued.arrival);
                self.move_to_band(id, TreeBand::Demoted);
                self.tree.enqueue(id, &self.jobs[id].queued, &self.endpoints);
            }
            Some(Over::Refuse) => self.reject_waiting(id, Outcome::RejectedBudget),
            Some(Over::Hold) => self.update_hold(self.jobs[id].queued.flow),
        }
        if self.blocked_head == Some(arrival) {
            self.blocked_head = None;
        }
        false
    }

    /// `id`, which isn't in the queue, belongs to `band` from now on.
    fn move_to_band(&mut self, id: JobId, band: TreeBand) {
        self.move_to_account(id, None, band);
    }

    /// `id`, which isn't in the queue, belongs to `band` from now on, and to the flow of `identity` if there is one.
    fn move_to_account(&mut self, id: JobId, identity: Option<IdentityId>, band: TreeBand) {
        let job = &mut self.jobs[id];
        let from = job.queued.flow;
        job.band = band;
        job.queued.flow = self.tree.flow_in_band(from, identity, band);
        self.tree.release_flow(from);
    }

    /// `id`, which starts, is charged to its flow's budget, unless it was demoted: what others leave is no part of the budget. Charged, a
    /// flow that never stops sending would owe more and more, and stay demoted long after it has stopped.
    #[inline]
    pub(super) fn charge_budget(&mut self, id: JobId) {
        if self.budgets.is_on() && self.jobs[id].band != TreeBand::Demoted {
            self.reserve_budget(id);
        }
    }

    #[inline(never)]
    fn reserve_budget(&mut self, id: JobId) {
        let tokens = self.budget_tokens(id);
        let flow = self.jobs[id].queued.flow;
        let identity = self.tree.identity_of(flow);
        let (Some(index), Some((table, now))) = (identity.budget, self.budgets.table()) else {
            return;
        };
        table.reserve(id, &identity.name, index, tokens, &now);
        self.report_budget_running(flow);
        self.update_hold(flow);
    }

    fn budget_tokens(&self, id: JobId) -> u64 {
        self.jobs[id].estimate.cost(CostUnit::Tokens, self.policy.weights)
    }

    /// `id`, which runs, has really used this.
    #[inline]
    pub(super) fn settle_budget(&mut self, id: JobId, service: Service) {
        if self.budgets.is_on() {
            self.settle_reserved(id, service);
        }
    }

    #[inline(never)]
    fn settle_reserved(&mut self, id: JobId, service: Service) {
        let job = &self.jobs[id];
        let real = match service {
            Service::Nothing => None,
            Service::Served(usage) | Service::Cut(usage) => {
                Some(job.counted(usage).cost(CostUnit::Tokens, self.policy.weights))
            }
        };
        let flow = job.queued.flow;
        let name = &self.tree.identity_of(flow).name;
        let Some((table, now)) = self.budgets.table() else {
            return;
        };
        let Some(settled) = table.settle(id, name, real, &now) else {
            return;
        };
        if self.reports_budgets {
            let used = table.report(name, &settled, &now);
            self.effects.extend(used.into_iter().map(|used| Effect::Budget(BudgetReport::Used(used))));
        }
        self.report_budget_running(flow);
        self.update_hold(flow);
    }

    fn report_budget_running(&mut self, flow: FlowId) {
        if self.reports_budgets {
            let name = &self.tree.identity_of(flow).name;
            let running = self.budgets.read().and_then(|(table, _)| table.running(name));
            self.effects.extend(running.map(|running| Effect::Budget(BudgetReport::Running(running))));
        }
    }

    /// The identity of `flow` is held exactly while its budget says so and has no room.
    pub(super) fn update_hold(&mut self, flow: FlowId) {
        let name = self.tree.identity_of(flow).name.clone();
        self.update_hold_of(&name);
    }

    /// The identity of this name, whether it has a flow now or not, is held exactly while its budget says so and has no room.
    fn update_hold_of(&mut self, name: &str) {
        let Some((table, now)) = self.budgets.table() else {
            return;
        };
        let held = table.update_hold(name, &now);
        if let Some(flow) = self.tree.flow_named(name)
            && self.tree.identity_of(flow).held != held
        {
            self.tree.set_held(flow, held, &self.endpoints);
        }
    }

    /// Judges again the flows for which time has made room.
    #[inline]
    pub(super) fn wake_held(&mut self) {
        if self.budgets.next_wake().is_some_and(|wake| wake <= self.now) {
            self.wake_due();
        }
    }

    #[inline(never)]
    fn wake_due(&mut self) {
        while let Some(name) = self.budgets.table().and_then(|(table, _)| table.woken(self.now)) {
            self.update_hold_of(&name);
        }
    }

    /// The time until the budget of `flow` has room, for a request with this outcome; `None`: unknown, or of no use.
    pub(super) fn budget_wait_for(&mut self, outcome: Outcome, flow: FlowId) -> Option<Duration> {
        let identity = self.tree.identity_of(flow);
        if outcome != Outcome::RejectedBudget && !identity.held {
            return None;
        }
        let (table, now) = self.budgets.table()?;
        Some(table.has_room_at(&identity.name, &now)?.since(self.now))
    }

    /// The time for which the budget of `flow` holds it, as far as that is known.
    pub(super) fn held_for(&self, flow: FlowId) -> Duration {
        let identity = self.tree.identity_of(flow);
        let table = self.budgets.read().filter(|_| identity.held);
        let wake = table.and_then(|(table, _)| table.wake_of(&identity.name));
        wake.map_or(Duration::ZERO, |wake| wake.since(self.now))
    }

    pub(super) fn set_utc(&mut self, utc: Duration) {
        self.budgets.set_utc(self.now, utc);
        let waking = self.budgets.read().map_or_else(Vec::new, |(table, _)| table.waking());
        for name in waking {
            self.update_hold_of(&name);
        }
    }

    /// `id` returns to the queue: in its own band, if it was demoted under another policy, and in its own flow, if the policy names
    /// it by now.
    pub(super) fn update_account(&mut self, id: JobId) {
        let identity = self.identity_under_policy(id);
        let band = self.band_under_policy(id, identity);
        if identity.is_some() || self.jobs[id].band != band {
            self.move_to_account(id, identity, band);
        }
    }

    /// The identity of `id`, which waits, if it shares another one until now and a new policy names it.
    pub(super) fn identity_under_policy(&mut self, id: JobId) -> Option<IdentityId> {
        let name = self.jobs[id].shared_name.as_ref()?;
        if !self.policy.flows.names(name) {
            return None;
        }
        let identity = self.tree.named_identity(name, &self.policy.flows);
        self.jobs[id].shared_name = None;
        Some(identity)
    }

    /// The band in which `id`, which waits, belongs under a new policy: its own, unless a budget has demoted it and may still.
    /// `identity`: its own, if it has shared one until now.
    pub(super) fn band_under_policy(&self, id: JobId, identity: Option<IdentityId>) -> TreeBand {
        let job = &self.jobs[id];
        if job.band != TreeBand::Demoted {
            return job.band;
        }
        let budget = self.policy.flows.budgets.as_slice();
        let shared = || self.tree.identity_of(job.queued.flow);
        let identity = identity.map_or_else(shared, |identity| self.tree.identity(identity));
        let budget = identity.budget.and_then(|index| budget.get(index));
        let demotes = budget.is_some_and(|budget| budget.over == Over::Demote && !budget.shadow);
        if demotes { job.band } else { job.request_band.into() }
    }

    /// After a change of policy: everything that runs and isn't settled is reserved in all windows.
    pub(super) fn reserve_all_again(&mut self) {
        if !self.budgets.is_on() {
            return;
        }
        let running = |&id: &JobId| {
            let running = self.jobs.running(id);
            self.jobs[id].band != TreeBand::Demoted
                && running.is_some_and(|running| running.settled.is_none())
        };
        let running: Vec<JobId> = self.jobs.ids().filter(running).collect();
        for id in running {
            let tokens = self.budget_tokens(id);
            let identity = self.tree.identity_of(self.jobs[id].queued.flow);
            let Some((table, now)) = self.budgets.table() else {
                return;
            };
            match identity.budget {
                Some(index) => table.reserve_again(id, &identity.name, index, tokens, &now),
                None => table.forget_reservation(id),
            }
        }
        let Some((table, _)) = self.budgets.table() else {
            return;
        };
        table.end_change();
        for name in table.names() {
            self.update_hold_of(&name);
        }
        for flow in self.tree.first_flows() {
            self.update_hold(flow);
        }
    }
}

fn named(flow: &str) -> &str {
    if flow.is_empty() { ANONYMOUS } else { flow }
}
