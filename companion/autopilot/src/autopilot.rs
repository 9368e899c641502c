//! The model of one pool's servers at work: what the engine's grants and the servers' answers say of them, learned, and
//! said back to the engine as budgets.
//!
//! It speaks the engine's words and the model's, and no protocol, so whoever has an engine can fly it. What a request's end
//! says is looked for among those that were at its server meanwhile, so that takes time as there are many of these, in
//! flight or just ended; what else a request does takes constant time. What is learned and said follows once a window, and
//! no window runs while nothing happens.

mod probing;
mod relist;

use core::time::Duration;
use std::collections::VecDeque;

use hashbrown::HashMap;
use penstock_engine::input::{EndpointId, Input};
use penstock_engine::{Instant, RequestId};
use penstock_model::Targets;
use penstock_model::analysis::analyze;
use penstock_model::observation::Completion;
use penstock_model::slo::{Policy as SloPolicy, Slo, Source};
use penstock_model::workload::Observed;

use crate::server::{Flight, Server};
use crate::variant::Variant;
use crate::window_stats::count;

use crate::types::{AutopilotSettings, AutopilotStatus, Granted, Kept, Scraped, Served, VariantStatus};

/// Until the first token of one whose prompt was computed before it was heard of.
const PREFILLED_MS: f64 = 1e-3;

/// What one pool's servers were seen to do, and what follows.
#[derive(Debug)]
pub struct Autopilot {
    slo_policy: SloPolicy,
    gates: bool,
    ttl: Duration,
    window: Duration,
    began: Instant,
    /// In the order of the settings.
    servers: Vec<Server>,
    numbers: HashMap<EndpointId, usize>,
    /// By name.
    variants: Vec<Variant>,
    flights: HashMap<RequestId, Flight>,
    /// Since when the window runs; `None`: nothing happens.
    window_since: Option<Instant>,
    arrivals: u64,
    /// Windows that are over.
    turn: u64,
    /// When endpoints of which nothing is known change their load; `None`: all is known, or enough was tried.
    explores_at: Option<Instant>,
    explored: u32,
    /// How often they have changed it, and when last.
    flips: usize,
    flipped_at: Instant,
    slo: Slo,
    /// Requests per second that are offered.
    demand: f64,
    learned: Vec<(String, Kept)>,
    /// Of variants that it may come to have.
    kept: Vec<(String, Kept)>,
    inputs: VecDeque<Input>,
}

impl Autopilot {
    /// One that has seen nothing. Its endpoints are ready until it hears otherwise.
    #[must_use]
    pub fn new(settings: AutopilotSettings, now: Instant) -> Self {
        let mut names: Vec<String> = settings.endpoints.iter().map(|it| it.variant.clone()).collect();
        names.sort_unstable();
        names.dedup();
        let servers: Vec<Server> = settings
            .endpoints
            .iter()
            .filter_map(|it| {
                let variant = names.binary_search(&it.variant).ok()?;
                let mut server = Server::new(it.id, variant, it.max_batch);
                server.is_fresh = false;
                Some(server)
            })
            .collect();
        let kept = |name: &str| {
            settings
                .kept
                .iter()
                .find(|(of, _)| of == name)
                .map(|(_, kept)| *kept)
        };
        let variants = names.into_iter().map(|name| {
            let kept = kept(&name);
            Variant::new(name, kept)
        });
        let mut autopilot = Self {
            slo_policy: settings.slo,
            gates: settings.gates,
            ttl: settings.ttl,
            window: settings.window,
            began: now,
            numbers: servers
                .iter()
                .enumerate()
                .map(|(number, it)| (it.id, number))
                .collect(),
            variants: variants.collect(),
            servers,
            flights: HashMap::new(),
            window_since: None,
            arrivals: 0,
            turn: 0,
            explores_at: None,
            explored: 0,
            flips: 0,
            flipped_at: now,
            slo: Slo {
                targets: Targets::default(),
                source: Source::None,
            },
            demand: 0.0,
            learned: Vec::new(),
            kept: settings.kept,
            inputs: VecDeque::new(),
        };
        autopilot.analyse();
        autopilot.steer();
        autopilot
    }

