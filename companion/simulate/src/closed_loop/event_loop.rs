//! The event loop: handles whatever is due next until the run ends.

mod effects;

use std::collections::HashMap;
use std::time::Duration;

use penstock_autopilot::{Autopilot, Backlog, Scraped, Served};
use penstock_engine::input::{EndpointState, Prompt, ServerStats, Service, Usage};
use penstock_engine::units::Tokens;
use penstock_engine::{Engine, Input, Instant, Request, RequestId};
use penstock_model_server::{HardwareError, JobProgress, Server};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::arrival_plan::ArrivalPlan;
use super::load_series::{Load, LoadSeries};
use super::record::{Finished, Record, ReplicasDesired, Sample};
use super::scenario::{Change, GateBy, Scenario};
use super::server_timers::ServerTimers;
use super::traffic::{Arrivals, Drawn, Mix, factor};
use super::window_sums::WindowSums;
use super::{prefixes, settings};

/// Mean bytes of text per token.
const BYTES_PER_TOKEN: f64 = 4.2;
/// Standard deviation of the logarithm of a prompt's bytes per token.
const BYTES_SPREAD: f64 = 0.05;
/// Time between two scrapes of a server.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);

/// Runs one closed loop to its end.
///
/// # Errors
/// The hardware of a server is invalid.
pub fn run(scenario: &Scenario) -> Result<Record, HardwareError> {
    run_watched(scenario, |_| {})
}

/// Runs the scenario, and calls `watch` with the simulated time after each step.
///
/// # Errors
/// The hardware of a server is invalid.
pub fn run_watched(scenario: &Scenario, mut watch: impl FnMut(Duration)) -> Result<Record, HardwareError> {
    let mut closed_loop = ClosedLoop::new(scenario)?;
    while closed_loop.step() {
        watch(closed_loop.now.since(Instant::ZERO));
    }
    Ok(closed_loop.finish())
}

/// A request that waits or is at a server.
#[derive(Debug)]
struct Pending {
    drawn: Drawn,
    arrived: Instant,
    granted: Instant,
    first: Instant,
    /// Prompt tokens that its server had cached.
    cached: u64,
    /// The servers for its prompt and for its answer, while the prompt is computed or has just been; `None`: one server does both.
    prefill: Option<Prefill>,
    /// Limits of its own kept it from being granted at its arrival, so it is no load before its grant.
    is_limited: bool,
}

/// A prompt at a server of its own.
#[derive(Clone, Copy, Debug)]
struct Prefill {
    /// The server for the prompt.
    server: usize,
    /// The one that answers.
    then: usize,
}

#[derive(Debug)]
struct ClosedLoop<'a> {
    scenario: &'a Scenario,
    now: Instant,
    rng: ChaCha8Rng,
    engine: Engine,
    autopilot: Autopilot,
    servers: Vec<Server>,
    pending: HashMap<u64, Pending>,
    next_id: u64,
    arrivals: ArrivalPlan<'a>,
    server_timers: ServerTimers,
    next_scrape: Instant,
    next_sample: Instant,
    sums: Vec<WindowSums>,
    in_flight: Vec<usize>,
    /// The servers that have computed the shared prefix.
    has_cached: Vec<bool>,
    waiting: usize,
    changed: bool,
    record: Record,
}

