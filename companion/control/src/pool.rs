//! One pool: its engine, its autopilot, its endpoints, and its requests that haven't ended.
//!
//! A pool is driven like the engine it owns: [`Pool::handle`] takes an input, [`Pool::poll_effect`] returns the effects, and
//! time is an argument. It doesn't know sessions: an effect names the filter's request by its `RequestKey`.

mod admission;
mod announcement;
mod attempts;
mod audit;
mod avoided;
mod budgets;
mod cost_trace;
mod credits;
mod decisions;
mod effect;
mod eligibility;
mod endpoints;
mod eviction;
mod explain;
mod input;
mod lifecycle;
mod missing_models;
mod model_counts;
mod places;
mod public_budgets;
mod reconfigure;
mod reported;
mod request;
mod rewrite;
mod rules;
mod server_process;
mod status;
mod visible_flows;

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_autopilot::{Autopilot, AutopilotSettings, Backlog};
use penstock_engine::input::{Band, EndpointAnswer, EndpointId, Input, RequestId};
use penstock_engine::policy::Gate;
use penstock_engine::{Engine, Instant, ModelName};

use self::announcement::Announced;
pub(crate) use self::announcement::{Announcement, AnnouncementChange};
use self::avoided::AvoidedEndpoints;
use self::credits::Credits;
pub(crate) use self::effect::{GivenCredit, PoolEffect};
use self::endpoints::Endpoints;
pub(crate) use self::input::{PoolInput, Registering};
use self::missing_models::MissingModels;
use self::model_counts::ModelCounts;
use self::places::Doubtful;
use self::public_budgets::PublicBudgets;
pub(crate) use self::request::{Grant, OpenRequest};
use self::rules::Rules;
use self::visible_flows::VisibleFlows;
use crate::cost_trace::CostEventKind;
use crate::event::PoolEvent;
use crate::labels::Labels;
use crate::limits::WINDOW;
use crate::observation::{Observation, PoolNews, RequestNews};
use crate::settings::PoolSettings;

/// One pool.
///
/// The control drives it like an engine: [`Self::handle`] with a [`PoolInput`], or [`Self::handle_timeout`] when [`Self::poll_timeout`] is
/// due, then [`Self::poll_effect`] until there is none. `Pools` wraps these calls and keeps the deadlines of all pools in order, so nothing
/// else may call them.
///
/// Within one input, this order matters:
///
/// 1. The request's own state changes before the engine decides, because the engine's effects are carried out by it: a grant needs the
///    request's attempts and avoided endpoints as they are after this input.
/// 2. `decide` hands an input to the engine and carries out all that follows before it returns. So no two inputs of the engine have mixed
///    effects, and a method that calls `decide` may find the request gone afterwards.
/// 3. The autopilot's inputs for the engine come last, in `after`: they are computed from what the engine has decided.
///
/// The rest are queries for the control, metrics and status, which change nothing, except that `renew_announcement` and
/// `take_cost_events` return what is new since the last call.
///
/// A request is in `requests` from its registration to its end, and it ends with exactly one
/// [`PoolEffect::Ended`]: the control then removes the route to the request, and a request without a route can't be ended again. A retired pool
/// stays until it [`is over`](Self::is_over), so that its requests end where they ran.
#[derive(Debug)]
pub(crate) struct Pool {
    name: Arc<str>,
    engine: Engine,
    autopilot: Autopilot,
    endpoints: Endpoints,
    avoided: AvoidedEndpoints,
    missing_models: MissingModels,
    requests: HashMap<RequestId, OpenRequest>,
    visible_flows: VisibleFlows,
    public_budgets: PublicBudgets,
    model_counts: ModelCounts,
    /// The model of the last request. Successive requests for one model share a copy of its name.
    last_model: ModelName,
    rules: Rules,
    announced: Announced,
    credits: Credits,
    /// The request whose arrival the engine is deciding on.
    arriving: Option<RequestId>,
    /// The request that leaves the queue without a decision of the engine, and the observation of its end.
    leaving: Option<(RequestId, RequestNews)>,
    /// The configuration no longer has the pool. It stays until its last request has ended.
    is_retired: bool,
    effects: VecDeque<PoolEffect>,
    /// `None`: no simulated world has asked for them.
    cost_events: Option<Vec<CostEventKind>>,
}

impl Pool {
    /// A pool without endpoints. `generation`: how many pools were made before it.
    pub(crate) fn new(settings: &PoolSettings, seed: u64, generation: u64, now: Instant) -> Self {
        let mut engine = Engine::new(settings.policy.clone(), seed, now);
        engine.report_usage(settings.reported);
        engine.report_running_usage(settings.shared);
        engine.report_budgets(settings.reported);
        engine.share_budgets(settings.shared);
        let mut autopilot = Autopilot::new(autopilot_settings(settings), now);
        autopilot.limit_demand(settings.policy.queue.max_rate);
        Self {
            name: settings.name.as_str().into(),
            engine,
            autopilot,
            endpoints: Endpoints::default(),
            avoided: AvoidedEndpoints::default(),
            missing_models: MissingModels::default(),
            requests: HashMap::new(),
            visible_flows: VisibleFlows::default(),
            public_budgets: PublicBudgets::default(),
            model_counts: ModelCounts::default(),
            last_model: ModelName::default(),
            rules: Rules::new(settings),
            announced: Announced::nothing(),
            credits: Credits::new(generation),
            arriving: None,
            leaving: None,
            is_retired: false,
            effects: VecDeque::new(),
            cost_events: None,
        }
    }

