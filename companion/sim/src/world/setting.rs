//! What a seed's world is like: how many of what, which policy, how fast, and which faults befall it.

use core::time::Duration;

use penstock_control::{EndpointSettings, FlowKey, Kept, MaxPriority, PoolSettings, Settings};
use penstock_engine::policy::{
    BandMode, Bands, CostUnit, Discipline, Flows, Gate, OutlierEjection, Overflow, Policy, Queue, StockUnit,
};
use penstock_engine::units::Decimal;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model::{Parameters, Targets};
use penstock_wire as wire;

use super::agenda::{MICRO, MILLI, Nanos, SECOND};
use super::dice::Dice;
use super::faults::Kind;

/// A pool, as everyone in the world knows it.
#[derive(Debug)]
pub(super) struct PoolSetting {
    pub(super) name: String,
    /// Addresses of its servers.
    pub(super) servers: Vec<String>,
    pub(super) policy: Policy,
    pub(super) hold: Duration,
    pub(super) open: bool,
    pub(super) requeues: u32,
    /// Stock is counted in tokens.
    pub(super) in_tokens: bool,
    pub(super) slo: SloPolicy,
    /// What an earlier life has learned.
    pub(super) kept: Option<Kept>,
    /// Requests that one server takes at most; `None`: stock isn't counted in requests.
    pub(super) server_bound: Option<u64>,
    /// What the pool takes at most while all its servers are ready.
    pub(super) pool_bound: Option<u64>,
}

/// What doesn't change while a world lasts.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) pools: Vec<PoolSetting>,
    pub(super) envoys: usize,
    /// Workers of one Envoy, the main thread's VM included.
    pub(super) workers: usize,
    pub(super) requests: u64,
    /// Mean time between two requests.
    pub(super) interval: Nanos,
    /// Mean time that a server takes.
    pub(super) service: Nanos,
    pub(super) delay: Nanos,
    /// No message takes longer than this.
    pub(super) delay_max: Nanos,
    /// The companion's driver takes its inbox in batches, up to this long after each other.
    pub(super) batch: Nanos,
    pub(super) startup_wait: Duration,
    pub(super) flows: u64,
    pub(super) leavers_percent: u64,
    pub(super) slow_bodies_percent: u64,
    pub(super) oddities_percent: u64,
    pub(super) faults: Vec<Kind>,
    pub(super) fault_interval: Nanos,
    pub(super) seed: u64,
}

/// What pools whose gate is the predicted iteration aim at,
const TARGETS: Targets = Targets {
    ttft_ms: Some(400.0),
    itl_ms: Some(40.0),
};
/// and what is taken to be known of their servers: some requests of the worlds fit, and some more don't.
const KEPT: Kept = Kept {
    parameters: Parameters {
        alpha_ms: 8.0,
        beta_ms: 0.5,
        gamma_ms: 0.005,
    },
    ttft_bias: 1.2,
};

fn quarters(of: u64) -> Decimal {
    Decimal::from_billionths(u128::from(of) * Decimal::ONE / 4)
}