impl<'a> ClosedLoop<'a> {
    fn new(scenario: &'a Scenario) -> Result<Self, HardwareError> {
        let now = Instant::ZERO;
        let servers = scenario
            .servers
            .iter()
            .enumerate()
            .map(|(index, spec)| {
                let seed = scenario.seed.wrapping_mul(1_000).wrapping_add(index as u64);
                Ok(Server::new(spec.hardware, seed)?.with_request_noise(spec.request_noise))
            })
            .collect::<Result<Vec<_>, HardwareError>>()?;
        let count = servers.len();
        let mut closed_loop = Self {
            scenario,
            now,
            rng: ChaCha8Rng::seed_from_u64(scenario.seed),
            engine: Engine::new(settings::policy(scenario), scenario.seed, now),
            autopilot: Autopilot::new(settings::autopilot(scenario), now),
            servers,
            pending: HashMap::new(),
            next_id: 0,
            arrivals: ArrivalPlan::new(&scenario.arrivals),
            server_timers: ServerTimers::new(count),
            next_scrape: now,
            next_sample: now.after(scenario.window),
            sums: vec![WindowSums::default(); count],
            in_flight: vec![0; count],
            has_cached: vec![false; count],
            waiting: 0,
            changed: false,
            record: Record { load: LoadSeries::new(scenario.load_part), ..Record::default() },
        };
        let max_rate = scenario.policy.queue.max_rate;
        closed_loop.autopilot.limit_demand(max_rate);
        closed_loop.start();
        Ok(closed_loop)
    }

    fn start(&mut self) {
        for (index, server) in self.scenario.servers.iter().enumerate() {
            let id = settings::endpoint(index);
            let state = EndpointState {
                weight: server.weight,
                batched_tokens_max: Some(server.hardware.batched_tokens),
                role: server.role,
                ready: true,
            };
            self.engine.handle(self.now, Input::Endpoint { id, state });
            self.autopilot.ready(self.now, id, true);
        }
        self.engine.handle(self.now, Input::Ready);
        match &self.scenario.arrivals {
            Arrivals::Poisson(_) | Arrivals::Listed { .. } => self.arrivals.plan(self.now, &mut self.rng),
            Arrivals::Closed { clients, mix } => {
                for _ in 0..*clients {
                    self.arrive(mix);
                }
            }
        }
        self.set_true_allowances();
    }

    /// Handles everything that is due next. Returns `false` when the run is over.
    fn step(&mut self) -> bool {
        if self.is_through() {
            return false;
        }
        let timers = [
            self.server_timers.next(),
            self.arrivals.next(),
            Some(self.next_scrape),
            Some(self.next_sample),
            self.engine.poll_timeout(),
            self.autopilot.poll_timeout(),
        ];
        let Some(next) = timers.into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(next);
        let elapsed = self.now.since(Instant::ZERO);
        if self.scenario.duration.is_some_and(|duration| elapsed > duration)
            || self.scenario.served_max.is_some_and(|max| self.record.served >= max)
        {
            return false;
        }
        while let Some(index) = self.server_timers.pop(self.now) {
            self.servers[index].handle_timeout(self.now);
            self.handle_server_events(index);
            self.server_timers.set(index, self.servers[index].poll_timeout());
        }
        if self.next_scrape <= self.now {
            self.scrape();
        }
        if self.autopilot.poll_timeout().is_some_and(|due| due <= self.now) {
            let backlog =
                Backlog { requests: self.engine.waiting_for_room(), is_full: self.engine.is_full() };
            self.autopilot.handle_timeout(self.now, backlog);
        }
        if self.next_sample <= self.now {
            self.sample();
        }
        if self.arrivals.next().is_some_and(|due| due <= self.now) {
            self.arrive_as_planned();
        }
        if self.engine.poll_timeout().is_some_and(|due| due <= self.now) {
            self.engine.handle_timeout(self.now);
        }
        self.apply_decisions();
        let load = Load { waiting: self.waiting, running: self.pending.len() - self.waiting };
        self.record.load.record(elapsed, load);
        true
    }

    /// All listed requests have ended.
    fn is_through(&self) -> bool {
        self.arrivals.is_through() && self.pending.is_empty()
    }

    fn finish(mut self) -> Record {
        let busy = self.servers.iter().map(|server| server.totals().busy);
        self.record.busy = busy.collect();
        self.record.load.finish();
        self.record.duration = self.now.since(Instant::ZERO);
        self.record.recorded = self.record.duration.saturating_sub(self.scenario.warmup);
        self.record
    }

