//! The loop itself: whatever is due next happens, until the run is over.

use std::collections::HashMap;
use std::time::Duration;

use penstock_autopilot::{Autopilot, AutopilotEndpoint, AutopilotSettings, Granted, Scraped, Served};
use penstock_engine::input::{EndpointId, EndpointState, Prompt, Service, Usage};
use penstock_engine::policy::{Gate, StockUnit};
use penstock_engine::units::{Decimal, Tokens};
use penstock_engine::{Budget, Effect, Engine, Input, Instant, Policy, Request, RequestId};
use penstock_model::workload::Observed;
use penstock_model::{Parameters, Traffic, sizing, slo};
use penstock_model_server::{Hardware, HardwareError, Job, JobId, Kind, Server};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::record::{Finished, Record, Sample};
use super::setting::{Change, GateBy, Setting};
use super::traffic::{Arrivals, Drawn, Mix, factor};

/// Bytes of text that a token stands for, on the average,
const BYTES_A_TOKEN: f64 = 4.2;
/// and how much prompts differ in that.
const BYTES_SPREAD: f64 = 0.05;
/// How often servers are asked for what they say of themselves.
const SCRAPES: Duration = Duration::from_secs(1);
/// What a budget leaves of a target, as the autopilot does.
const MARGIN: f64 = 0.9;
/// What waits longer gives up; as the pool's default.
const TTL: Duration = Duration::from_secs(30);

/// Flies one loop to its end.
///
/// # Errors
/// A server can't be.
pub fn fly(setting: &Setting) -> Result<Record, HardwareError> {
    let mut flight = Flight::new(setting)?;
    while flight.step() {}
    Ok(flight.land())
}

/// A request on its way.
#[derive(Debug)]
struct Trip {
    drawn: Drawn,
    arrived: Instant,
    granted: Instant,
    first: Instant,
    server: usize,
}

/// What one server did since the window began.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    requests: f64,
    input: f64,
    output: f64,
    ttft_ms: f64,
    itl_ms: f64,
}

#[derive(Debug)]
struct Flight<'a> {
    setting: &'a Setting,
    now: Instant,
    rng: ChaCha8Rng,
    engine: Engine,
    autopilot: Autopilot,
    servers: Vec<Server>,
    trips: HashMap<u64, Trip>,
    next_id: u64,
    next_arrival: Option<Instant>,
    next_scrape: Instant,
    next_sample: Instant,
    sums: Vec<Sums>,
    in_flight: Vec<usize>,
    waiting: usize,
    changed: bool,
    record: Record,
}

impl<'a> Flight<'a> {
    fn new(setting: &'a Setting) -> Result<Self, HardwareError> {
        let now = Instant::ZERO;
        let servers = setting
            .servers
            .iter()
            .enumerate()
            .map(|(at, it)| {
                let seed = setting.seed.wrapping_mul(1_000).wrapping_add(at as u64);
                Ok(Server::new(it.hardware, seed)?.with_request_noise(it.request_noise))
            })
            .collect::<Result<Vec<_>, HardwareError>>()?;
        let count = servers.len();
        let mut flight = Self {
            setting,
            now,
            rng: ChaCha8Rng::seed_from_u64(setting.seed),
            engine: Engine::new(policy(setting.gate), setting.seed, now),
            autopilot: Autopilot::new(autopilot(setting), now),
            servers,
            trips: HashMap::new(),
            next_id: 0,
            next_arrival: None,
            next_scrape: now,
            next_sample: now.after(setting.window),
            sums: vec![Sums::default(); count],
            in_flight: vec![0; count],
            waiting: 0,
            changed: false,
            record: Record::default(),
        };
        flight.begin();
        Ok(flight)
    }

    fn begin(&mut self) {
        for at in 0..self.servers.len() {
            let (id, state) = (endpoint(at), EndpointState::default());
            self.engine.handle(self.now, Input::Endpoint { id, state });
            self.autopilot.ready(self.now, id, true);
        }
        self.engine.handle(self.now, Input::Ready);
        match &self.setting.arrivals {
            Arrivals::Poisson(_) => self.plan_arrival(),
            Arrivals::Closed { clients, mix } => {
                for _ in 0..*clients {
                    self.arrive(mix);
                }
            }
        }
        self.tell_truth();
    }

