//! The scenario of a seed: pools, Envoys, load, policies, and the kinds of faults.

mod budgets;

use core::time::Duration;

use penstock_control::{CreditSettings, EndpointSettings, Kept, PoolSettings, Settings};
use penstock_engine::policy::{
    BandMode, Bands, CostUnit, Discipline, ExtraPlaces, Failing, Flows, Gate, OutlierEjection, Overflow,
    Policy, Queue, StockUnit,
};
use penstock_engine::units::Decimal;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model::{Parameters, Targets};
use penstock_wire as wire;

use super::faults::FaultKind;
use super::rng::Rng;
use super::time::{MICRO, MILLI, Nanos, SECOND};

#[derive(Debug)]
pub(super) struct PoolScenario {
    pub(super) name: String,
    /// Addresses of the pool's servers.
    pub(super) servers: Vec<String>,
    pub(super) policy: Policy,
    pub(super) hold: Duration,
    pub(super) open: bool,
    /// `None`: until the ttl.
    pub(super) requeues: Option<u32>,
    /// `None`: filters admit no request by themselves.
    pub(super) credit: Option<CreditSettings>,
    /// Whether stock is counted in tokens.
    pub(super) in_tokens: bool,
    pub(super) slo: SloPolicy,
    /// Parameters that an earlier companion has learned.
    pub(super) kept: Option<Kept>,
    /// The most requests at one server; `None`: stock isn't counted in requests.
    pub(super) server_bound: Option<u64>,
    /// The most requests at the pool's servers while all of them are ready; `None`: stock isn't counted in requests.
    pub(super) pool_bound: Option<u64>,
    /// Requests of tenants with nothing running at one server beyond its bound.
    pub(super) server_extra: u64,
}

/// The properties of a world that stay the same for its whole run.
#[derive(Debug)]
pub(super) struct Scenario {
    pub(super) pools: Vec<PoolScenario>,
    pub(super) envoys: usize,
    /// VMs of one Envoy, including the main thread's.
    pub(super) workers: usize,
    pub(super) requests: u64,
    /// Mean time between two requests.
    pub(super) interval: Nanos,
    /// Mean time of a request at a server.
    pub(super) service: Nanos,
    /// Mean network delay of a message.
    pub(super) delay: Nanos,
    /// The longest delay of a message.
    pub(super) delay_max: Nanos,
    /// The longest time between an event's arrival in the companion's inbox and the batch that processes it.
    pub(super) batch: Nanos,
    pub(super) startup_wait: Duration,
    pub(super) flows: u64,
    pub(super) cancel_percent: u64,
    pub(super) slow_bodies_percent: u64,
    pub(super) malformed_percent: u64,
    pub(super) faults: Vec<FaultKind>,
    pub(super) fault_interval: Nanos,
    pub(super) companions: usize,
    /// Duration of the leader's lease; 0: there is one companion, without a lease.
    pub(super) lease: Nanos,
    pub(super) seed: u64,
}

/// Targets of pools whose gate is the predicted iteration.
const TARGETS: Targets = Targets { ttft_ms: Some(400.0), itl_ms: Some(40.0) };
/// Learned parameters of those pools. With them, some of a world's requests fit within the targets, and more don't.
const KEPT: Kept =
    Kept { parameters: Parameters { alpha_ms: 8.0, beta_ms: 0.5, gamma_ms: 0.005 }, ttft_bias: 1.2 };

fn quarters(count: u64) -> Decimal {
    Decimal::from_billionths(u128::from(count) * Decimal::ONE / 4)
}