impl Setting {
    pub(super) fn draw(seed: u64, dice: &mut Dice) -> Self {
        let mut pools: Vec<PoolSetting> = (0..dice.between(1, 2)).map(|number| pool(number, dice)).collect();
        let span = dice.one(&[5, 20, 20, 60, 120]) * SECOND;
        let requests = dice.between(200, 600);
        let interval = span / requests;
        let slots: u64 = pools
            .iter()
            .map(|it| it.servers.len() as u64 * it.server_bound.unwrap_or(4))
            .sum();
        let load_percent = dice.one(&[30, 60, 80, 110, 200]);
        let service = (slots * interval * load_percent / 100).clamp(MILLI, 20 * SECOND);
        for pool in &mut pools {
            // Most queues are such that most of what waits goes in the end.
            let ttl = Duration::from_nanos(service * dice.one(&[2, 10, 40, 40]));
            pool.policy.queue.ttl = ttl.clamp(Duration::from_millis(500), Duration::from_secs(120));
        }
        let delay = dice.one(&[50 * MICRO, 300 * MICRO, 2 * MILLI, 30 * MILLI]);
        let share = dice.one(&[0, 15, 15, 40, 40, 100, 100]);
        let faults: Vec<Kind> = Kind::ALL.into_iter().filter(|_| dice.percent(share)).collect();
        let stalls = faults.contains(&Kind::Stall);
        Self {
            envoys: usize::from(dice.percent(35)) + 1,
            workers: dice.one(&[1, 2, 2, 3, 4]),
            requests,
            interval,
            service,
            delay,
            delay_max: delay * 8 + if stalls { 3_500 * MILLI } else { 0 },
            batch: dice.one(&[0, 0, 500 * MICRO, 20 * MILLI]),
            startup_wait: Duration::from_millis(dice.one(&[0, 200, 2_000])),
            flows: dice.one(&[1, 3, 8, 40]),
            leavers_percent: dice.one(&[0, 3, 20]),
            slow_bodies_percent: dice.one(&[0, 5, 30]),
            oddities_percent: dice.one(&[0, 3]),
            fault_interval: span / dice.one(&[3, 10, 40, 200]),
            faults,
            pools,
            seed,
        }
    }

    /// What every filter is told; `number` names this version of it.
    pub(super) fn policy(&self, number: u64) -> wire::Policy {
        let header = |name: &str| wire::Source {
            from: Some(wire::source::From::Header(name.into())),
        };
        let pools = self.pools.iter().map(|pool| wire::Pool {
            name: pool.name.clone(),
            models: vec![format!("{}*", pool.name)],
            hold_ms: millis(pool.hold),
            fallback: if pool.open {
                wire::Fallback::Open.into()
            } else {
                wire::Fallback::Closed.into()
            },
            ttl_ms: millis(pool.policy.queue.ttl),
            no_endpoint_ttl_ms: millis(pool.policy.queue.no_endpoint_ttl),
            capacity_status: 503,
            endpoints: pool.servers.clone(),
            fallback_bound: pool.fallback_bound(self.envoys),
            fallback_bound_in_tokens: pool.in_tokens,
            prefix_hashes: false,
        });
        wire::Policy {
            digest: format!("p{number}"),
            routes: vec![wire::Route {
                path: "/v1/chat/completions".into(),
                api: wire::Api::ChatCompletions.into(),
            }],
            body_bytes_max: 100_000,
            identity: Some(wire::Identity {
                fairness_id: vec![header("x-flow")],
                priority: vec![header("x-priority")],
                trust: Some(wire::Trust {
                    all: true,
                    networks: Vec::new(),
                }),
                ..Default::default()
            }),
            pools: pools.collect(),
            tracing: false,
        }
    }

    /// As many sessions as there are when all is well; none: nobody knows.
    pub(super) fn sessions_expected(&self) -> Option<usize> {
        self.seed
            .is_multiple_of(2)
            .then_some(self.envoys * self.workers * 2)
    }

    /// Envoy's routes put the host that answers into the answer; else the filter asks for it.
    pub(super) fn routes_tell(&self) -> bool {
        !self.seed.is_multiple_of(3)
    }