    /// Lets what is due next happen; `false`: the run is over.
    fn step(&mut self) -> bool {
        let servers = self.servers.iter().filter_map(Server::poll_timeout).min();
        let timers = [
            servers,
            self.next_arrival,
            Some(self.next_scrape),
            Some(self.next_sample),
            self.engine.poll_timeout(),
            self.autopilot.poll_timeout(),
        ];
        let Some(next) = timers.into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        if self.now.since(Instant::ZERO) > self.setting.lasts || self.record.served >= self.setting.served_max
        {
            return false;
        }
        for at in 0..self.servers.len() {
            if self.servers[at].poll_timeout().is_some_and(|due| due <= self.now) {
                self.servers[at].handle_timeout(self.now);
                self.hear(at);
            }
        }
        if self.next_scrape <= self.now {
            self.scrape();
        }
        if self.autopilot.poll_timeout().is_some_and(|due| due <= self.now) {
            self.autopilot.handle_timeout(self.now, self.waiting as u64);
        }
        if self.next_sample <= self.now {
            self.sample();
        }
        if self.next_arrival.is_some_and(|due| due <= self.now) {
            self.arrive_as_planned();
        }
        if self.engine.poll_timeout().is_some_and(|due| due <= self.now) {
            self.engine.handle_timeout(self.now);
        }
        self.carry();
        true
    }

    fn land(mut self) -> Record {
        self.record.lasted = self.now.since(Instant::ZERO);
        self.record.recorded = self.record.lasted.saturating_sub(self.setting.settles);
        self.record
    }

    /// The mix and the rate at this time, and when that ends.
    fn phase(&self, at: Instant) -> Option<(&'a Mix, f64, Instant)> {
        let Arrivals::Poisson(phases) = &self.setting.arrivals else {
            return None;
        };
        let whole: Duration = phases.iter().map(|phase| phase.lasts).sum();
        let since = at.since(Instant::ZERO);
        let rounds = since.as_nanos() / whole.as_nanos().max(1);
        let mut end = Duration::from_nanos(u64::try_from(rounds * whole.as_nanos()).ok()?);
        for phase in phases {
            end += phase.lasts;
            if since < end {
                return Some((&phase.mix, phase.rate, Instant::ZERO.after(end)));
            }
        }
        None
    }

    fn plan_arrival(&mut self) {
        let mut from = self.now;
        self.next_arrival = loop {
            let Some((_, rate, end)) = self.phase(from) else {
                break None;
            };
            if rate > 0.0 {
                let unit: f64 = self.rng.random();
                let wait = Duration::from_secs_f64(-(1.0 - unit).ln() / rate);
                if from.after(wait) < end {
                    break Some(from.after(wait));
                }
            }
            from = end;
        };
    }

    fn arrive_as_planned(&mut self) {
        if let Some((mix, _, _)) = self.phase(self.now) {
            self.arrive(mix);
        }
        self.plan_arrival();
    }

    fn arrive(&mut self, mix: &Mix) {
        let drawn = mix.draw(&mut self.rng);
        let bytes = (drawn.input as f64 * BYTES_A_TOKEN * factor(&mut self.rng, BYTES_SPREAD)) as u64;
        let id = self.next_id;
        self.next_id += 1;
        let trip = Trip {
            drawn,
            arrived: self.now,
            granted: self.now,
            first: self.now,
            server: 0,
        };
        self.trips.insert(id, trip);
        self.record.arrived += 1;
        self.waiting += 1;
        self.autopilot.arrived(self.now);
        let mut request = Request::new(RequestId(id));
        request.flow = drawn.kind.into();
        request.model = "model".into();
        request.prompt = Prompt::Bytes(bytes);
        request.body_bytes = bytes;
        self.engine.handle(self.now, Input::Register(request));
    }

    /// What the server has to say goes to the clients, to the engine and to the autopilot.
    fn hear(&mut self, at: usize) {
        while let Some(event) = self.servers[at].poll_event() {
            match event.kind {
                Kind::First => {
                    if let Some(trip) = self.trips.get_mut(&event.id.0) {
                        trip.first = event.at;
                    }
                }
                Kind::Token => {}
                Kind::Done => self.served(at, event.id.0),
            }
        }
    }