impl Scenario {
    pub(super) fn draw(seed: u64, rng: &mut Rng) -> Self {
        let mut pools: Vec<PoolScenario> = (0..rng.between(1, 2)).map(|number| pool(number, rng)).collect();
        allow_credit(&mut pools, seed);
        allow_extra_places(&mut pools, seed);
        allow_evictions(&mut pools, seed);
        let (companions, lease) = replicas(rng);
        // A takeover with missing filters takes several seconds.
        let spans = if lease > 0 { [20, 40, 40, 60, 120] } else { [5, 20, 20, 60, 120] };
        let span = rng.choose(&spans) * SECOND;
        let requests = rng.between(200, 600);
        let interval = span / requests;
        let slots: u64 =
            pools.iter().map(|pool| pool.servers.len() as u64 * pool.server_bound.unwrap_or(4)).sum();
        let load_percent = rng.choose(&[30, 60, 80, 110, 200]);
        let service = (slots * interval * load_percent / 100).clamp(MILLI, 20 * SECOND);
        for pool in &mut pools {
            // With most of these values, most waiting requests are granted in the end.
            let ttl = Duration::from_nanos(service * rng.choose(&[2, 10, 40, 40]));
            pool.policy.queue.ttl = ttl.clamp(Duration::from_millis(500), Duration::from_secs(120));
        }
        let delay = rng.choose(&[50 * MICRO, 300 * MICRO, 2 * MILLI, 30 * MILLI]);
        let share = rng.choose(&[0, 15, 15, 40, 40, 100, 100]);
        let mut faults: Vec<FaultKind> = FaultKind::ALL
            .iter()
            .copied()
            .filter(|kind| !kind.needs_replicas() && rng.percent(share))
            .collect();
        if lease > 0 {
            add_faults_among_companions(&mut faults, share, rng);
        }
        // A configuration has no wait of 0. Without other companions it changes nothing.
        let startup_wait_min = if lease > 0 { 50 } else { 0 };
        let stalls = faults.contains(&FaultKind::StreamStall) || faults.contains(&FaultKind::EnvoyCutOff);
        let scenario = Self {
            envoys: envoys(lease, rng),
            workers: rng.choose(&[1, 2, 2, 3, 4]),
            requests,
            interval,
            service,
            delay,
            delay_max: delay * 8 + if stalls { 3_500 * MILLI } else { 0 },
            batch: rng.choose(&[0, 0, 500 * MICRO, 20 * MILLI]),
            startup_wait: Duration::from_millis(rng.choose(&[startup_wait_min, 200, 2_000])),
            flows: rng.choose(&[1, 3, 8, 40]),
            cancel_percent: rng.choose(&[0, 3, 20]),
            slow_bodies_percent: rng.choose(&[0, 5, 30]),
            malformed_percent: rng.choose(&[0, 3]),
            fault_interval: span / rng.choose(if lease > 0 { &[3, 10, 20, 40] } else { &[3, 10, 40, 200] }),
            faults,
            companions,
            lease,
            pools,
            seed,
        };
        scenario.with_named_tenants().with_budgets()
    }

    /// Gives the first tenant a weight in some of the worlds, by random choices of their own: it has an account of its own there,
    /// however many tenants share.
    fn with_named_tenants(mut self) -> Self {
        let rng = &mut Rng::new(self.seed ^ 0x4e41_4d45);
        for pool in &mut self.pools {
            if rng.percent(50) {
                let weight = rng.choose(&[0.5, 3.0]);
                pool.policy.flows.weights.insert("f0".into(), weight);
            }
        }
        self
    }

    /// The rate of a clock, in thousandths of the world's.
    pub(super) fn clock_rate(&self, rng: &mut Rng) -> u64 {
        match self.lease {
            0 => 1_000,
            _ => rng.between(950, 1_050),
        }
    }

    /// The policy of this version, as filters receive it.
    pub(super) fn policy(&self, version: u64) -> wire::Policy {
        let header = |name: &str| wire::Source { from: Some(wire::source::From::Header(name.into())) };
        let pools = self.pools.iter().map(|pool| wire::Pool {
            name: pool.name.clone(),
            models: vec![format!("{}*", pool.name)],
            hold_ms: millis(pool.hold),
            fallback: if pool.open { wire::Fallback::Open.into() } else { wire::Fallback::Closed.into() },
            ttl_ms: millis(pool.policy.queue.ttl),
            no_endpoint_ttl_ms: millis(pool.policy.queue.no_endpoint_ttl),
            capacity_status: 503,
            endpoints: pool.servers.clone(),
            fallback_bound: pool.fallback_bound(self.envoys),
            fallback_bound_in_tokens: pool.in_tokens,
            fallback_bound_in_sequences: false,
            is_default: false,
            prefix_hashes: false,
            first_token: pool.policy.counts_first_tokens(),
            include_usage: false,
            first_byte_ms: None,
            keep_alive_ms: None,
            idle_ms: None,
            requeue_on: Some(wire::RequeueOn {
                connect: true,
                reset: true,
                statuses: vec![429, 500, 502, 503, 504],
            }),
        });
        wire::Policy {
            digest: format!("p{version}"),
            routes: vec![wire::Route {
                path: "/v1/chat/completions".into(),
                api: wire::Api::ChatCompletions.into(),
                ..wire::Route::default()
            }],
            others_pass: false,
            body_bytes_max: 100_000,
            identity: Some(wire::Identity {
                fairness_id: vec![header("x-flow")],
                priority: vec![header("x-priority")],
                trust: Some(wire::Trust { all: true, networks: Vec::new() }),
                ..Default::default()
            }),
            pools: pools.collect(),
            tracing: false,
            session_per_pool: false,
        }
    }

