//! A script's run: its operations become the engine's inputs, the engine's effects become answers.
//!
//! Keeps what waits and what runs, and nothing of what has been answered.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::rc::Rc;
use std::time::Duration;

use penstock_config::Pool;
use penstock_control::code_of;
use penstock_engine::input::{
    ClassKey, EndpointId, EndpointState, Prompt, Request, RequestId, Service, Usage,
};
use penstock_engine::policy::{Gate, Policy};
use penstock_engine::time::Instant;
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, Engine, Input, Outcome};
use serde_json::value::RawValue;

use super::answer::{self, Dispatched, Displaced, Expired, Nothing, ONLY_CLASS, Refused};
use super::ops::{Enqueue, Line, Op, Time};

/// Why a run stopped.
#[derive(Debug)]
pub(super) enum Stop {
    /// A line that can't be done.
    Line(String),
    /// An answer that can't be written.
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
    /// By the policy all requests are one flow.
    flowless: bool,
    gate: bool,
    /// `None` until the first operation, whose time is when everything begins.
    engine: Option<Engine>,
    now: Instant,
    /// Policy classes by name, and in which set they are.
    classes: HashMap<Box<str>, u16>,
    endpoints: Endpoints,
    requests: Requests,
    out: W,
}

impl<W: Write> Run<W> {
    /// A pool in which nothing has happened; answers go to `out`.
    pub(super) fn new(pool: Pool, gate: bool, out: W) -> Self {
        let mut policy = pool.policy;
        if !gate {
            policy.gate = Gate::Manual;
            // What servers work on holds nobody back: whose head may not go is said by `blocked`.
            for class in policy.classes.iter_mut().flat_map(|set| &mut set.classes) {
                (class.busy_tokens, class.busy_fraction) = (None, None);
            }
        }
        let sets = (0..).zip(&policy.classes);
        let classes =
            sets.flat_map(|(set, it)| it.classes.iter().map(move |class| (class.name.clone(), set)));
        let configured = pool.endpoints.iter().map(|endpoint| EndpointState {
            weight: endpoint.weight,
            ..EndpointState::default()
        });
        Self {
            classes: classes.collect(),
            endpoints: Endpoints::new(configured.collect()),
            flowless: pool.flow_key.is_empty(),
            policy,
            gate,
            engine: None,
            now: Instant::ZERO,
            requests: Requests::default(),
            out,
        }
    }

