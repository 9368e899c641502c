//! The accounts of one pool at one companion.

use std::collections::BTreeMap;

use penstock_budget_model::Calendar;
use penstock_control::{CostEventKind, FlowBudget};
use penstock_engine::input::{BudgetUsage, Service, Usage};
use penstock_engine::policy::{Flows, Over};
use penstock_engine::{BudgetReport, Outcome, RequestId};

use super::flow::{Amount, Charge, FlowAccount};

/// A request of the pool.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The client's `x-request-id`.
    pub(super) request_id: Box<str>,
    /// The flow that its client named.
    pub(super) flow: Box<str>,
    /// The number of the event with which it came.
    pub(super) arrived: u64,
    /// When it came, by the companion's clock.
    arrived_at: u64,
    pub(super) is_waiting: bool,
    estimate: Usage,
    /// It ran as a demoted request.
    was_demoted: bool,
    charged: Option<(Box<str>, Charge)>,
}

/// How often something happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) charged: u64,
    pub(super) demoted: u64,
    pub(super) refused: u64,
    pub(super) compared: u64,
}

#[derive(Clone, Debug)]
pub(super) struct PoolAccounts {
    policy: Flows,
    /// Requests of several flows may share one, unless the policy names them.
    pub(super) shares_flows: bool,
    pub(super) calendar: Calendar,
    /// The companion's clock at the last event. An engine's time doesn't go back.
    pub(super) local: u64,
    /// The number of the last event.
    pub(super) event: u64,
    flows: BTreeMap<Box<str>, FlowAccount>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    /// The engine has granted a request.
    pub(super) grants: bool,
    /// Since when nothing runs, by the companion's clock; `None`: something runs.
    pub(super) idle_since: Option<u64>,
    /// The last event before the present batch, and the companion's clock then.
    pub(super) batch_started: (u64, u64),
    /// The last start of a demoted request in the present batch.
    pub(super) demoted_started: Option<u64>,
    /// What the engine reported to other gateways in this step: what flows run, and what they used by window.
    reported_running: BTreeMap<Box<str>, Amount>,
    reported_used: BTreeMap<Box<str>, Vec<u64>>,
    pub(super) counts: Counts,
}

/// The cost of tokens, in those that budgets count.
fn cost(usage: Usage) -> u64 {
    let count = |tokens: Option<penstock_engine::units::Tokens>| tokens.map_or(0, |tokens| tokens.0);
    let prompt = count(usage.prompt).saturating_sub(count(usage.cached));
    (prompt + 2 * count(usage.output)).max(1)
}

