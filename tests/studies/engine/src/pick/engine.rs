//! The whole engine with a manual gate: an enqueue is a complete registration, a pick is a decision with its charge
//! and its effect.

use std::time::Duration;

use penstock_engine::effect::Grant;
use penstock_engine::input::{ClassKey, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{Class, ClassSet, Discipline, Flows, Gate, Queue};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Engine, Input, Instant, Policy, Request, RequestId};

use super::{Item, Subject, quantum};

pub(crate) struct Whole {
    engine: Engine,
    now: u64,
}

impl Whole {
    fn handle(&mut self, input: Input) {
        self.now += 1;
        self.engine.handle(Instant::from_nanos(self.now), input);
    }
}

impl Subject for Whole {
    type Request = Request;

    const NAME: &'static str = "Penstock, whole engine";

    fn new(classes: usize) -> Self {
        let set = ClassSet {
            classes: (0..classes)
                .map(|class| Class::new(&format!("class-{class}"), quantum(class)))
                .collect(),
            ..ClassSet::default()
        };
        let policy = Policy {
            queue: Queue {
                total_capacity: u64::MAX,
                total_bytes: u64::MAX,
                flow_capacity: u64::MAX,
                ttl: Duration::from_secs(3_600),
                ..Queue::default()
            },
            gate: Gate::Manual,
            classes: vec![set],
            flows: Flows { discipline: Discipline::Fifo, ..Flows::default() },
            ..Policy::default()
        };
        let mut whole = Self { engine: Engine::new(policy, 1, Instant::ZERO), now: 0 };
        whole.handle(Input::Endpoint { id: EndpointId(1), state: EndpointState::default() });
        whole.handle(Input::Ready);
        whole
    }

    fn prepare(&self, item: Item) -> Request {
        Request {
            class: ClassKey::Named(format!("class-{}", item.class).into()),
            model: "m".into(),
            prompt: Prompt::Tokens(Tokens(item.cost)),
            expected_output: Some(Tokens(1)),
            ..Request::new(RequestId(item.id))
        }
    }

    fn enqueue(&mut self, request: Request) {
        self.handle(Input::Register(request));
    }

    fn pick(&mut self) -> u64 {
        self.handle(Input::Dispatch { blocked: Vec::new() });
        match self.engine.poll_effect() {
            Some(Effect::Grant(Grant { id, .. })) => id.0,
            other => panic!("no grant but {other:?}"),
        }
    }

    fn end(&mut self, id: u64) {
        self.handle(Input::Settle { id: RequestId(id), service: Service::Served(Usage::default()) });
        while self.engine.poll_effect().is_some() {}
    }
}
