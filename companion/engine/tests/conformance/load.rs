//! A load under which everything is backlogged, and what everybody got of it.

use std::collections::{BTreeMap, VecDeque};

use penstock_engine::input::{Band, ClassKey, Prompt, Service, Usage};
use penstock_engine::policy::{
    BandMode, Bands, Class, ClassMode, ClassSet, CostUnit, Discipline, Flows, Gate, Policy, Queue,
};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Budget, Effect, EndpointId, Input, Request, RequestId};

use crate::dice::Dice;
use crate::support::{Bench, gate, policy};

/// What one request asks for and what it gets.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) place: Place,
    /// Uncached prompt tokens; nobody expects output.
    pub(crate) estimate: u64,
    pub(crate) real: u64,
}

/// A flow, in its band, class and model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) band: Band,
    pub(crate) class: &'static str,
    pub(crate) model: &'static str,
    pub(crate) flow: &'static str,
}

impl Place {
    pub(crate) const fn of(flow: &'static str) -> Self {
        Self {
            band: Band::Default,
            class: "chat",
            model: "m",
            flow,
        }
    }
}

/// A policy that the suite is run for.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) discipline: Discipline,
    pub(crate) unit: CostUnit,
    pub(crate) weighted_bands: bool,
    pub(crate) classes: bool,
    pub(crate) per_model: bool,
    /// Endpoints are gated by budgets that allow as many requests.
    pub(crate) auto: bool,
}

/// In requests a visit of a band or a flow is so many, in tokens so many times the other.
pub(crate) const BAND_WEIGHTS: [f64; 3] = [7.0, 2.0, 1.0];
pub(crate) const QUANTA: [u64; 2] = [512, 2_048];
pub(crate) const HEAVY: f64 = 3.0;