    /// A request came that counts as load: any but invalid ones and those that the policy refuses.
    pub fn arrived(&mut self, now: Instant) {
        self.touch(now);
        self.arrivals = self.arrivals.saturating_add(1);
    }

    /// The last one that came was refused by the policy: it was no load.
    pub fn refused(&mut self) {
        self.arrivals = self.arrivals.saturating_sub(1);
    }

    /// The engine let it go.
    pub fn granted(&mut self, now: Instant, id: RequestId, granted: Granted) {
        self.dropped(now, id);
        self.touch(now);
        let Some(&number) = self.numbers.get(&granted.endpoint) else {
            return;
        };
        let flight = Flight::new(number, now, &granted);
        let server = &mut self.servers[number];
        let guess = self.variants[server.variant].guess();
        let ttft_ms = guess.map(|it| server.first_token_ms(&it, &flight));
        let cached = flight.prompt - flight.uncached;
        server.overlap_tracker.record_dispatch(
            millis(now),
            id.0,
            flight.uncached,
            cached,
            flight.output,
            ttft_ms,
        );
        server.tally.granted += 1;
        server.add(&flight);
        self.flights.insert(id, flight);
    }

    /// It runs already, and was granted by another: since when it decodes isn't known. It is load, and its own times say
    /// nothing.
    pub fn adopted(&mut self, now: Instant, id: RequestId, granted: Granted) {
        self.dropped(now, id);
        self.touch(now);
        let Some(&number) = self.numbers.get(&granted.endpoint) else {
            return;
        };
        let mut flight = Flight::new(number, now, &granted);
        flight.whole = false;
        let server = &mut self.servers[number];
        server.overlap_tracker.record_dispatch(
            millis(now),
            id.0,
            0.0,
            flight.prompt,
            flight.output,
            Some(PREFILLED_MS),
        );
        server.add(&flight);
        self.flights.insert(id, flight);
    }

    /// It went to another endpoint than it was granted. Since when isn't known, so it is load there and no more.
    pub fn moved(&mut self, now: Instant, id: RequestId, endpoint: EndpointId) {
        let (Some(flight), Some(&number)) = (self.flights.get_mut(&id), self.numbers.get(&endpoint)) else {
            return;
        };
        if flight.server == number {
            return;
        }
        let before = core::mem::replace(&mut flight.server, number);
        flight.whole = false;
        let flight = *flight;
        let cached = flight.prompt - flight.uncached;
        let server = &mut self.servers[before];
        server.overlap_tracker.record_drop(millis(now), id.0);
        server.remove(&flight);
        let server = &mut self.servers[number];
        server.overlap_tracker.record_dispatch(
            millis(now),
            id.0,
            flight.uncached,
            cached,
            flight.output,
            None,
        );
        server.add(&flight);
    }

    /// It was served.
    pub fn served(&mut self, now: Instant, id: RequestId, served: Served) {
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        self.touch(now);
        let server = &mut self.servers[flight.server];
        server.remove(&flight);
        let cached = served.cached.map_or(flight.prompt - flight.uncached, count);
        let input = served.prompt.map(|prompt| (count(prompt) - cached).max(0.0));
        let output = served.output.map(count);
        let streamed = served.streamed && flight.whole;
        let (first, last) = (served.first.filter(|_| streamed), served.last);
        // Not after now, whenever it was granted by another.
        let at = |after: Duration| millis(flight.granted_at.after(after).min(now));
        let end = Completion {
            first_ms: first.map(at),
            last_ms: last.map(at),
            streamed,
            // Of one that was granted by another the prompt was computed by then, however long it was.
            input: input.filter(|_| flight.whole),
            cached: input.filter(|_| flight.whole).map(|_| cached),
            output,
        };
        server.overlap_tracker.record_completion(millis(now), id.0, &end);
        let itl_ms = match (first, last, output) {
            (Some(first), Some(last), Some(output)) if output > 1.0 && last > first => {
                Some((last - first).as_secs_f64() * 1_000.0 / (output - 1.0))
            }
            _ => None,
        };
        let ttft_ms = first.map(|first| first.as_secs_f64() * 1_000.0);
        server.tally.served(
            input.unwrap_or(flight.uncached),
            cached,
            output.unwrap_or(flight.output),
            ttft_ms,
            itl_ms,
        );
        while let Some(observation) = server.overlap_tracker.poll_observation() {
            self.variants[server.variant].observe(&observation);
        }
    }