    fn served(&mut self, at: usize, id: u64) {
        let Some(trip) = self.trips.remove(&id) else {
            return;
        };
        let now = self.now;
        let since = |at: Instant| at.since(Instant::ZERO);
        let finished = Finished {
            kind: trip.drawn.kind,
            server: at,
            arrived: since(trip.arrived),
            granted: since(trip.granted),
            first: since(trip.first),
            last: since(now),
            input: trip.drawn.input,
            output: trip.drawn.output,
        };
        let sums = &mut self.sums[at];
        sums.requests += 1.0;
        sums.input += trip.drawn.input as f64;
        sums.output += trip.drawn.output as f64;
        sums.ttft_ms += finished.ttft_ms();
        sums.itl_ms += finished.itl_ms();
        self.in_flight[at] -= 1;
        self.record.served += 1;
        if finished.last >= self.setting.settles {
            self.record.finished.push(finished);
        }
        let served = Served {
            first: Some(trip.first.since(trip.granted)),
            last: Some(now.since(trip.granted)),
            streamed: true,
            prompt: Some(trip.drawn.input),
            cached: None,
            output: Some(trip.drawn.output),
        };
        self.autopilot.served(now, RequestId(id), served);
        let usage = Usage {
            prompt: Some(Tokens(trip.drawn.input)),
            cached: None,
            output: Some(Tokens(trip.drawn.output)),
        };
        let completed = Input::Completed {
            id: RequestId(id),
            service: Service::Served(usage),
        };
        self.engine.handle(now, completed);
        if let Arrivals::Closed { mix, .. } = &self.setting.arrivals {
            self.arrive(mix);
        }
        self.change();
    }

    fn change(&mut self) {
        let Some(Change::Alpha { served, times }) = self.setting.change else {
            return;
        };
        if self.changed || self.record.served < served {
            return;
        }
        self.changed = true;
        for server in &mut self.servers {
            let mut hardware = *server.hardware();
            hardware.alpha_ms *= times;
            // What it was checked for at first holds for its multiples, but for the largest.
            let _ = server.become_hardware(hardware);
        }
        self.tell_truth();
    }

    fn scrape(&mut self) {
        self.next_scrape = self.now.after(SCRAPES);
        for at in 0..self.servers.len() {
            let gauges = self.servers[at].gauges();
            let kv_tokens = self.servers[at].hardware().kv_tokens;
            let scraped = Scraped {
                running: Some(gauges.running as u64),
                waiting: Some(gauges.waiting as u64),
                kv_used: Some(gauges.kv_tokens as f64 / kv_tokens as f64),
                kv_tokens: Some(kv_tokens),
                totals: None,
            };
            self.autopilot.scraped(self.now, endpoint(at), Some(scraped));
        }
    }

    fn sample(&mut self) {
        let seconds = self.setting.window.as_secs_f64();
        self.next_sample = self.now.after(self.setting.window);
        let observed = self
            .sums
            .iter_mut()
            .map(|sums| observed(&std::mem::take(sums), seconds));
        let sample = Sample {
            at: self.now.since(Instant::ZERO),
            served: self.record.served,
            observed: observed.collect(),
            in_flight: self.in_flight.clone(),
            waiting: self.waiting,
            status: self.autopilot.status(),
        };
        self.record.samples.push(sample);
    }

    /// Carries out what was decided.
    fn carry(&mut self) {
        loop {
            let mut idle = true;
            while let Some(effect) = self.engine.poll_effect() {
                idle = false;
                self.carry_one(effect);
            }
            while let Some(input) = self.autopilot.poll_input() {
                idle = false;
                if self.setting.gate == GateBy::Learned {
                    self.engine.handle(self.now, input);
                }
            }
            if idle {
                return;
            }
        }
    }

    fn carry_one(&mut self, effect: Effect) {
        match effect {
            Effect::Grant {
                id,
                endpoints,
                prompt,
                cached,
                output,
                ..
            } => {
                self.waiting -= 1;
                let to = endpoints[0];
                let at = to.0 as usize;
                let granted = Granted {
                    endpoint: to,
                    prompt: prompt.0,
                    cached: cached.0,
                    output: output.0,
                };
                self.autopilot.granted(self.now, id, granted);
                let trip = self.trips.get_mut(&id.0).expect("invariant: who is granted came");
                (trip.granted, trip.server) = (self.now, at);
                self.in_flight[at] += 1;
                let job = Job {
                    id: JobId(id.0),
                    input: trip.drawn.input,
                    output: trip.drawn.output,
                };
                self.servers[at]
                    .submit(self.now, job)
                    .expect("invariant: sizes are far below a server's cache");
            }
            Effect::Reject { id, .. } | Effect::Cancelled { id, .. } => {
                self.waiting -= 1;
                self.record.refused += 1;
                self.trips.remove(&id.0);
            }
            Effect::Traced { .. } | Effect::UsageSettled { .. } | Effect::Settled { .. } => {}
        }
    }