    /// What a companion of that term is made with. `ready`: of each pool's servers.
    pub(super) fn settings(&self, term: u64, policy: u64, ready: &dyn Fn(&str) -> bool) -> Settings {
        let pools = self.pools.iter().map(|pool| PoolSettings {
            name: pool.name.clone(),
            models: vec![format!("{}*", pool.name)],
            endpoints: pool
                .servers
                .iter()
                .map(|address| EndpointSettings {
                    address: address.clone(),
                    weight: Decimal::whole(1),
                    ready: ready(address),
                    variant: "default".into(),
                    max_batch: 256,
                    taints: Vec::new(),
                })
                .collect(),
            policy: pool.policy.clone(),
            flow_key: vec![FlowKey::FairnessId],
            class_globs: Vec::new(),
            capacity_status: 503,
            requeues: pool.requeues,
            slo: pool.slo,
            reported: false,
            kept: pool
                .kept
                .map(|kept| ("default".into(), kept))
                .into_iter()
                .collect(),
            rewrite: Vec::new(),
        });
        Settings {
            pools: pools.collect(),
            policy: self.policy(policy),
            objectives: Vec::new(),
            max_priority: MaxPriority::default(),
            sessions_expected: self.sessions_expected(),
            startup_wait: self.startup_wait,
            flows_shown: 10,
            term,
            seed: self.seed,
        }
    }
}

impl PoolSetting {
    /// What one Envoy of so many may have in flight while no companion answers.
    fn fallback_bound(&self, envoys: usize) -> Option<u64> {
        let bound = self.pool_bound?;
        Some((bound / envoys as u64).max(1))
    }
}

fn pool(number: u64, dice: &mut Dice) -> PoolSetting {
    let name = format!("m{number}");
    let servers: Vec<String> = (0..dice.between(1, 4))
        .map(|server| format!("10.0.{number}.{server}:80"))
        .collect();
    let lower = dice.between(1, 10);
    let upper = lower + dice.below(5);
    let unit = if dice.percent(10) {
        StockUnit::Tokens
    } else {
        StockUnit::Requests
    };
    let (each, in_requests) = match unit {
        StockUnit::Requests => (1, true),
        StockUnit::Tokens => (100, false),
    };
    let all = quarters(upper * servers.len() as u64).ceil();
    let mode = if dice.percent(30) {
        BandMode::Weighted([3.0, 2.0, 1.0])
    } else {
        BandMode::Strict
    };
    let ceiling = dice.percent(15).then(|| quarters(3));
    let second = Duration::from_secs(1);
    let auto = dice.percent(20);
    PoolSetting {
        in_tokens: !in_requests && !auto,
        slo: SloPolicy {
            explicit: (auto && dice.percent(50)).then_some(TARGETS),
            ..SloPolicy::default()
        },
        kept: (auto && dice.percent(70)).then_some(KEPT),
        hold: dice.one(&[second / 2, 5 * second, 20 * second]),
        open: dice.percent(40),
        requeues: dice.one(&[0, 1, 3]),
        server_bound: (in_requests && !auto).then(|| quarters(upper).ceil().max(1)),
        pool_bound: (in_requests && !auto).then(|| all.max(1)),
        policy: Policy {
            queue: Queue {
                enabled: !dice.percent(3),
                total_capacity: dice.one(&[5, 20, 1_000, 1_000]),
                flow_capacity: dice.one(&[2, 10, 100, 100]),
                no_endpoint_ttl: second * dice.one(&[2, 10, 60]),
                overflow: dice.one(&[Overflow::Displace, Overflow::Reject]),
                max_rate: dice.percent(5).then_some(30.0),
                ..Queue::default()
            },
            gate: if auto {
                Gate::Auto {
                    initial: quarters(upper).max(Decimal::whole(1)),
                }
            } else {
                Gate::Bounded {
                    unit,
                    lower: quarters(lower * each),
                    upper: quarters(upper * each),
                    watermark: quarters(lower * each),
                }
            },
            bands: Bands {
                mode,
                ceilings: [None, None, ceiling],
            },
            flows: Flows {
                discipline: dice.one(&Discipline::ALL),
                cost: dice.one(&[CostUnit::Tokens, CostUnit::Requests]),
                max_in_flight: dice.percent(10).then_some(3),
                max_in_flight_per_endpoint: dice.percent(10).then_some(1),
                identities_max: dice.one(&[2, 1_000, 1_000]),
                ..Flows::default()
            },
            per_model: dice.percent(10),
            outlier_ejection: OutlierEjection::default(),
            ..Policy::default()
        },
        name,
        servers,
    }
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}