    /// It was granted, and isn't served there, or nobody knows: it waits again, its client left, its server failed.
    pub fn dropped(&mut self, now: Instant, id: RequestId) {
        let Some(flight) = self.flights.remove(&id) else {
            return;
        };
        self.touch(now);
        let server = &mut self.servers[flight.server];
        server.remove(&flight);
        server.overlap_tracker.record_drop(millis(now), id.0);
    }

    /// An endpoint is ready, or isn't.
    pub fn ready(&mut self, now: Instant, id: EndpointId, ready: bool) {
        if let Some(&number) = self.numbers.get(&id) {
            self.servers[number].set_ready(now, now.since(self.began), ready);
        }
    }

    /// A server says of itself; `None`: it doesn't any more.
    pub fn scraped(&mut self, now: Instant, id: EndpointId, scraped: Option<Scraped>) {
        let Some(&number) = self.numbers.get(&id) else {
            return;
        };
        if self.servers[number].scraped(scraped.as_ref()) {
            self.touch(now);
        }
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let end = self.window_since.map(|since| since.after(self.window))?;
        Some(self.explores_at.map_or(end, |at| at.min(end)))
    }

    /// Closes windows that are over, and learns from them. `backlog`: requests that wait.
    pub fn handle_timeout(&mut self, now: Instant, backlog: u64) {
        let Some(since) = self.window_since else {
            return;
        };
        if since.after(self.window) > now {
            if self.explores_at.is_some_and(|at| at <= now) {
                self.explore(now, since);
            }
            return;
        }
        let over = now.since(since);
        let arrivals = core::mem::take(&mut self.arrivals);
        self.demand = per_second(arrivals, over) + per_second(backlog, self.ttl);
        let windows: Vec<Option<Observed>> = self.servers.iter_mut().map(|it| it.close(over)).collect();
        let is_idle =
            arrivals == 0 && backlog == 0 && self.flights.is_empty() && windows.iter().all(Option::is_none);
        for number in 0..self.variants.len() {
            let own = self.windows_of(number, now, &windows);
            let cached = self.cached_of(number, &windows);
            self.variants[number].close(millis(now), over, &own, cached, &self.slo_policy);
            if let Some(ms) = self.variants[number].prompt_ms() {
                let of_it = self.servers.iter_mut().filter(|it| it.variant == number);
                of_it.for_each(|it| it.overlap_tracker.set_prompt_ms(ms));
            }
        }
        self.turn += 1;
        self.forget_unlisted();
        self.flip(now);
        self.window_since = (!is_idle).then_some(now);
        self.analyse();
        self.steer();
        for variant in &mut self.variants {
            if let Some(kept) = variant.keep(now) {
                self.learned.push((variant.name.clone(), kept));
            }
        }
        self.plan_exploring(now);
    }

    /// The next thing to tell the engine.
    pub fn poll_input(&mut self) -> Option<Input> {
        self.inputs.pop_front()
    }

    /// What is worth keeping: variants whose parameters have changed since the last call.
    pub fn take_kept(&mut self) -> Vec<(String, Kept)> {
        core::mem::take(&mut self.learned)
    }