    /// The number of sessions without faults; `None` in scenarios whose companion isn't configured with it.
    pub(super) fn sessions_expected(&self) -> Option<usize> {
        self.seed.is_multiple_of(2).then_some(self.envoys * self.workers * 2)
    }

    /// Whether Envoy's routes put the upstream's address into a response header. Otherwise the filter reads the
    /// upstream's address from Envoy's properties.
    pub(super) fn routes_set_served_header(&self) -> bool {
        !self.seed.is_multiple_of(3)
    }

    /// A companion's settings. `ready` returns whether the server of this address passes its health check.
    pub(super) fn settings(&self, term: u64, policy: u64, ready: &dyn Fn(&str) -> bool) -> Settings {
        let pools = self.pools.iter().map(|pool| PoolSettings {
            name: pool.name.clone(),
            models: vec![format!("{}*", pool.name)],
            endpoints: pool
                .servers
                .iter()
                .map(|address| EndpointSettings {
                    address: address.clone(),
                    ready: ready(address),
                    ..EndpointSettings::default()
                })
                .collect(),
            policy: pool.policy.clone(),
            requeues: pool.requeues,
            resets: 1,
            credit: pool.credit,
            slo: pool.slo,
            reported: !pool.policy.flows.budgets.is_empty(),
            kept: pool.kept.map(|kept| ("default".into(), kept)).into_iter().collect(),
            ..PoolSettings::default()
        });
        Settings {
            pools: pools.collect(),
            policy: self.policy(policy),
            sessions_expected: self.sessions_expected(),
            startup_wait: self.startup_wait,
            flows_shown: 10,
            term,
            is_replicated: self.lease > 0,
            seed: self.seed,
            ..Settings::default()
        }
    }
}

impl PoolScenario {
    /// The most requests that one of these Envoys may have in flight while no companion answers.
    fn fallback_bound(&self, envoys: usize) -> Option<u64> {
        let bound = self.pool_bound?;
        Some((bound / envoys as u64).max(1))
    }
}

/// In half of all worlds filters may admit requests by themselves, in most of them at servers with many places, because half of the places
/// is what is given at most. Drawn from a generator of its own, so that nothing else of a seed depends on it.
fn allow_credit(pools: &mut [PoolScenario], seed: u64) {
    let rng = &mut Rng::new(!seed);
    if rng.percent(50) {
        return;
    }
    for pool in pools {
        pool.credit = Some(CreditSettings {
            busy_min: rng.choose(&[1, 2, 8]).try_into().unwrap_or(u32::MAX),
            ..CreditSettings::default()
        });
        let factor = rng.choose(&[1_u128, 8, 8, 32]);
        let scaled = |bound: Decimal| Decimal::from_billionths(bound.billionths() * factor);
        if let Gate::Bounded { unit: unit @ StockUnit::Requests, lower, upper, watermark } = pool.policy.gate
        {
            pool.policy.gate = Gate::Bounded {
                unit,
                lower: scaled(lower),
                upper: scaled(upper),
                watermark: scaled(watermark),
            };
            pool.server_bound = Some(scaled(upper).ceil().max(1));
            let servers = pool.servers.len() as u128;
            let whole = Decimal::from_billionths(scaled(upper).billionths() * servers);
            pool.pool_bound = Some(whole.ceil().max(1));
        }
    }
}

/// In most worlds tenants with nothing running may go beyond the bounds. Drawn from a generator of its own, like the credit.
fn allow_extra_places(pools: &mut [PoolScenario], seed: u64) {
    let rng = &mut Rng::new(seed ^ 0x6964_6c65);
    for pool in pools {
        let tenth = Decimal::from_billionths(Decimal::ONE / 10);
        let places = rng.choose(&[
            ExtraPlaces::NONE,
            ExtraPlaces::Part(tenth),
            ExtraPlaces::Part(Decimal::whole(1)),
            ExtraPlaces::Count(2),
        ]);
        pool.policy.extra_for_idle_flows = places;
        if let Some(bound) = pool.server_bound {
            pool.server_extra = places.above(bound, StockUnit::Requests);
        }
    }
}

/// In half of the pools, running sheddable requests end for critical ones that wait. Drawn from a generator of its own, like the credit.
fn allow_evictions(pools: &mut [PoolScenario], seed: u64) {
    let rng = &mut Rng::new(seed ^ 0x6576_6963);
    for pool in pools {
        let after = Duration::from_millis(rng.choose(&[1, 100, 1_000]));
        pool.policy.eviction = rng.percent(50).then_some(after);
    }
}