    /// Handles one input. What follows from it is in the effects.
    pub(crate) fn handle(&mut self, now: Instant, input: PoolInput<'_>) {
        self.handle_input(now, input);
        self.after(now);
    }

    fn handle_input(&mut self, now: Instant, input: PoolInput<'_>) {
        match input {
            PoolInput::Register(registering) => self.register(now, &registering),
            PoolInput::Reenter { id, peer, registration, arrival } => {
                self.reenter(now, id, peer, registration, arrival)
            }
            PoolInput::CountArrival => self.autopilot.arrived(now),
            PoolInput::PeerChanged { id, peer } => self.set_peer(id, peer),
            PoolInput::StillWaits(id) => self.still_waits(now, id),
            PoolInput::StillRuns { id, registration, running } => {
                self.still_runs(now, id, registration, running)
            }
            PoolInput::Cancel(id) => self.cancel(now, id),
            PoolInput::Answered { id, answer } => self.answered(now, id, answer),
            PoolInput::Release(id) => self.release(now, id),
            PoolInput::Suspend(id) => self.decide(now, Input::Suspend(id)),
            PoolInput::Started { id, endpoint, status, attempts, has_first_token } => {
                self.started(now, id, endpoint, attempts);
                self.begun(now, id, endpoint, status);
                self.first_token(now, id, has_first_token);
                self.responds(now, id);
            }
            PoolInput::AttemptFailed { id, attempt } => self.attempt_failed(now, id, attempt),
            PoolInput::Completed { id, completion } => self.completed(now, id, completion),
            PoolInput::CreditReturned(credit) => self.credit_returned(now, credit),
            PoolInput::CreditConsumed(place) => self.credit_consumed(now, place),
            PoolInput::CreditSuspended(epoch) => self.credit_suspended(epoch),
            PoolInput::CreditEnded(epoch) => self.credit_ended(now, epoch),
            PoolInput::EnvoyLeft(envoy) => self.avoided.forget_envoy(envoy),
            PoolInput::Event(event) => self.handle_event(now, event),
            PoolInput::Reload(settings) => self.reload(now, settings),
            PoolInput::Retire => self.retire(now),
            PoolInput::EvictUnserved => self.evict_unserved(now),
            PoolInput::HideFlows => self.visible_flows.clear(),
            PoolInput::Utc(utc) => self.decide(now, Input::Utc(utc)),
            PoolInput::Drain(drains) => self.decide(now, Input::Drain(drains)),
            PoolInput::Ready => self.decide(now, Input::Ready),
            PoolInput::Hold => self.decide(now, Input::Hold),
            PoolInput::Forget(id) => self.forget(now, id),
        }
    }

    fn handle_event(&mut self, now: Instant, event: PoolEvent) {
        match event {
            PoolEvent::EndpointReady { address, ready } => self.set_endpoint_ready(now, &address, ready),
            PoolEvent::Scraped { address, scraped, adapters } => {
                self.take_scraped(now, &address, scraped, adapters)
            }
            PoolEvent::Endpoints { endpoints, pending } => self.relist(now, &endpoints, &pending),
            PoolEvent::Usage { settled, running } => {
                self.decide(now, Input::SharedUsage { settled, running })
            }
            PoolEvent::ChangeBudget { flow, change } => self.change_budget(now, flow, change),
            PoolEvent::BudgetResets(resets) => self.decide(now, Input::BudgetResets(resets)),
            PoolEvent::BudgetHistory(past) => self.decide(now, Input::BudgetHistory(past)),
            PoolEvent::BudgetUsage { settled, running } => {
                self.decide(now, Input::BudgetUsage { settled, running })
            }
        }
    }

    /// The next effect, in the order in which they arose.
    pub(crate) fn poll_effect(&mut self) -> Option<PoolEffect> {
        self.effects.pop_front()
    }