impl Case {
    pub(crate) fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for discipline in Discipline::ALL {
            // A tree per model under budgets is nothing that either alone isn't.
            for bits in (0..32).filter(|bits| bits & 24 != 24) {
                cases.push(Self {
                    discipline,
                    unit: if bits & 1 == 0 {
                        CostUnit::Tokens
                    } else {
                        CostUnit::Requests
                    },
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
                mode: if self.weighted_bands {
                    BandMode::Weighted(BAND_WEIGHTS)
                } else {
                    BandMode::Strict
                },
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
            queue: Queue {
                flow_capacity: u64::MAX,
                total_capacity: u64::MAX,
                ..Queue::default()
            },
            ..policy()
        }
    }

    /// Where somebody waits, under a load of everything that this case tells apart.
    pub(crate) fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        for band in [Band::Critical, Band::Default, Band::Sheddable] {
            for class in ["chat", "batch"] {
                for model in ["m", "n"] {
                    for flow in ["light", "heavy"] {
                        places.push(Place {
                            band,
                            class,
                            model,
                            flow,
                        });
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

/// What went, in the order in which it did.
#[derive(Clone, Debug)]
pub(crate) struct Gone {
    pub(crate) id: u64,
    pub(crate) ask: Ask,
    /// What it was charged.
    pub(crate) cost: u64,
}

/// An engine under load.
pub(crate) struct Load {
    pub(crate) bench: Bench,
    asks: Vec<Ask>,
    /// Inputs: an audit takes time proportional to what waits.
    said: u64,
    pub(crate) running: VecDeque<u64>,
    pub(crate) gone: Vec<Gone>,
    /// Settled cost.
    pub(crate) served: BTreeMap<Place, u64>,
}

impl Load {
    pub(crate) fn new(policy: Policy, endpoints: u32) -> Self {
        let gate = policy.gate;
        let mut bench = Bench::new(policy, endpoints);
        if let Gate::Auto { initial } = gate {
            for id in (1..=endpoints).map(EndpointId) {
                let budget = Some(endless(initial.ceil()));
                assert_eq!(bench.say(Input::Budget { id, budget }), []);
            }
        }
        Self {
            bench,
            asks: Vec::new(),
            said: 0,
            running: VecDeque::new(),
            gone: Vec::new(),
            served: BTreeMap::new(),
        }
    }

    /// Registers it as `with` makes it; returns its number.
    pub(crate) fn ask_with(&mut self, ask: Ask, with: impl FnOnce(&mut Request)) -> u64 {
        let id = self.asks.len() as u64;
        let mut request = Request {
            flow: ask.place.flow.into(),
            band: ask.place.band,
            class: ClassKey::Family(ask.place.class.into()),
            model: ask.place.model.into(),
            prompt: Prompt::Tokens(Tokens(ask.estimate)),
            expected_output: Some(Tokens(0)),
            ..Request::new(RequestId(id))
        };
        with(&mut request);
        self.asks.push(ask);
        self.say(Input::Register(request));
        id
    }

    /// A number that nobody gets.
    pub(crate) fn skip(&mut self) {
        self.asks.push(Ask {
            place: Place::of("nobody"),
            estimate: 1,
            real: 1,
        });
    }

    pub(crate) fn ask(&mut self, ask: Ask) -> u64 {
        self.ask_with(ask, |_| ())
    }

    pub(crate) fn say(&mut self, input: Input) {
        self.bench.engine.handle(self.bench.now, input);
        self.said += 1;
        if self.said.is_multiple_of(64) {
            self.bench.engine.audit().expect("all invariants hold");
        }
        while let Some(effect) = self.bench.engine.poll_effect() {
            match effect {
                Effect::Grant { id, cost, .. } => {
                    self.running.push_back(id.0);
                    let ask = self.asks[id.0 as usize].clone();
                    self.gone.push(Gone {
                        id: id.0,
                        ask,
                        cost: cost.0,
                    });
                }
                Effect::Settled { id, cost, .. } => {
                    let place = self.asks[id.0 as usize].place.clone();
                    *self.served.entry(place).or_default() += cost.0;
                }
                Effect::Reject { .. } | Effect::Cancelled { .. } => panic!("refused: {effect:?}"),
                Effect::Traced { .. } | Effect::UsageSettled { .. } => {}
            }
        }
    }

    /// The one that runs longest ends, with its real cost.
    pub(crate) fn complete(&mut self) {
        let id = self.running.pop_front().expect("something runs");
        let usage = Usage {
            prompt: Some(Tokens(self.asks[id as usize].real)),
            cached: None,
            output: Some(Tokens(0)),
        };
        let service = Service::Served(usage);
        self.say(Input::Completed {
            id: RequestId(id),
            service,
        });
    }

    pub(crate) fn refund(&mut self, id: u64) {
        self.running.retain(|&other| other != id);
        let service = Service::Nothing;
        self.say(Input::Completed {
            id: RequestId(id),
            service,
        });
    }

    /// Sums over those of `gone` that `of` names, from `from` on.
    pub(crate) fn charged(&self, from: usize, of: impl Fn(&Place) -> bool) -> u64 {
        let gone = self.gone[from..].iter();
        gone.filter(|gone| of(&gone.ask.place))
            .map(|gone| gone.cost)
            .sum()
    }
}

/// Of a server that takes `requests` at a time, however large they are.
pub(crate) fn endless(requests: u64) -> Budget {
    Budget {
        alpha_ms: 1.0,
        beta_ms: 0.001,
        gamma_ms: 0.001,
        iteration_ms_max: f64::INFINITY,
        first_token_ms_max: f64::INFINITY,
        ttft_bias: 1.0,
        kv_tokens_max: None,
        requests_max: Some(requests),
        typical: requests,
        rate: None,
    }
}

/// Of `place`, from 50 to 200 tokens, as estimated and in truth.
pub(crate) fn some(dice: &mut Dice, place: &Place) -> Ask {
    Ask {
        place: place.clone(),
        estimate: 50 + dice.below(151),
        real: 50 + dice.below(151),
    }
}