impl PoolAccounts {
    pub(super) fn new(policy: Flows, shares_flows: bool, local: u64) -> Self {
        Self {
            policy,
            shares_flows,
            calendar: Calendar::new(local),
            local,
            event: 0,
            flows: BTreeMap::new(),
            requests: BTreeMap::new(),
            grants: false,
            idle_since: Some(local),
            batch_started: (0, local),
            demoted_started: None,
            reported_running: BTreeMap::new(),
            reported_used: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    /// Moves all accounts to the present.
    pub(super) fn advance(&mut self, local: u64) {
        self.local = self.local.max(local);
        self.calendar.advance(self.local);
        self.event += 1;
        self.idle_since = (self.is_idle()).then(|| self.idle_since.unwrap_or(self.local));
        for flow in self.flows.values_mut() {
            flow.advance(&self.calendar, self.local, self.event);
        }
    }

    /// The account of a flow; `None`: it has no budget.
    pub(super) fn flow(&mut self, name: &str) -> Option<&mut FlowAccount> {
        if !self.flows.contains_key(name) {
            let budget = self.policy.budgets.iter().find(|budget| budget.flows.matches(name))?;
            let account = FlowAccount::new(budget.clone(), &self.calendar, self.local);
            self.flows.insert(name.into(), account);
        }
        self.flows.get_mut(name)
    }

    /// Applies the next event.
    ///
    /// # Errors
    /// When it breaks a rule of the budgets.
    pub(super) fn apply(&mut self, kind: &CostEventKind) -> Result<(), String> {
        self.advance(self.local);
        match kind {
            CostEventKind::PoolMade => {}
            CostEventKind::Arrived { id, labels } => {
                self.flow(&labels.flow);
                let request = Request {
                    request_id: labels.request_id.clone(),
                    flow: (*labels.flow).into(),
                    arrived: self.event,
                    arrived_at: self.local,
                    is_waiting: true,
                    estimate: Usage::default(),
                    was_demoted: false,
                    charged: None,
                };
                self.requests.insert(*id, request);
            }
            CostEventKind::Started { id, flow, is_granted, is_demoted, estimate } => {
                return self.start(*id, flow, (*is_granted, *is_demoted), *estimate);
            }
            CostEventKind::Requeued(id) => {
                self.settle(*id, None);
                if let Some(request) = self.requests.get_mut(id) {
                    request.is_waiting = true;
                }
            }
            CostEventKind::Ended { id, service } => {
                let estimate = self.requests.get(id).map(|request| request.estimate);
                let real = match service {
                    Service::Nothing => None,
                    Service::Served(usage) | Service::Cut(usage) => {
                        let estimate = estimate.unwrap_or_default();
                        Some(cost(Usage {
                            prompt: usage.prompt.or(estimate.prompt),
                            cached: usage.cached.or(estimate.cached),
                            output: usage.output.or(estimate.output),
                        }))
                    }
                };
                self.settle(*id, real);
                self.requests.remove(id);
            }
            CostEventKind::Left { id, outcome } => {
                let request = self.requests.remove(id);
                if let (Some(request), Some(Outcome::RejectedBudget)) = (request, outcome) {
                    return self.refuse(&request);
                }
            }
            CostEventKind::Reported(report) => self.note_report(report),
        }
        Ok(())
    }

    fn start(
        &mut self,
        id: RequestId,
        name: &str,
        (is_granted, is_demoted): (bool, bool),
        estimate: Usage,
    ) -> Result<(), String> {
        let now = (self.local, self.event);
        let calendar = self.calendar;
        let request = self.requests.get_mut(&id);
        let request = request.ok_or_else(|| format!("request {} starts, and never came", id.0))?;
        let (request_id, arrived) = (request.request_id.clone(), request.arrived);
        request.is_waiting = false;
        request.estimate = estimate;
        let was_demoted = core::mem::replace(&mut request.was_demoted, is_demoted);
        let own = request.flow.clone();
        if *own != *name && !self.may_share(&own) {
            return Err(format!("{request_id} of flow {own} is charged to {name}"));
        }
        self.grants |= is_granted;
        let Some(flow) = self.flow(name) else {
            return match is_demoted {
                true => Err(format!("{request_id} of flow {name} without a budget is demoted")),
                false => Ok(()),
            };
        };
        if is_demoted {
            let was_empty = flow.emptied.is_some_and(|emptied| emptied >= arrived);
            if !flow.decides(Over::Demote) || !was_empty {
                return Err(format!(
                    "{request_id} of flow {name} is demoted, and its flow was always within its budget"
                ));
            }
            self.counts.demoted += 1;
            self.demoted_started = Some(self.event);
            return Ok(());
        }
        if was_demoted {
            return Err(format!("{request_id} of flow {name} was demoted, and is charged now"));
        }
        if is_granted && !flow.budget.shadow && !flow.has_room() {
            let windows = flow.windows.clone();
            return Err(format!(
                "{request_id} of flow {name} is granted, and nothing is left of its budget: {windows:?}"
            ));
        }
        let charge = flow.charge(cost(estimate), is_granted, &calendar, now);
        self.counts.charged += 1;
        if let Some(request) = self.requests.get_mut(&id) {
            request.charged = Some((name.into(), charge));
        }
        Ok(())
    }

    fn settle(&mut self, id: RequestId, real: Option<u64>) {
        let now = (self.local, self.event);
        let calendar = self.calendar;
        let charged = self.requests.get_mut(&id).and_then(|request| request.charged.take());
        if let Some((name, charge)) = charged
            && let Some(flow) = self.flows.get_mut(&name)
        {
            flow.settle(&charge, real, &calendar, now);
        }
    }

    /// Requests of the flow `name` may be charged to another one.
    fn may_share(&self, name: &str) -> bool {
        self.shares_flows && !self.policy.names(name)
    }

    fn refuse(&mut self, request: &Request) -> Result<(), String> {
        self.counts.refused += 1;
        let (name, request_id) = (&request.flow, &request.request_id);
        if self.may_share(name) {
            return Ok(());
        }
        let is_right = self.flow(name).is_some_and(|flow| flow.decides(Over::Refuse) && !flow.has_room());
        if is_right {
            return Ok(());
        }
        Err(format!("{request_id} of flow {name} is refused, and its flow is within its budget"))
    }

    fn note_report(&mut self, report: &BudgetReport) {
        match report {
            BudgetReport::Running(running) => {
                let amount = Amount { tokens: running.tokens.0, requests: running.requests };
                self.reported_running.insert(running.flow.clone(), amount);
            }
            BudgetReport::Used(used) => self.note_used(used),
            // No operator changes a budget in the world: if an engine forgot usage by itself, the comparison would show it.
            BudgetReport::Reset { .. } | BudgetReport::Forgotten { .. } | BudgetReport::Shadowed { .. } => {}
        }
    }

    fn note_used(&mut self, used: &BudgetUsage) {
        let Some(flow) = self.flow(&used.flow) else {
            return;
        };
        let windows = flow.budget.windows.clone();
        let is_its = |window: &&penstock_engine::policy::BudgetWindow| {
            (window.unit, window.period) == (used.unit, used.period)
        };
        let reported = self.reported_used.entry(used.flow.clone()).or_default();
        reported.resize(windows.len(), 0);
        if let Some(index) = windows.iter().position(|window| is_its(&window)) {
            reported[index] += used.amount;
        }
    }

    /// Compares the accounts with what the engine says after a step.
    ///
    /// # Errors
    /// When they differ.
    pub(super) fn compare(&mut self, engine: &[FlowBudget]) -> Result<(), String> {
        self.compare_reports()?;
        for budget in engine {
            let name = &budget.budget.flow;
            let Some(flow) = self.flow(name) else {
                return Err(format!("flow {name} has no budget, and the engine counts it"));
            };
            for (window, shown) in flow.windows.iter().zip(&budget.budget.windows) {
                let own = (window.used(), window.reserved(), window.debt, window.room());
                let engines = (shown.used, shown.reserved, shown.debt, shown.remaining);
                if own != engines {
                    return Err(format!(
                        "flow {name} has used, reserved, owes and has left {own:?} of {}, and the engine says {engines:?}",
                        window.limit
                    ));
                }
            }
        }
        let is_known = |name: &str| engine.iter().any(|budget| *budget.budget.flow == *name);
        let counts = |flow: &FlowAccount| flow.windows.iter().any(|window| window.counted() > 0);
        let forgotten = self.flows.iter().find(|(name, flow)| counts(flow) && !is_known(name));
        if let Some((name, _)) = forgotten {
            return Err(format!("the engine has forgotten what flow {name} has used"));
        }
        self.counts.compared += 1;
        Ok(())
    }

    fn compare_reports(&mut self) -> Result<(), String> {
        for (name, reported) in core::mem::take(&mut self.reported_running) {
            let running = self.flow(&name).map(|flow| flow.running);
            if running != Some(reported) {
                return Err(format!("flow {name} runs {running:?}, and the engine reports {reported:?}"));
            }
        }
        let reported = core::mem::take(&mut self.reported_used);
        for (name, flow) in &mut self.flows {
            let used = reported.get(name).cloned();
            let used = used.unwrap_or_else(|| vec![0; flow.to_report.len()]);
            if used != flow.to_report {
                let own = &flow.to_report;
                return Err(format!("flow {name} used {own:?}, and the engine reports {used:?}"));
            }
            flow.to_report.fill(0);
        }
        Ok(())
    }

    /// The waiting requests that came before `event` and `local`, by the companion's clock, aren't demoted, and belong to flows that have
    /// been within their budgets since `local` at least.
    pub(super) fn waiting_within_budget(&self, event: u64, local: u64) -> impl Iterator<Item = &Request> {
        self.requests.values().filter(move |request| {
            let came_before = request.arrived < event && request.arrived_at <= local;
            let Some(flow) = self.flows.get(&request.flow) else {
                return request.is_waiting && came_before;
            };
            let was_empty = flow.emptied.is_some_and(|emptied| emptied >= request.arrived);
            let may_be_demoted = flow.decides(Over::Demote) && was_empty;
            let has_room = flow.has_room_since.is_some_and(|since| since <= local);
            request.is_waiting && came_before && !may_be_demoted && has_room
        })
    }

    /// Nothing runs in the pool.
    pub(super) fn is_idle(&self) -> bool {
        self.requests.values().all(|request| request.is_waiting)
    }

    /// Checks the law over several windows, for each flow with a budget that decides.
    ///
    /// # Errors
    /// When a flow has used more.
    pub(super) fn check_law(&self) -> Result<(), String> {
        for (name, flow) in self.flows.iter().filter(|(_, flow)| !flow.budget.shadow) {
            flow.check_law().map_err(|violation| format!("flow {name} has {violation}"))?;
        }
        Ok(())
    }
}