    fn arrive_as_planned(&mut self) {
        if let Some(drawn) = self.arrivals.take(self.now, &mut self.rng) {
            self.register(drawn);
        }
        self.arrivals.plan(self.now, &mut self.rng);
    }

    fn arrive(&mut self, mix: &Mix) {
        let drawn = mix.draw(&mut self.rng);
        self.register(drawn);
    }

    fn register(&mut self, drawn: Drawn) {
        let bytes = (drawn.input as f64 * BYTES_PER_TOKEN * factor(&mut self.rng, BYTES_SPREAD)) as u64;
        let id = self.next_id;
        self.next_id += 1;
        let (flow, band) = (drawn.flow.clone(), drawn.band);
        let pending = Pending {
            drawn,
            arrived: self.now,
            granted: self.now,
            first: self.now,
            cached: 0,
            prefill: None,
            is_limited: false,
        };
        self.pending.insert(id, pending);
        self.record.arrived += 1;
        self.waiting += 1;
        self.autopilot.arrived(self.now);
        let mut request = Request::new(RequestId(id));
        request.flow = (&*flow).into();
        request.band = band;
        request.model = "model".into();
        request.prompt = Prompt::Bytes(bytes);
        request.body_bytes = bytes;
        request.eligible = settings::eligible(self.scenario.placement, id, self.servers.len());
        if let Some(shared) = &self.scenario.shared_prefix {
            request.prefix = prefixes::hashes(shared, id, bytes);
            self.engine.prepare(&mut request);
        }
        self.engine.handle(self.now, Input::Register(request));
        let has_started = self.engine.endpoint_of(RequestId(id)).is_some();
        if !has_started
            && self.engine.is_flow_at_limit(&flow)
            && let Some(pending) = self.pending.get_mut(&id)
        {
            pending.is_limited = true;
            self.autopilot.refused();
        }
    }

    /// Passes a server's events to the engine and the autopilot.
    fn handle_server_events(&mut self, server: usize) {
        while let Some(event) = self.servers[server].poll_event() {
            match event.progress {
                JobProgress::First => {
                    self.has_cached[server] = true;
                    if let Some(pending) = self.pending.get_mut(&event.id.0) {
                        pending.first = event.time;
                        if let Some(prefill) = pending.prefill.take() {
                            self.in_flight[prefill.server] -= 1;
                        }
                        if self.scenario.is_streamed {
                            self.engine.handle(self.now, Input::FirstToken(RequestId(event.id.0)));
                            self.autopilot.first_token(self.now, RequestId(event.id.0));
                        }
                    }
                }
                JobProgress::Token => {}
                JobProgress::Done => match self.prefilled(server, event.id.0) {
                    Some(prefill) => {
                        self.has_cached[server] = true;
                        self.decode(prefill.then, event.id.0);
                    }
                    None => self.served(server, event.id.0),
                },
            }
        }
    }

    fn served(&mut self, server: usize, id: u64) {
        let Some(pending) = self.pending.remove(&id) else {
            return;
        };
        let now = self.now;
        let elapsed = |time: Instant| time.since(Instant::ZERO);
        let finished = Finished {
            kind: pending.drawn.kind,
            server,
            arrived: elapsed(pending.arrived),
            granted: elapsed(pending.granted),
            first: elapsed(pending.first),
            last: elapsed(now),
            input: pending.drawn.input,
            output: pending.drawn.output,
        };
        self.sums[server].add(&finished);
        self.in_flight[server] -= 1;
        self.record.served += 1;
        if finished.last >= self.scenario.warmup {
            self.record.finished.push(finished);
        }
        // A server that counts a prompt and reports no cached tokens has computed all of it, as far as a companion knows.
        let shared = self.scenario.shared_prefix.as_ref();
        let cached = shared.map(|shared| if shared.is_reported { pending.cached } else { 0 });
        let served = Served {
            first: Some(pending.first.since(pending.granted)),
            last: Some(now.since(pending.granted)),
            streamed: self.scenario.is_streamed,
            prompt: Some(pending.drawn.input),
            cached,
            output: Some(pending.drawn.output),
        };
        self.autopilot.served(now, RequestId(id), served);
        let usage = Usage {
            prompt: Some(Tokens(pending.drawn.input)),
            cached: cached.map(Tokens),
            output: Some(Tokens(pending.drawn.output)),
        };
        let completed = Input::Completed { id: RequestId(id), service: Service::Served(usage) };
        self.engine.handle(now, completed);
        if let Arrivals::Closed { mix, .. } = &self.scenario.arrivals {
            self.arrive(mix);
        }
        self.change();
    }

