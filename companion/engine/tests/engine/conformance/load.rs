//! A load that keeps everything backlogged, and a record of the dispatched requests and their costs.

use std::collections::{BTreeMap, VecDeque};

use penstock_engine::effect::Grant;
use penstock_engine::input::{Band, ClassKey, Prompt, Service, Usage};
use penstock_engine::policy::{
    BandMode, Bands, Class, ClassMode, ClassSet, CostUnit, Discipline, Flows, Gate, Policy, Queue,
};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Allowance, Effect, EndpointId, Input, Request, RequestId};

use crate::random::Rng;
use crate::support::{Harness, gate, policy};

/// A request with its estimated and its real size.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) place: Place,
    /// Estimated uncached prompt tokens; the expected output is 0.
    pub(crate) estimate: u64,
    /// Real prompt tokens.
    pub(crate) real: u64,
}

/// A flow with its band, class and model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) band: Band,
    pub(crate) class: &'static str,
    pub(crate) model: &'static str,
    pub(crate) flow: &'static str,
}

impl Place {
    pub(crate) const fn default_for(flow: &'static str) -> Self {
        Self { band: Band::Default, class: "chat", model: "m", flow }
    }
}

/// A policy that the suite runs with.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) discipline: Discipline,
    pub(crate) unit: CostUnit,
    pub(crate) weighted_bands: bool,
    pub(crate) classes: bool,
    pub(crate) per_model: bool,
    /// Endpoints are gated by allowances that allow the same number of requests.
    pub(crate) auto: bool,
}

/// Weights of the bands: requests a visit, or hundreds of tokens a visit.
pub(crate) const BAND_WEIGHTS: [f64; 3] = [7.0, 2.0, 1.0];
/// Quanta of the classes `chat` and `batch`, in tokens.
pub(crate) const QUANTA: [u64; 2] = [512, 2_048];
/// Weight of the flow `heavy`; other flows have 1.
pub(crate) const HEAVY: f64 = 3.0;

impl Case {
    pub(crate) fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for discipline in Discipline::ALL {
            // A tree per model under allowances covers nothing beyond the two cases alone.
            for bits in (0..32).filter(|bits| bits & 24 != 24) {
                cases.push(Self {
                    discipline,
                    unit: if bits & 1 == 0 { CostUnit::Tokens } else { CostUnit::Requests },
                    weighted_bands: bits & 2 != 0,
                    classes: bits & 4 != 0,
                    per_model: bits & 8 != 0,
                    auto: bits & 16 != 0,
                });
            }
        }
        cases
    }

    pub(crate) fn policy(&self, slots: u64) -> Policy {
        let class = |name: &str, quantum| Class::new(name, quantum);
        let set = ClassSet {
            classes: vec![class("chat", QUANTA[0]), class("batch", QUANTA[1])],
            ..ClassSet::default()
        };
        Policy {
            gate: if self.auto {
                let initial = Decimal::whole(slots);
                Gate::Auto { initial }
            } else {
                gate(slots, slots)
            },
            bands: Bands {
                mode: if self.weighted_bands { BandMode::Weighted(BAND_WEIGHTS) } else { BandMode::Strict },
                ..Bands::default()
            },
            per_model: self.per_model,
            class_mode: ClassMode::Exact,
            classes: if self.classes { vec![set] } else { Vec::new() },
            flows: Flows {
                discipline: self.discipline,
                cost: self.unit,
                weights: BTreeMap::from([("heavy".into(), HEAVY)]),
                ..Flows::default()
            },
            queue: Queue { flow_capacity: u64::MAX, total_capacity: u64::MAX, ..Queue::default() },
            ..policy()
        }
    }

    /// The place where a request of `place` counts for the share of its flow: under the disciplines `usage` and `vtc` one
    /// place stands for all bands and classes of a flow and model.
    pub(crate) fn share_of(&self, place: &Place) -> Place {
        if !matches!(self.discipline, Discipline::Usage | Discipline::Vtc) {
            return place.clone();
        }
        Place { model: place.model, ..Place::default_for(place.flow) }
    }

    /// The places with waiting requests, for a load that covers all levels of this case.
    pub(crate) fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for band in [Band::Critical, Band::Default, Band::Sheddable] {
            for class in ["chat", "batch"] {
                for model in ["m", "n"] {
                    for flow in ["light", "heavy"] {
                        places.push(Place { band, class, model, flow });
                    }
                }
            }
        }
        places.retain(|place| {
            (self.weighted_bands || place.band == Band::Default)
                && (self.classes || place.class == "chat")
                && (self.per_model || place.model == "m")
        });
        places
    }
}

/// A dispatched request.
#[derive(Clone, Debug)]
pub(crate) struct Dispatched {
    pub(crate) id: u64,
    pub(crate) job: Job,
    /// Charged cost.
    pub(crate) cost: u64,
}

