//! Runs a script: operations become the engine's inputs, and the engine's effects become answers.
//!
//! Only waiting and running requests are kept in memory.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::Pool;
use penstock_control::code_of;
use penstock_engine::effect::{Grant, Reject, Trace};
use penstock_engine::input::{
    ClassKey, EndpointId, EndpointState, Prompt, Request, RequestId, Service, Usage,
};
use penstock_engine::policy::{ExtraPlaces, Gate, Policy};
use penstock_engine::time::Instant;
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Engine, Input, Outcome};
use serde_json::value::RawValue;

use super::answer::{self, Dispatched, Displaced, Expired, NoDispatch, ONLY_CLASS, Rejected};
use super::ops::{Enqueue, Line, Op, Time};

/// Why a run stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// A line that can't be executed: the reason.
    Line(String),
    /// Writing an answer failed.
    Output(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// One pool under a script.
pub(super) struct Run<W> {
    policy: Policy,
    /// Whether the policy puts all requests into one flow.
    has_one_flow: bool,
    gate: bool,
    /// `None` until the first operation, because the engine starts at its time.
    engine: Option<Engine>,
    now: Instant,
    /// The class set of each policy class, by the class's name.
    classes: HashMap<Box<str>, u16>,
    endpoints: Endpoints,
    requests: Requests,
    out: W,
}

impl<W: Write> Run<W> {
    /// A run on an empty pool, with its answers written to `out`.
    pub(super) fn new(pool: Pool, gate: bool, out: W) -> Self {
        let mut policy = pool.policy;
        if policy.extra_for_idle_flows == ExtraPlaces::TENTH {
            // A script shows the order of the queue: only a file that asks for other places above the bounds lets flows go past it.
            policy.extra_for_idle_flows = ExtraPlaces::NONE;
        }
        // The script alone ends requests.
        policy.eviction = None;
        if !gate {
            policy.gate = Gate::Manual;
            // Without the gate, the work at endpoints holds no class back; the script does, by `blocked`.
            for class in policy.classes.iter_mut().flat_map(|set| &mut set.classes) {
                (class.busy_tokens, class.busy_fraction) = (None, None);
            }
        }
        let sets = (0..).zip(&policy.classes);
        let classes =
            sets.flat_map(|(index, set)| set.classes.iter().map(move |class| (class.name.clone(), index)));
        let configured = pool
            .endpoints
            .iter()
            .map(|endpoint| EndpointState { weight: endpoint.weight, ..EndpointState::default() });
        Self {
            classes: classes.collect(),
            endpoints: Endpoints::new(configured.collect()),
            has_one_flow: pool.flow_key.is_empty(),
            policy,
            gate,
            engine: None,
            now: Instant::ZERO,
            requests: Requests::default(),
            out,
        }
    }

    /// Executes a line and writes its answers.
    ///
    /// # Errors
    /// When the line can't be executed, or an answer can't be written.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<(), Stop> {
        let Line { t, op } = Line::read(line).map_err(Stop::Line)?;
        if t.instant < self.now {
            return Err(Stop::Line(format!("t: {} is before the time of the previous line", t.written)));
        }
        self.start(t.instant);
        if self.gate {
            self.run_timers(t.instant)?;
        }
        self.now = t.instant;
        self.execute(t, op)
    }

    /// Writes buffered answers out.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn start(&mut self, now: Instant) {
        if self.engine.is_none() {
            let mut engine = Engine::new(self.policy.clone(), 0, now);
            engine.trace(true);
            for (id, state) in self.endpoints.configured() {
                engine.handle(now, Input::Endpoint { id, state });
            }
            engine.handle(now, Input::Ready);
            self.engine = Some(engine);
        }
    }

    fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("invariant: the engine starts with the first line")
    }

    fn execute(&mut self, t: Time<'_>, op: Op<'_>) -> Result<(), Stop> {
        let needs = |gate: &str, name| Stop::Line(format!("op: `{name}` is allowed {gate} --gate only"));
        match op {
            Op::Enqueue(request) => self.enqueue(t, &request),
            Op::Dispatch(_) if self.gate => Err(needs("without", "dispatch")),
            Op::Dispatch(blocked) => self.dispatch(t, blocked),
            Op::Settle { id, tokens, output } => {
                let usage =
                    Usage { prompt: Some(Tokens(tokens)), cached: None, output: Some(Tokens(output)) };
                self.settle(t, &id, Service::Served(usage))
            }
            Op::Refund(id) => self.settle(t, &id, Service::Nothing),
            Op::Cancel(id) => match self.requests.get(&id) {
                Some(request) => self.handle(t, Input::Cancel(request.id), None),
                None => Ok(()),
            },
            Op::Expire => {
                self.engine().handle_timeout(t.instant);
                self.answer(t.written, None).map(drop)
            }
            Op::Complete(_) if !self.gate => Err(needs("with", "complete")),
            Op::Complete(id) => self.complete(t, &id),
            Op::Endpoints(_) if !self.gate => Err(needs("with", "endpoints")),
            Op::Endpoints(ready) => self.set_ready(t, ready),
        }
    }

    fn enqueue(&mut self, t: Time<'_>, operation: &Enqueue<'_>) -> Result<(), Stop> {
        let class_set = self.class_set(operation.class.as_deref())?;
        let Some(id) = self.requests.add(&operation.id) else {
            return Err(Stop::Line(format!(
                "id: a request `{}` is already waiting or running",
                operation.id
            )));
        };
        let class = operation.class.as_deref().map(|name| ClassKey::Named(name.into()));
        let request = Request {
            arrived: t.instant,
            flow: if self.has_one_flow { Arc::default() } else { (&*operation.flow).into() },
            band: operation.band(),
            class: class.unwrap_or_default(),
            class_set,
            prompt: Prompt::Tokens(Tokens(operation.tokens())),
            cached: Tokens(operation.cached()),
            expected_output: Some(Tokens(operation.output())),
            sequences: operation.sequences(),
            strict: operation.strict(),
            head_start: Duration::from_nanos(operation.jump()),
            deadline: operation.deadline(),
            ..Request::new(id)
        };
        self.handle(t, Input::Register(request), Some(id))
    }

    fn class_set(&self, name: Option<&str>) -> Result<u16, Stop> {
        match name {
            None => Ok(0),
            Some(name) => match self.classes.get(name) {
                Some(&set) => Ok(set),
                None if name == ONLY_CLASS && self.has_no_classes() => Ok(0),
                None => Err(self.unknown_class("class", name)),
            },
        }
    }

    /// Whether requests without a model have no classes.
    fn has_no_classes(&self) -> bool {
        self.policy.classes.first().is_none_or(|set| set.classes.is_empty())
    }

    fn unknown_class(&self, key: &str, name: &str) -> Stop {
        let mut names: Vec<&str> = self.classes.keys().map(|name| &**name).collect();
        names.sort_unstable();
        if self.has_no_classes() {
            names.push(ONLY_CLASS);
        }
        let names = names.join(", ");
        Stop::Line(format!("{key}: the policy has no class `{name}`; allowed are {names}"))
    }

    fn dispatch(&mut self, t: Time<'_>, blocked: Vec<Cow<'_, str>>) -> Result<(), Stop> {
        let mut only_class_is_blocked = false;
        for name in &blocked {
            self.class_set(Some(name)).map_err(|_| self.unknown_class("blocked", name))?;
            only_class_is_blocked |= self.classes.is_empty();
        }
        // The engine has no name for the only class of a policy without classes, so a dispatch that blocks it is skipped.
        if !only_class_is_blocked {
            let blocked = blocked.iter().map(|name| (&**name).into()).collect();
            self.engine().handle(t.instant, Input::Dispatch { blocked });
        }
        if !self.answer(t.written, None)? {
            let none = NoDispatch { t: t.written, dispatch: None };
            answer::write(&mut self.out, &none)?;
        }
        Ok(())
    }

    fn settle(&mut self, t: Time<'_>, name: &str, service: Service) -> Result<(), Stop> {
        let Some(id) = self.requests.running(name) else {
            return Ok(());
        };
        if !self.gate {
            self.requests.remove(id);
        }
        self.handle(t, Input::Settle { id, service }, None)
    }

    /// Completes a running request. Unless it was settled before, it costs its estimate.
    fn complete(&mut self, t: Time<'_>, name: &str) -> Result<(), Stop> {
        let Some(id) = self.requests.running(name) else {
            return Ok(());
        };
        self.requests.remove(id);
        let service = Service::Served(Usage::default());
        self.handle(t, Input::Completed { id, service }, None)
    }

    fn set_ready(&mut self, t: Time<'_>, ready: u32) -> Result<(), Stop> {
        for (id, state) in self.endpoints.set_ready(ready) {
            self.handle(t, Input::Endpoint { id, state }, None)?;
        }
        Ok(())
    }

    /// Fires the timers that are due by `until`, each at its time.
    fn run_timers(&mut self, until: Instant) -> Result<(), Stop> {
        let mut last = None;
        while let Some(due) = self.engine().poll_timeout().filter(|&due| due <= until) {
            let now = due.max(self.now);
            self.now = now;
            self.engine().handle_timeout(now);
            let answered = self.answer(&answer::seconds(now), None)?;
            // A timer that fires again without an effect waits for an input, not for time.
            if last == Some(due) && !answered {
                break;
            }
            last = Some(due);
        }
        Ok(())
    }

    fn handle(&mut self, t: Time<'_>, input: Input, newcomer: Option<RequestId>) -> Result<(), Stop> {
        self.engine().handle(t.instant, input);
        self.answer(t.written, newcomer).map(drop)
    }

    /// Writes an answer for each effect of the engine. Returns whether there was one.
    fn answer(&mut self, t: &RawValue, newcomer: Option<RequestId>) -> Result<bool, Stop> {
        let mut answered = false;
        let mut bypass = None;
        while let Some(effect) = self.engine().poll_effect() {
            match effect {
                Effect::Grant(Grant { id, outcome, .. }) => {
                    self.requests.set_running(id);
                    bypass = self.gate.then_some(outcome == Outcome::Bypassed);
                }
                Effect::Traced(Trace { id, class, flow, class_cost, flow_cost, deficits }) => {
                    let dispatched = Dispatched {
                        t,
                        dispatch: self.requests.name(id),
                        class: if class.is_empty() { ONLY_CLASS } else { &class },
                        flow: &flow,
                        cost: class_cost.0,
                        flow_cost: flow_cost.0,
                        deficits: &deficits,
                        bypass,
                    };
                    answer::write(&mut self.out, &dispatched)?;
                    answered = true;
                }
                Effect::Reject(Reject { id, outcome, .. }) => {
                    let name = self.requests.remove(id);
                    self.answer_rejected(t, &name, outcome, newcomer == Some(id))?;
                    answered = true;
                }
                Effect::Cancelled { id, .. } => {
                    self.requests.remove(id);
                }
                // The policy of a script has no evictions.
                Effect::Evict(_)
                | Effect::Settled { .. }
                | Effect::UsageSettled(_)
                | Effect::UsageRunning(_)
                | Effect::Budget(_) => {}
            }
        }
        Ok(answered)
    }

    fn answer_rejected(
        &mut self,
        t: &RawValue,
        name: &str,
        outcome: Outcome,
        newcomer: bool,
    ) -> io::Result<()> {
        if newcomer {
            let code = code_of(outcome).map_or(outcome.as_str(), |code| code.as_str());
            answer::write(&mut self.out, &Rejected { t, reject: name, code })
        } else if outcome == Outcome::Displaced {
            answer::write(&mut self.out, &Displaced { t, displaced: name })
        } else {
            answer::write(&mut self.out, &Expired { t, expired: name })
        }
    }
}