    /// A look at it.
    #[must_use]
    pub fn status(&self) -> AutopilotStatus {
        let variants: Vec<VariantStatus> = (0..self.variants.len())
            .map(|number| {
                let (current, pending) = self.replicas(number);
                self.variants[number].status(current, pending)
            })
            .collect();
        AutopilotStatus {
            slo: self.slo,
            capacity: variants.iter().map(|it| it.capacity).sum(),
            variants,
            demand: self.demand,
        }
    }

    /// Requests that it takes to be in flight, in no order.
    pub fn in_flight(&self) -> impl Iterator<Item = RequestId> {
        self.flights.keys().copied()
    }

    /// What is kept of each endpoint agrees with what is in flight there; an overlap tracker follows no more, and up to a limit.
    #[must_use]
    pub fn audit(&self) -> bool {
        self.servers.iter().enumerate().all(|(number, server)| {
            let there = self
                .flights
                .values()
                .filter(|flight| flight.server == number)
                .count();
            usize::try_from(server.in_flight()) == Ok(there) && server.overlap_tracker.running() <= there
        })
    }

    /// Something happens: a window runs from now on.
    fn touch(&mut self, now: Instant) {
        if self.window_since.is_none() {
            self.window_since = Some(now);
            self.plan_exploring(now);
        }
    }

    /// What a variant's endpoints did in a window. Those that have just come up aren't like the others, and count only
    /// where there are none.
    fn windows_of(&self, variant: usize, now: Instant, windows: &[Option<Observed>]) -> Vec<Observed> {
        let own = || {
            let all = self.servers.iter().zip(windows);
            all.filter(|(server, _)| server.variant == variant)
        };
        let settled: Vec<Observed> = own()
            .filter(|(server, _)| !server.is_young(now))
            .filter_map(|(_, window)| *window)
            .collect();
        if settled.is_empty() {
            own().filter_map(|(_, window)| *window).collect()
        } else {
            settled
        }
    }

    /// Mean prompt tokens in the caches of a variant's endpoints, weighted as their windows are.
    fn cached_of(&self, variant: usize, windows: &[Option<Observed>]) -> f64 {
        let own = self
            .servers
            .iter()
            .zip(windows)
            .filter(|(server, _)| server.variant == variant);
        let rates = own.filter_map(|(server, window)| Some((window.as_ref()?.traffic.rate, server.cached)));
        let (rate, sum) = rates.fold((0.0, 0.0), |(all, sum), (rate, cached)| {
            (all + rate, sum + rate * cached)
        });
        if rate > 0.0 { sum / rate } else { 0.0 }
    }

    /// A variant's endpoints: those that are ready, and those that aren't.
    fn replicas(&self, variant: usize) -> (u64, u64) {
        let own = self
            .servers
            .iter()
            .filter(|it| it.variant == variant && it.listed);
        own.fold((0, 0), |(ready, pending), it| {
            if it.ready {
                (ready + 1, pending)
            } else {
                (ready, pending + 1)
            }
        })
    }

    fn analyse(&mut self) {
        let asked: Vec<_> = (0..self.variants.len())
            .map(|number| {
                let own = self.servers.iter().filter(|it| it.variant == number);
                let max_batch = own.map(|it| it.max_batch).min().unwrap_or(1);
                let (current, pending) = self.replicas(number);
                self.variants[number].asked(max_batch, current, pending)
            })
            .collect();
        let analysis = analyze(&self.slo_policy, Some(self.demand), &asked);
        if analysis.slo.source != Source::None {
            // A lull takes no target away.
            self.slo = analysis.slo;
        }
        let mut results = analysis.variants.into_iter();
        for variant in &mut self.variants {
            variant.analysed(results.next());
        }
    }
}

fn millis(of: Instant) -> f64 {
    count(of.as_nanos()) / 1e6
}

fn per_second(of: u64, over: Duration) -> f64 {
    let seconds = over.as_secs_f64();
    if seconds > 0.0 { count(of) / seconds } else { 0.0 }
}