/// An engine under load.
pub(crate) struct Load {
    pub(crate) harness: Harness,
    jobs: Vec<Job>,
    /// Number of inputs. Only some of them are audited, because an audit takes time proportional to the queue.
    inputs: u64,
    pub(crate) running: VecDeque<u64>,
    pub(crate) dispatched: Vec<Dispatched>,
    /// Settled cost by place.
    pub(crate) served: BTreeMap<Place, u64>,
}

impl Load {
    pub(crate) fn new(policy: Policy, endpoints: u32) -> Self {
        let gate = policy.gate;
        let mut harness = Harness::new(policy, endpoints);
        if let Gate::Auto { initial } = gate {
            for id in (1..=endpoints).map(EndpointId) {
                let allowance = Some(unlimited(initial.ceil()));
                assert_eq!(harness.handle(Input::Allowance { id, allowance }), []);
            }
        }
        Self {
            harness,
            jobs: Vec::new(),
            inputs: 0,
            running: VecDeque::new(),
            dispatched: Vec::new(),
            served: BTreeMap::new(),
        }
    }

    /// Registers a request for the job, changed by `with`, and returns its id.
    pub(crate) fn register_with(&mut self, job: Job, with: impl FnOnce(&mut Request)) -> u64 {
        let id = self.jobs.len() as u64;
        let mut request = Request {
            flow: job.place.flow.into(),
            band: job.place.band,
            class: ClassKey::Family(job.place.class.into()),
            model: job.place.model.into(),
            prompt: Prompt::Tokens(Tokens(job.estimate)),
            expected_output: Some(Tokens(0)),
            ..Request::new(RequestId(id))
        };
        with(&mut request);
        self.jobs.push(job);
        self.handle(Input::Register(request));
        id
    }

    /// Uses up an id without registering a request.
    pub(crate) fn skip(&mut self) {
        self.jobs.push(Job { place: Place::default_for("skipped"), estimate: 1, real: 1 });
    }

    pub(crate) fn register(&mut self, job: Job) -> u64 {
        self.register_with(job, |_| ())
    }

    pub(crate) fn handle(&mut self, input: Input) {
        self.harness.engine.handle(self.harness.now, input);
        self.inputs += 1;
        if self.inputs.is_multiple_of(64) {
            self.harness.engine.audit().expect("all invariants hold");
        }
        while let Some(effect) = self.harness.engine.poll_effect() {
            match effect {
                Effect::Grant(Grant { id, cost, .. }) => {
                    self.running.push_back(id.0);
                    let job = self.jobs[id.0 as usize].clone();
                    self.dispatched.push(Dispatched { id: id.0, job, cost: cost.0 });
                }
                Effect::Settled { id, cost, .. } => {
                    let place = self.jobs[id.0 as usize].place.clone();
                    *self.served.entry(place).or_default() += cost.0;
                }
                Effect::Reject(_) => panic!("rejected: {effect:?}"),
                Effect::Cancelled { .. }
                | Effect::Evict(_)
                | Effect::Traced(_)
                | Effect::UsageSettled(_)
                | Effect::UsageRunning(_)
                | Effect::Budget(_) => {}
            }
        }
    }

    /// Completes the request that has run longest, with its real cost.
    pub(crate) fn complete(&mut self) {
        let id = self.running.pop_front().expect("a request runs");
        let usage = Usage {
            prompt: Some(Tokens(self.jobs[id as usize].real)),
            cached: None,
            output: Some(Tokens(0)),
        };
        let service = Service::Served(usage);
        self.handle(Input::Completed { id: RequestId(id), service });
    }

    /// Cancels every request that waits.
    pub(crate) fn cancel_waiting(&mut self) {
        for id in 0..self.jobs.len() as u64 {
            self.handle(Input::Cancel(RequestId(id)));
        }
    }

    pub(crate) fn refund(&mut self, id: u64) {
        self.running.retain(|&other| other != id);
        let service = Service::Nothing;
        self.handle(Input::Completed { id: RequestId(id), service });
    }

    /// Total charged cost of the dispatched requests from position `from` on, for places that match.
    pub(crate) fn charged(&self, start: usize, matches: impl Fn(&Place) -> bool) -> u64 {
        let dispatched = self.dispatched[start..].iter();
        dispatched.filter(|dispatched| matches(&dispatched.job.place)).map(|dispatched| dispatched.cost).sum()
    }
}

/// An allowance that allows `requests` requests of any size.
pub(crate) fn unlimited(requests: u64) -> Allowance {
    Allowance {
        alpha_ms: 1.0,
        beta_ms: 0.001,
        gamma_ms: 0.001,
        iteration_ms_max: f64::INFINITY,
        first_token_ms_max: f64::INFINITY,
        ttft_bias: 1.0,
        kv_tokens_max: None,
        requests_max: Some(requests),
        sequences_max: None,
        typical: requests,
        rate: None,
    }
}

/// A job at `place` with an estimated and a real size of 50 to 200 tokens.
pub(crate) fn random_job(rng: &mut Rng, place: &Place) -> Job {
    Job { place: place.clone(), estimate: 50 + rng.below(151), real: 50 + rng.below(151) }
}