/// The endpoints of the configuration, followed by those of weight 1 that a script added by making more endpoints ready.
struct Endpoints {
    all: Vec<EndpointState>,
    configured: usize,
}

impl Endpoints {
    fn new(mut all: Vec<EndpointState>) -> Self {
        if all.is_empty() {
            all.push(EndpointState::default());
        }
        let configured = all.len();
        Self { all, configured }
    }

    fn configured(&self) -> impl Iterator<Item = (EndpointId, EndpointState)> {
        numbered(&self.all[..self.configured])
    }

    /// Makes the first `ready` endpoints ready and the rest unready. Returns those that change.
    fn set_ready(&mut self, ready: u32) -> Vec<(EndpointId, EndpointState)> {
        let ready = ready as usize;
        let before = self.all.clone();
        self.all.resize_with(before.len().max(ready), EndpointState::default);
        for (index, state) in self.all.iter_mut().enumerate() {
            state.ready = index < ready;
        }
        let changed = |index: u32| before.get(index as usize) != self.all.get(index as usize);
        numbered(&self.all).filter(|&(id, _)| changed(id.0)).collect()
    }
}

fn numbered(all: &[EndpointState]) -> impl Iterator<Item = (EndpointId, EndpointState)> {
    (0..).map(EndpointId).zip(all.iter().copied())
}