    /// Does what a line says, and answers.
    ///
    /// # Errors
    /// When the line can't be done, or an answer can't be written.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<(), Stop> {
        let Line { t, op } = Line::read(line).map_err(Stop::Line)?;
        if t.at < self.now {
            return Err(Stop::Line(format!(
                "t: {} lies before the operation above",
                t.written
            )));
        }
        self.begin(t.at);
        if self.gate {
            self.run_timers(t.at)?;
        }
        self.now = t.at;
        self.act(t, op)
    }

    /// What was answered is out.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn begin(&mut self, now: Instant) {
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
        self.engine
            .as_mut()
            .expect("invariant: the engine begins with the first line")
    }

    fn act(&mut self, t: Time<'_>, op: Op<'_>) -> Result<(), Stop> {
        let needs = |gate: &str, name| Stop::Line(format!("op: `{name}` is for a run {gate} --gate"));
        match op {
            Op::Enqueue(request) => self.enqueue(t, &request),
            Op::Dispatch(_) if self.gate => Err(needs("without", "dispatch")),
            Op::Dispatch(blocked) => self.dispatch(t, blocked),
            Op::Settle { id, tokens, output } => {
                let usage = Usage {
                    prompt: Some(Tokens(tokens)),
                    cached: None,
                    output: Some(Tokens(output)),
                };
                self.settle(t, &id, Service::Served(usage))
            }
            Op::Refund(id) => self.settle(t, &id, Service::Nothing),
            Op::Cancel(id) => match self.requests.get(&id) {
                Some(known) => self.tell(t, Input::Cancel(known.id), None),
                None => Ok(()),
            },
            Op::Expire => {
                self.engine().handle_timeout(t.at);
                self.answer(t.written, None).map(drop)
            }
            Op::Complete(_) if !self.gate => Err(needs("with", "complete")),
            Op::Complete(id) => self.complete(t, &id),
            Op::Endpoints(_) if !self.gate => Err(needs("with", "endpoints")),
            Op::Endpoints(ready) => self.set_ready(t, ready),
        }
    }

    fn enqueue(&mut self, t: Time<'_>, from: &Enqueue<'_>) -> Result<(), Stop> {
        let class_set = self.class_set(from.class.as_deref())?;
        let Some(id) = self.requests.add(&from.id) else {
            return Err(Stop::Line(format!("id: `{}` waits or runs already", from.id)));
        };
        let class = from.class.as_deref().map(|name| ClassKey::Named(name.into()));
        let request = Request {
            arrived: t.at,
            flow: if self.flowless {
                Box::default()
            } else {
                (&*from.flow).into()
            },
            band: from.band(),
            class: class.unwrap_or_default(),
            class_set,
            prompt: Prompt::Tokens(Tokens(from.tokens())),
            cached: Tokens(from.cached()),
            expected_output: Some(Tokens(from.output())),
            strict: from.strict(),
            head_start: Duration::from_nanos(from.jump()),
            deadline: from.deadline(),
            ..Request::new(id)
        };
        self.tell(t, Input::Register(request), Some(id))
    }

    /// In which set a class is that a request names.
    fn class_set(&self, name: Option<&str>) -> Result<u16, Stop> {
        match name {
            None => Ok(0),
            Some(name) => match self.classes.get(name) {
                Some(&set) => Ok(set),
                None if name == ONLY_CLASS && self.classless() => Ok(0),
                None => Err(self.unknown_class("class", name)),
            },
        }
    }

    /// A request that names no model is in no class.
    fn classless(&self) -> bool {
        self.policy
            .classes
            .first()
            .is_none_or(|set| set.classes.is_empty())
    }

    fn unknown_class(&self, key: &str, name: &str) -> Stop {
        let mut names: Vec<&str> = self.classes.keys().map(|name| &**name).collect();
        names.sort_unstable();
        if self.classless() {
            names.push(ONLY_CLASS);
        }
        let names = names.join(", ");
        Stop::Line(format!(
            "{key}: there is no class `{name}` in the policy; there are {names}"
        ))
    }

    fn dispatch(&mut self, t: Time<'_>, blocked: Vec<Cow<'_, str>>) -> Result<(), Stop> {
        let mut held = false;
        for name in &blocked {
            self.class_set(Some(name))
                .map_err(|_| self.unknown_class("blocked", name))?;
            held |= self.classes.is_empty();
        }
        // The one class where none is configured has no name in the engine.
        if !held {
            let blocked = blocked.iter().map(|name| (&**name).into()).collect();
            self.engine().handle(t.at, Input::Dispatch { blocked });
        }
        if !self.answer(t.written, None)? {
            let nothing = Nothing {
                t: t.written,
                dispatch: None,
            };
            answer::write(&mut self.out, &nothing)?;
        }
        Ok(())
    }

    fn settle(&mut self, t: Time<'_>, name: &str, service: Service) -> Result<(), Stop> {
        let Some(known) = self.requests.running(name) else {
            return Ok(());
        };
        if !self.gate {
            self.requests.forget(known);
        }
        self.tell(t, Input::Settle { id: known, service }, None)
    }

    /// Its cost, unless settled already, stays as estimated.
    fn complete(&mut self, t: Time<'_>, name: &str) -> Result<(), Stop> {
        let Some(id) = self.requests.running(name) else {
            return Ok(());
        };
        self.requests.forget(id);
        let service = Service::Served(Usage::default());
        self.tell(t, Input::Completed { id, service }, None)
    }

    fn set_ready(&mut self, t: Time<'_>, ready: u32) -> Result<(), Stop> {
        for (id, state) in self.endpoints.set_ready(ready) {
            self.tell(t, Input::Endpoint { id, state }, None)?;
        }
        Ok(())
    }

    /// What is due by `until` happens at its own time.
    fn run_timers(&mut self, until: Instant) -> Result<(), Stop> {
        let mut last = None;
        while let Some(due) = self.engine().poll_timeout().filter(|&due| due <= until) {
            let at = due.max(self.now);
            self.now = at;
            self.engine().handle_timeout(at);
            let answered = self.answer(&answer::seconds(at), None)?;
            // The same timer again, which nothing came of: it waits for something else.
            if last == Some(due) && !answered {
                break;
            }
            last = Some(due);
        }
        Ok(())
    }

    fn tell(&mut self, t: Time<'_>, input: Input, newcomer: Option<RequestId>) -> Result<(), Stop> {
        self.engine().handle(t.at, input);
        self.answer(t.written, newcomer).map(drop)
    }

    /// Writes out what the engine decided; whether that was anything.
    fn answer(&mut self, t: &RawValue, newcomer: Option<RequestId>) -> Result<bool, Stop> {
        let mut answered = false;
        let mut bypass = None;
        while let Some(effect) = self.engine().poll_effect() {
            match effect {
                Effect::Grant { id, outcome, .. } => {
                    self.requests.run(id);
                    bypass = self.gate.then_some(outcome == Outcome::Bypassed);
                }
                Effect::Traced {
                    id,
                    class,
                    flow,
                    class_cost,
                    flow_cost,
                    deficits,
                } => {
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
                Effect::Reject { id, outcome, .. } => {
                    let name = self.requests.forget(id);
                    self.left(t, &name, outcome, newcomer == Some(id))?;
                    answered = true;
                }
                Effect::Cancelled { id, .. } => {
                    self.requests.forget(id);
                }
                Effect::Settled { .. } | Effect::UsageSettled { .. } => {}
            }
        }
        Ok(answered)
    }

    fn left(&mut self, t: &RawValue, name: &str, outcome: Outcome, newcomer: bool) -> io::Result<()> {
        if newcomer {
            let code = code_of(outcome).unwrap_or_else(|| outcome.as_str());
            answer::write(
                &mut self.out,
                &Refused {
                    t,
                    reject: name,
                    code,
                },
            )
        } else if outcome == Outcome::Displaced {
            answer::write(&mut self.out, &Displaced { t, displaced: name })
        } else {
            answer::write(&mut self.out, &Expired { t, expired: name })
        }
    }
}