    fn change(&mut self) {
        let Some(Change::Alpha { served, times }) = self.scenario.change else {
            return;
        };
        if self.changed || self.record.served < served {
            return;
        }
        self.changed = true;
        for server in &mut self.servers {
            let mut hardware = *server.hardware();
            hardware.alpha_ms *= times;
            // Fails only if alpha exceeds the largest allowed cost; the server then keeps its hardware.
            let _ = server.set_hardware(hardware);
        }
        self.set_true_allowances();
    }

    fn scrape(&mut self) {
        self.next_scrape = self.now.after(SCRAPE_INTERVAL);
        for index in 0..self.servers.len() {
            let gauges = self.servers[index].gauges();
            let kv_tokens = self.servers[index].hardware().kv_tokens;
            let scraped = Scraped {
                running: Some(gauges.running as u64),
                waiting: Some(gauges.waiting as u64),
                kv_used: Some(gauges.kv_tokens as f64 / kv_tokens as f64),
                kv_tokens: Some(kv_tokens),
                ..Scraped::default()
            };
            let id = settings::endpoint(index);
            if !self.scenario.has_metrics {
                continue;
            }
            self.autopilot.scraped(self.now, id, Some(scraped));
            if self.scenario.gate == GateBy::Policy {
                let stats = ServerStats {
                    waiting: scraped.waiting,
                    kv_used: scraped.kv_used,
                    ..ServerStats::default()
                };
                self.engine.handle(self.now, Input::ServerStats { id, stats });
            }
        }
    }

    fn sample(&mut self) {
        let seconds = self.scenario.window.as_secs_f64();
        self.next_sample = self.now.after(self.scenario.window);
        self.note_desired();
        if !self.scenario.is_sampled {
            return;
        }
        let observed = self.sums.iter_mut().map(|sums| std::mem::take(sums).observed(seconds));
        let sample = Sample {
            time: self.now.since(Instant::ZERO),
            served: self.record.served,
            observed: observed.collect(),
            in_flight: self.in_flight.clone(),
            waiting: self.waiting,
            status: self.autopilot.status(),
        };
        self.record.samples.push(sample);
    }

    /// Records the replicas that the autopilot asks for.
    fn note_desired(&mut self) {
        let time = self.now.since(Instant::ZERO);
        let desired = ReplicasDesired::new(time, &self.autopilot.status());
        self.record.replicas_desired.push(desired);
    }

    /// Applies the decisions of the engine and the autopilot until both have none left.
    fn apply_decisions(&mut self) {
        loop {
            let mut idle = true;
            while let Some(effect) = self.engine.poll_effect() {
                idle = false;
                self.apply_effect(effect);
            }
            while let Some(input) = self.autopilot.poll_input() {
                idle = false;
                if settings::is_learned(self.scenario) {
                    self.engine.handle(self.now, input);
                }
            }
            if idle {
                return;
            }
        }
    }

    /// With [`GateBy::Truth`], gives the engine the allowances that follow from the true parameters.
    fn set_true_allowances(&mut self) {
        if self.scenario.gate != GateBy::Truth {
            return;
        }
        for index in 0..self.servers.len() {
            let allowance = Some(settings::true_allowance(self.scenario, self.servers[index].hardware()));
            let input = Input::Allowance { id: settings::endpoint(index), allowance };
            self.engine.handle(self.now, input);
        }
    }
}