/// Waiting and running requests, by their names in the script and by their ids in the engine.
#[derive(Default)]
struct Requests {
    next: u64,
    by_name: HashMap<Rc<str>, Entry>,
    names: HashMap<RequestId, Rc<str>>,
}

#[derive(Clone, Copy)]
struct Entry {
    id: RequestId,
    running: bool,
}

impl Requests {
    /// Adds a request; `None` if the name is in use.
    fn add(&mut self, name: &str) -> Option<RequestId> {
        if self.by_name.contains_key(name) {
            return None;
        }
        let id = RequestId(self.next);
        self.next += 1;
        let name: Rc<str> = name.into();
        self.by_name.insert(name.clone(), Entry { id, running: false });
        self.names.insert(id, name);
        Some(id)
    }

    fn get(&self, name: &str) -> Option<Entry> {
        self.by_name.get(name).copied()
    }

    fn running(&self, name: &str) -> Option<RequestId> {
        self.get(name).filter(|entry| entry.running).map(|entry| entry.id)
    }

    fn name(&self, id: RequestId) -> &str {
        self.names.get(&id).expect("invariant: the engine has only requests of the script")
    }

    fn set_running(&mut self, id: RequestId) {
        if let Some(entry) = self.names.get(&id).and_then(|name| self.by_name.get_mut(name)) {
            entry.running = true;
        }
    }

    fn remove(&mut self, id: RequestId) -> Rc<str> {
        let name = self.names.remove(&id).unwrap_or_default();
        self.by_name.remove(&name);
        name
    }
}