/// Those of the configuration, and as many more of weight 1 as a script ever made ready.
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

    /// Those that change when the first `ready` are ready and no others.
    fn set_ready(&mut self, ready: u32) -> Vec<(EndpointId, EndpointState)> {
        let ready = ready as usize;
        let before = self.all.clone();
        self.all
            .resize_with(before.len().max(ready), EndpointState::default);
        for (at, state) in self.all.iter_mut().enumerate() {
            state.ready = at < ready;
        }
        let changed = |at: u32| before.get(at as usize) != self.all.get(at as usize);
        numbered(&self.all).filter(|&(id, _)| changed(id.0)).collect()
    }
}

fn numbered(all: &[EndpointState]) -> impl Iterator<Item = (EndpointId, EndpointState)> {
    (0..).map(EndpointId).zip(all.iter().copied())
}

/// Those that wait or run, by the names of the script and by the engine's.
#[derive(Default)]
struct Requests {
    next: u64,
    by_name: HashMap<Rc<str>, Known>,
    names: HashMap<RequestId, Rc<str>>,
}

#[derive(Clone, Copy)]
struct Known {
    id: RequestId,
    running: bool,
}

impl Requests {
    /// `None`: it is there already.
    fn add(&mut self, name: &str) -> Option<RequestId> {
        if self.by_name.contains_key(name) {
            return None;
        }
        let id = RequestId(self.next);
        self.next += 1;
        let name: Rc<str> = name.into();
        let known = Known { id, running: false };
        self.by_name.insert(name.clone(), known);
        self.names.insert(id, name);
        Some(id)
    }

    fn get(&self, name: &str) -> Option<Known> {
        self.by_name.get(name).copied()
    }

    fn running(&self, name: &str) -> Option<RequestId> {
        self.get(name).filter(|known| known.running).map(|known| known.id)
    }

    fn name(&self, id: RequestId) -> &str {
        self.names
            .get(&id)
            .expect("invariant: the engine knows only what the script told it")
    }

    fn run(&mut self, id: RequestId) {
        if let Some(known) = self.names.get(&id).and_then(|name| self.by_name.get_mut(name)) {
            known.running = true;
        }
    }

    fn forget(&mut self, id: RequestId) -> Rc<str> {
        let name = self.names.remove(&id).unwrap_or_default();
        self.by_name.remove(&name);
        name
    }
}