    /// Under [`GateBy::Truth`] the engine knows the servers.
    fn tell_truth(&mut self) {
        if self.setting.gate != GateBy::Truth {
            return;
        }
        for at in 0..self.servers.len() {
            let budget = Some(self.true_budget(at));
            let input = Input::Budget {
                id: endpoint(at),
                budget,
            };
            self.engine.handle(self.now, input);
        }
    }

    fn true_budget(&self, at: usize) -> Budget {
        let hardware = self.servers[at].hardware();
        let parameters = parameters(hardware);
        let traffic = match &self.setting.arrivals {
            Arrivals::Poisson(phases) => phases[0].mix.mean(),
            Arrivals::Closed { mix, .. } => mix.mean(),
        };
        let policy = &self.setting.slo;
        let targets = policy
            .explicit
            .unwrap_or_else(|| slo::inferred(&parameters, &traffic, policy.multiplier));
        let size = sizing::size(
            &parameters,
            &traffic,
            &targets,
            Some(hardware.seqs_max as f64),
            1.0,
        );
        Budget {
            alpha_ms: parameters.alpha_ms,
            beta_ms: parameters.beta_ms,
            gamma_ms: parameters.gamma_ms,
            iteration_ms_max: targets.itl_ms.map_or(f64::INFINITY, |target| MARGIN * target),
            first_token_ms_max: targets.ttft_ms.map_or(f64::INFINITY, |target| MARGIN * target),
            ttft_bias: 1.0,
            kv_tokens_max: Some((MARGIN * hardware.kv_tokens as f64) as u64),
            requests_max: Some(hardware.seqs_max as u64),
            typical: size.n_star.map_or(1, |n| n.max(1.0) as u64),
            rate: None,
        }
    }
}

fn endpoint(at: usize) -> EndpointId {
    EndpointId(u32::try_from(at).expect("invariant: there are few servers"))
}

fn observed(sums: &Sums, seconds: f64) -> Observed {
    if sums.requests == 0.0 || seconds == 0.0 {
        return Observed::default();
    }
    Observed {
        traffic: Traffic {
            rate: sums.requests / seconds,
            input: sums.input / sums.requests,
            output: sums.output / sums.requests,
        },
        ttft_ms: sums.ttft_ms / sums.requests,
        itl_ms: sums.itl_ms / sums.requests,
        busy: 1,
    }
}

/// What a model of this server should come to.
#[must_use]
pub(super) const fn parameters(hardware: &Hardware) -> Parameters {
    Parameters {
        alpha_ms: hardware.alpha_ms,
        beta_ms: hardware.beta_ms,
        gamma_ms: hardware.gamma_ms,
    }
}

fn policy(gate: GateBy) -> Policy {
    let mut policy = Policy::default();
    policy.queue.ttl = TTL;
    policy.gate = match gate {
        GateBy::Watermark(watermark) => {
            let bound = Decimal::from_billionths((watermark * Decimal::ONE as f64) as u128);
            Gate::Bounded {
                unit: StockUnit::Requests,
                lower: bound,
                upper: bound,
                watermark: bound,
            }
        }
        GateBy::Truth | GateBy::Learned => Gate::Auto {
            initial: Decimal::whole(8),
        },
        GateBy::Nobody => Gate::Open,
    };
    policy
}

fn autopilot(setting: &Setting) -> AutopilotSettings {
    let endpoints = setting
        .servers
        .iter()
        .enumerate()
        .map(|(at, server)| AutopilotEndpoint {
            id: endpoint(at),
            variant: server.variant.to_string(),
            max_batch: server.hardware.seqs_max as u64,
        });
    AutopilotSettings {
        endpoints: endpoints.collect(),
        slo: setting.slo,
        gates: setting.gate == GateBy::Learned,
        ttl: TTL,
        window: setting.window,
        kept: setting.kept.clone(),
    }
}