    /// When [`Self::handle_timeout`] is due; `None` if time alone changes nothing.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = [self.engine.poll_timeout(), self.autopilot.poll_timeout(), self.credits.renewal_at()];
        timeouts.into_iter().flatten().min()
    }

    /// Lets the engine and the autopilot do everything that is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.engine.handle_timeout(now);
        self.apply_decisions(now, None);
        self.renew_credits(now);
        if self.autopilot.poll_timeout().is_some_and(|due| due <= now) {
            let requests = self.engine.waiting_for_room();
            self.autopilot.handle_timeout(now, Backlog { requests, is_full: self.engine.is_full() });
            for (variant, kept) in self.autopilot.take_kept() {
                self.observe_pool(PoolNews::Learned { variant, kept });
            }
        }
        self.after(now);
    }

    /// Follows every input: the engine takes the allowances that the autopilot has changed.
    fn after(&mut self, now: Instant) {
        while let Some(input) = self.autopilot.poll_input() {
            self.decide(now, input);
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The pool is configured and serves the model.
    pub(crate) fn accepts(&self, model: &str) -> bool {
        !self.is_retired && self.rules.serves(model)
    }

    /// The band that an objective of this pool has; `None`: there is no objective of this name.
    pub(crate) fn objective(&self, name: &str) -> Option<Band> {
        self.rules.objectives.get(name).copied()
    }

    /// The status of answers to requests that the pool has no room for.
    pub(crate) const fn capacity_status(&self) -> u16 {
        self.rules.capacity_status
    }

    /// The number of flows that metrics and status show by name.
    pub(crate) fn visible_flows(&self) -> usize {
        self.visible_flows.len()
    }

    /// The request hasn't ended.
    pub(crate) fn contains(&self, id: RequestId) -> bool {
        self.requests.contains_key(&id)
    }

    /// The request hasn't ended and waits.
    pub(crate) fn is_waiting(&self, id: RequestId) -> bool {
        self.requests.get(&id).is_some_and(OpenRequest::is_waiting)
    }

    /// The pool is retired, its last request has ended, and all credit has come back.
    pub(crate) fn is_over(&self) -> bool {
        self.is_retired && self.requests.is_empty() && !self.has_credit_out()
    }

    /// Filters may run requests that aren't known.
    pub(crate) const fn has_credit_out(&self) -> bool {
        self.credits.given() > 0
    }

    pub(crate) const fn is_retired(&self) -> bool {
        self.is_retired
    }

    /// All requests that haven't ended, in no order.
    pub(crate) fn requests(&self) -> impl Iterator<Item = (RequestId, &OpenRequest)> {
        self.requests.iter().map(|(&id, request)| (id, request))
    }

    /// Hands an input to the engine, applies its decisions, recalls credit at endpoints that it has made unfit, and marks the announcement
    /// stale if the input may have changed it: ready endpoints, or the bound for requests that go without the companion.
    fn decide(&mut self, now: Instant, input: Input) {
        let (changes_announcement, doubtful) = match &input {
            Input::Policy(_) | Input::Allowance { .. } => (true, Doubtful::None),
            Input::Relist(_) => (true, Doubtful::All),
            Input::Endpoint { id, .. } => (true, Doubtful::One(*id)),
            Input::Load { id: endpoint, .. }
            | Input::Failed { endpoint, .. }
            | Input::PushedBack { endpoint, .. }
            | Input::Answered(EndpointAnswer { endpoint, .. }) => (false, Doubtful::One(*endpoint)),
            _ => (false, Doubtful::None),
        };
        self.engine.handle(now, input);
        self.apply_decisions(now, None);
        self.recall_unfit_credits(doubtful);
        if changes_announcement {
            self.announced.mark_stale();
        }
    }

    /// The endpoint at an address that is listed or has requests running; `None` for every other address.
    fn endpoint(&self, address: &str) -> Option<EndpointId> {
        let id = self.endpoints.id(address)?;
        (self.endpoints.is_listed(id) || self.engine.has_endpoint(id)).then_some(id)
    }

    /// The endpoint at an address at which a filter runs a request. One that isn't known is kept for that request, as one that was removed:
    /// discovery lists it no more, or hasn't answered since this companion started. `None`: it is no address, or too many are kept.
    fn endpoint_in_use(&mut self, address: &str) -> Option<EndpointId> {
        self.endpoint(address).or_else(|| self.endpoints.keep(address))
    }

    fn observe(&mut self, observation: Observation) {
        self.effects.push_back(PoolEffect::Observe(observation));
    }

    fn observe_request(&mut self, labels: Arc<Labels>, news: RequestNews) {
        self.observe(Observation::Request(labels, news));
    }

    fn observe_pool(&mut self, news: PoolNews) {
        self.observe(Observation::Pool(self.name.clone(), news));
    }

    /// Removes a request that has ended.
    fn close(&mut self, id: RequestId) -> Option<OpenRequest> {
        let request = self.requests.remove(&id)?;
        self.model_counts.close(&request.labels.model, request.is_waiting());
        self.effects.push_back(PoolEffect::Ended { key: request.key, id, labels: request.labels.clone() });
        Some(request)
    }
}

fn autopilot_settings(settings: &PoolSettings) -> AutopilotSettings {
    AutopilotSettings {
        endpoints: Vec::new(),
        pending: settings.pending.clone(),
        slo: settings.slo,
        gates: matches!(settings.policy.gate, Gate::Auto { .. }),
        extra_places: settings.policy.extra_for_idle_flows,
        ttl: settings.policy.queue.ttl,
        window: WINDOW,
        transient: settings.transient,
        kept: settings.kept.clone(),
    }
}