/// The number of companions, and the duration of their lease.
fn replicas(rng: &mut Rng) -> (usize, Nanos) {
    if rng.percent(60) {
        return (1, 0);
    }
    (rng.choose(&[2, 2, 3]), rng.between(1, 4) * SECOND)
}

/// The faults of several companions are half of all, and the leader's end is the most frequent one.
fn add_faults_among_companions(faults: &mut Vec<FaultKind>, share: u64, rng: &mut Rng) {
    faults.retain(|kind| *kind != FaultKind::OlderCompanion);
    for kind in FaultKind::ALL.iter().copied().filter(|kind| kind.needs_replicas()) {
        if rng.percent(share.max(30)) {
            let weight = if kind == FaultKind::LeaderKill { 8 } else { 3 };
            faults.extend(core::iter::repeat_n(kind, weight));
        }
    }
}

/// With several companions, more worlds have Envoys that follow different ones.
fn envoys(lease: Nanos, rng: &mut Rng) -> usize {
    match lease {
        0 => usize::from(rng.percent(35)) + 1,
        _ => rng.choose(&[1, 2, 2, 3]),
    }
}

fn pool(number: u64, rng: &mut Rng) -> PoolScenario {
    let name = format!("m{number}");
    let servers: Vec<String> =
        (0..rng.between(1, 4)).map(|server| format!("10.0.{number}.{server}:80")).collect();
    let lower = rng.between(1, 10);
    let upper = lower + rng.below(5);
    let unit = if rng.percent(10) { StockUnit::Tokens } else { StockUnit::Requests };
    let (scale, in_requests) = match unit {
        StockUnit::Requests | StockUnit::Sequences => (1, true),
        StockUnit::Tokens => (100, false),
    };
    let pool_bound = quarters(upper * servers.len() as u64).ceil();
    let mode = if rng.percent(30) { BandMode::Weighted([3.0, 2.0, 1.0]) } else { BandMode::Strict };
    let ceiling = rng.percent(15).then(|| quarters(3));
    let second = Duration::from_secs(1);
    let auto = rng.percent(20);
    let gate = if auto {
        Gate::Auto { initial: quarters(upper).max(Decimal::whole(1)) }
    } else {
        Gate::Bounded {
            unit,
            lower: quarters(lower * scale),
            upper: quarters(upper * scale),
            watermark: quarters(lower * scale),
        }
    };
    PoolScenario {
        in_tokens: !in_requests && !auto,
        slo: SloPolicy { explicit: (auto && rng.percent(50)).then_some(TARGETS), ..SloPolicy::default() },
        kept: (auto && rng.percent(70)).then_some(KEPT),
        hold: rng.choose(&[second / 2, 5 * second, 20 * second]),
        open: rng.percent(40),
        requeues: rng.choose(&[Some(0), Some(1), Some(3), None]),
        credit: None,
        server_bound: (in_requests && !auto).then(|| quarters(upper).ceil().max(1)),
        pool_bound: (in_requests && !auto).then(|| pool_bound.max(1)),
        server_extra: 0,
        policy: policy(rng, mode, ceiling, gate),
        name,
        servers,
    }
}

fn policy(rng: &mut Rng, mode: BandMode, ceiling: Option<Decimal>, gate: Gate) -> Policy {
    Policy {
        queue: Queue {
            enabled: !rng.percent(3),
            total_capacity: rng.choose(&[5, 20, 1_000, 1_000]),
            flow_capacity: rng.choose(&[2, 10, 100, 100]),
            no_endpoint_ttl: Duration::from_secs(1) * rng.choose(&[2, 10, 60]),
            overflow: rng.choose(&[Overflow::Displace, Overflow::Reject]),
            max_rate: rng.percent(5).then_some(30.0),
            ..Queue::default()
        },
        gate,
        bands: Bands { mode, ceilings: [None, None, ceiling] },
        flows: Flows {
            discipline: rng.choose(&Discipline::ALL),
            cost: rng.choose(&[CostUnit::Tokens, CostUnit::Requests]),
            max_in_flight: rng.percent(10).then_some(3),
            max_in_flight_per_endpoint: rng.percent(10).then_some(1),
            identities_max: rng.choose(&[2, 1_000, 1_000]),
            ..Flows::default()
        },
        per_model: rng.percent(10),
        outlier_ejection: OutlierEjection::default(),
        failing: Some(Failing::default()),
        ..Policy::default()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
