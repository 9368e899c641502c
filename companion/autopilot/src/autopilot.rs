//! The autopilot itself: follows the requests in flight, and owns the endpoints and variants of its pool.
//!
//! When a request ends, its times are compared with the requests that were in flight at its endpoint meanwhile, so that takes
//! time proportional to their number. Every other change of a request takes constant time. Learning and allowances follow once in
//! a window, and no window runs while nothing happens.

mod bounds;
mod probing;
mod relist;
mod windows;

use core::time::Duration;
use std::collections::VecDeque;

use hashbrown::HashMap;
use penstock_engine::input::{EndpointId, Input};
use penstock_engine::policy::ExtraPlaces;
use penstock_engine::{Instant, RequestId};
use penstock_model::Targets;
use penstock_model::observation::Completion;
use penstock_model::slo::{Policy as SloPolicy, Slo, Source};

use crate::bound_search::Shown;
use crate::endpoint::{Endpoint, InFlight};
use crate::saturation::Saturation;
use crate::types::{
    AutopilotSettings, AutopilotStatus, Backlog, ExpectedUsage, Kept, PendingServers, Scraped, Served,
    VariantStatus,
};
use crate::variant::Variant;
use crate::window_stats::count;

/// Time to the first token of an adopted request: its prompt was computed before.
const PREFILLED_MS: f64 = 1e-3;

/// The autopilot of one pool.
///
/// The owner reports what the engine has decided and what servers do, and passes the allowances on to the engine:
///
/// 1. An event, by one of the methods below, or [`Self::handle_timeout`] when [`Self::poll_timeout`] is reached.
/// 2. [`Self::poll_input`] until it returns `None`: inputs for the engine of the same pool, which it applies in this order.
/// 3. [`Self::take_kept`], after a timeout: parameters that are worth storing.
///
/// The events by subject:
///
/// - Load: [`Self::arrived`] for each request that more servers could serve, before the engine decides on it; [`Self::refused`] and
///   [`Self::refused_after_waiting`] take it back when a limit of its own, not a lack of servers, ends it. A request counts as load in the
///   window of its arrival, so the owner must not defer these calls.
/// - A request that runs: [`Self::granted`], [`Self::adopted`], [`Self::came_to`] or [`Self::admitted_by_credit`] begins it, [`Self::moved`] corrects its
///   endpoint, and exactly one of [`Self::served`] and [`Self::dropped`] ends it. Only the first kind is learned from: of the others the
///   start isn't known.
/// - Endpoints: [`Self::relist`] with the complete list before any event about a new one, then [`Self::ready`], [`Self::scraped`] and
///   [`Self::set_credit`]. An event about an unknown endpoint is ignored, but for a move there, which drops the request.
/// - Settings: [`Self::change`], [`Self::limit_demand`].
///
/// [`Self::poll_timeout`] is `None` while nothing happens: an idle pool learns nothing, and must not wake its companion.
#[derive(Debug)]
pub struct Autopilot {
    slo_policy: SloPolicy,
    /// The engine gates by allowances.
    gates: bool,
    extra_places: ExtraPlaces,
    /// The longest wait in the queue.
    ttl: Duration,
    /// The length of a window.
    window: Duration,
    /// For so long after it has become ready, an endpoint isn't representative.
    transient: Duration,
    created_at: Instant,
    /// In the order of the settings.
    endpoints: Vec<Endpoint>,
    /// By endpoint: its index in `endpoints`.
    indices: HashMap<EndpointId, usize>,
    /// Servers that are no endpoints yet.
    pending: Vec<PendingServers>,
    /// By name.
    variants: Vec<Variant>,
    in_flight: HashMap<RequestId, InFlight>,
    /// The start of the window that runs; `None` while nothing happens.
    window_since: Option<Instant>,
    /// Requests that arrived in the window.
    arrivals: u64,
    /// Windows that are over.
    windows_closed: u64,
    /// When variants without known parameters are fitted next; `None`: there are none.
    fit_at: Option<Instant>,
    /// When the bounds of endpoints are judged next.
    judge_at: Option<Instant>,
    judged_at: Option<Instant>,
    /// The next request that arrives may raise a bound.
    is_any_ripe: bool,
    /// Requests that another companion granted show higher bounds.
    has_adopted: bool,
    slo: Slo,
    /// Requests per second that are offered.
    demand: f64,
    /// Requests per second that the pool grants at most.
    max_rate: Option<f64>,
    saturation: Saturation,
    /// Parameters to be stored, by variant.
    learned: Vec<(String, Kept)>,
    /// Stored parameters of variants that have no endpoint.
    kept: Vec<(String, Kept)>,
    inputs: VecDeque<Input>,
}

impl Autopilot {
    /// An autopilot that has seen no request. Its endpoints are ready until [`Self::ready`] changes that.
    #[must_use]
    pub fn new(settings: AutopilotSettings, now: Instant) -> Self {
        let (variants, endpoints) = initial(&settings);
        let mut autopilot = Self {
            slo_policy: settings.slo,
            gates: settings.gates,
            extra_places: settings.extra_places,
            ttl: settings.ttl,
            window: settings.window,
            transient: settings.transient,
            created_at: now,
            indices: indices(&endpoints),
            variants,
            endpoints,
            pending: settings.pending,
            in_flight: HashMap::new(),
            window_since: None,
            arrivals: 0,
            windows_closed: 0,
            fit_at: None,
            judge_at: None,
            judged_at: None,
            is_any_ripe: false,
            has_adopted: false,
            slo: Slo { targets: Targets::default(), source: Source::None },
            demand: 0.0,
            max_rate: None,
            saturation: Saturation::default(),
            learned: Vec::new(),
            kept: settings.kept,
            inputs: VecDeque::new(),
        };
        autopilot.analyze();
        autopilot.update_allowances(now);
        autopilot
    }

    /// A request arrived that counts as load: any that more servers could serve, whether or not the present ones do. A request that
    /// waits for limits of its own arrives when these let it go.
    pub fn arrived(&mut self, now: Instant) {
        self.record_activity(now);
        self.arrivals = self.arrivals.saturating_add(1);
        if self.is_any_ripe {
            self.judge_soon(now);
        }
    }

    /// No number of servers can serve the request that arrived last, at least not yet, so it was no load.
    pub fn refused(&mut self) {
        self.arrivals = self.arrivals.saturating_sub(1);
    }

    /// The policy has refused a request that arrived at `arrived` and waited since then. It was no load, if its window still runs.
    pub fn refused_after_waiting(&mut self, arrived: Instant) {
        if self.window_since.is_some_and(|since| arrived >= since) {
            self.refused();
        }
    }

    /// The pool grants at most so many requests per second; `None`: unlimited. No server can serve what is offered beyond that.
    pub fn limit_demand(&mut self, max_rate: Option<f64>) {
        self.max_rate = max_rate;
    }

    /// The engine granted a request.
    pub fn granted(&mut self, now: Instant, id: RequestId, granted: ExpectedUsage) {
        self.dropped(now, id);
        self.record_activity(now);
        let Some(&index) = self.indices.get(&granted.endpoint) else {
            return;
        };
        let mut request = InFlight::new(index, now, &granted);
        let endpoint = &mut self.endpoints[index];
        let guess = self.variants[endpoint.variant].guess();
        let ttft_ms = guess.map(|parameters| endpoint.first_token_ms(&parameters, &request));
        endpoint.overlap_tracker.record_dispatch(
            millis(now),
            id.0,
            request.uncached,
            request.prompt - request.uncached,
            request.of_one(request.output),
            ttft_ms,
        );
        endpoint.overlap_tracker.set_sequences(id.0, request.sequences);
        endpoint.stats.granted += 1;
        if self.gates && !request.is_extra {
            endpoint.number(id, &mut request);
        }
        endpoint.add(&request);
        if !request.is_extra {
            endpoint.search.granted(now, &endpoint.present());
        }
        self.in_flight.insert(id, request);
        self.plan_judgement(now, index);
    }

    /// A request runs already, by the grant of another companion. The start of its decoding isn't known, so it is load, and
    /// nothing is learned from its times.
    pub fn adopted(&mut self, now: Instant, id: RequestId, granted: ExpectedUsage) {
        let Some(index) = self.found(now, id, granted) else {
            return;
        };
        // The search for a bound starts from all that runs there.
        let endpoint = &mut self.endpoints[index];
        let present = endpoint.present();
        endpoint.search.start_from(now, present.sequences, &present);
        if self.gates {
            self.has_adopted = true;
            self.judge_by(Some(now));
        }
    }

    /// A request that isn't in flight here runs at an endpoint that is followed. It is load, and nothing is learned from its times.
    pub fn came_to(&mut self, now: Instant, id: RequestId, granted: ExpectedUsage) {
        self.found(now, id, granted);
    }

    /// The index of the endpoint, if it is followed.
    fn found(&mut self, now: Instant, id: RequestId, granted: ExpectedUsage) -> Option<usize> {
        self.dropped(now, id);
        self.record_activity(now);
        let index = *self.indices.get(&granted.endpoint)?;
        let mut request = InFlight::new(index, now, &granted);
        request.is_whole = false;
        let endpoint = &mut self.endpoints[index];
        endpoint.overlap_tracker.record_dispatch(
            millis(now),
            id.0,
            0.0,
            request.prompt,
            request.of_one(request.output),
            Some(PREFILLED_MS),
        );
        endpoint.overlap_tracker.set_sequences(id.0, request.sequences);
        endpoint.add(&request);
        self.in_flight.insert(id, request);
        Some(index)
    }

    /// A request is reported that its filter admitted by credit. It is demand, and nothing is learned from its times.
    pub fn admitted_by_credit(&mut self, now: Instant, id: RequestId, granted: ExpectedUsage) {
        self.granted_apart(now, id, granted);
    }

    /// A request is granted whose prompt another endpoint computes. It is demand, and nothing is learned from its times, because they are those
    /// of two servers.
    pub fn granted_apart(&mut self, now: Instant, id: RequestId, granted: ExpectedUsage) {
        self.adopted(now, id, granted);
        if let Some(&index) = self.indices.get(&granted.endpoint) {
            self.endpoints[index].stats.granted += 1;
        }
    }

    /// A request is reported at its end that its filter admitted by credit. It is demand, and nothing is learned from its times. `served`:
    /// `None` if it wasn't served to its end.
    pub fn admitted_by_credit_and_ended(
        &mut self,
        now: Instant,
        id: RequestId,
        granted: ExpectedUsage,
        served: Option<Served>,
    ) {
        let Some(&index) = self.indices.get(&granted.endpoint) else {
            return;
        };
        let endpoint = &mut self.endpoints[index];
        if !endpoint.had_credit(now) {
            self.admitted_by_credit(now, id, granted);
            return match served {
                Some(served) => self.served(now, id, served),
                None => self.dropped(now, id),
            };
        }
        // The endpoint's tracker would drop it, so it need not know it.
        let request = InFlight::new(index, now, &granted);
        endpoint.add(&request);
        endpoint.remove(&request);
        endpoint.stats.granted += 1;
        if let Some(served) = served {
            self.variants[endpoint.variant].pace.observe(&served, granted.sequences);
            let (input, cached) = prompt_tokens(&request, &served);
            let output = served.output.map_or(request.output, count);
            let input = input.unwrap_or(request.uncached);
            endpoint.stats.record(input, cached, output, None, None);
        }
        self.record_activity(now);
    }

    /// A request went to another endpoint than it was granted. The time of that isn't known, so it is load there, and nothing
    /// is learned from its times. If that endpoint isn't followed, the request isn't any more.
    pub fn moved(&mut self, now: Instant, id: RequestId, endpoint: EndpointId) {
        let Some(&index) = self.indices.get(&endpoint) else {
            return self.dropped(now, id);
        };
        let Some(request) = self.in_flight.get_mut(&id) else {
            return;
        };
        if request.endpoint == index {
            return;
        }
        let there = *request;
        request.endpoint = index;
        request.is_whole = false;
        (request.number, request.has_started) = (0, true);
        let request = *request;
        let endpoint = &mut self.endpoints[there.endpoint];
        endpoint.overlap_tracker.record_drop(millis(now), id.0);
        endpoint.remove(&there);
        if !there.is_extra {
            endpoint.search.ended(there.number, there.has_started, None);
        }
        let endpoint = &mut self.endpoints[index];
        endpoint.overlap_tracker.record_dispatch(
            millis(now),
            id.0,
            request.uncached,
            request.prompt - request.uncached,
            request.of_one(request.output),
            None,
        );
        endpoint.overlap_tracker.set_sequences(id.0, request.sequences);
        endpoint.add(&request);
    }

    /// A request was served.
    pub fn served(&mut self, now: Instant, id: RequestId, served: Served) {
        let Some(request) = self.in_flight.remove(&id) else {
            return;
        };
        self.record_activity(now);
        let endpoint = &mut self.endpoints[request.endpoint];
        endpoint.remove(&request);
        let (input, cached) = prompt_tokens(&request, &served);
        let output = served.output.map(count);
        let of_one = output.map(|output| request.of_one(output));
        let streamed = served.streamed && request.is_whole;
        let (first, last) = (served.first.filter(|_| streamed), served.last);
        // A grant of another companion may lie in the future of this clock.
        let time_ms = |after: Duration| millis(request.granted_at.after(after).min(now));
        let completion = Completion {
            first_ms: first.map(time_ms),
            last_ms: last.map(time_ms),
            streamed,
            // The prompt of an adopted request was computed before, whatever its length.
            input: input.filter(|_| request.is_whole),
            cached: input.filter(|_| request.is_whole).map(|_| cached),
            output: of_one,
        };
        if endpoint.had_credit(request.granted_at) {
            // The load beside it isn't known.
            endpoint.overlap_tracker.record_drop(millis(now), id.0);
        } else {
            endpoint.overlap_tracker.record_completion(millis(now), id.0, &completion);
        }
        let itl_ms = match (first, last, of_one) {
            (Some(first), Some(last), Some(output)) if output > 1.0 && last > first => {
                Some((last - first).as_secs_f64() * 1_000.0 / (output - 1.0))
            }
            _ => None,
        };
        let ttft_ms = first.map(|first| first.as_secs_f64() * 1_000.0);
        endpoint.stats.record(
            input.unwrap_or(request.uncached),
            cached,
            output.unwrap_or(request.output),
            ttft_ms,
            itl_ms,
        );
        let shown = Shown {
            tokens: output.unwrap_or(1.0),
            duration: last.unwrap_or_else(|| now.since(request.granted_at)),
            first_token_ms: ttft_ms,
            itl_ms,
        };
        if !request.is_extra {
            endpoint.search.ended(request.number, request.has_started, Some(&shown));
        }
        let variant = &mut self.variants[endpoint.variant];
        variant.pace.observe(&served, request.sequences);
        let is_representative = !(variant.has_established && endpoint.is_young(now, self.transient));
        while let Some(observation) = endpoint.overlap_tracker.poll_observation() {
            if is_representative {
                variant.observe(&observation);
            }
        }
        self.plan_judgement(now, request.endpoint);
    }

    /// A granted request isn't served there, or its end isn't known: it waits again, its client left, or its endpoint failed.
    pub fn dropped(&mut self, now: Instant, id: RequestId) {
        let Some(request) = self.in_flight.remove(&id) else {
            return;
        };
        self.record_activity(now);
        let endpoint = &mut self.endpoints[request.endpoint];
        endpoint.remove(&request);
        endpoint.overlap_tracker.record_drop(millis(now), id.0);
        if !request.is_extra {
            endpoint.search.ended(request.number, request.has_started, None);
        }
        self.plan_judgement(now, request.endpoint);
    }

    /// The time between two tokens of the last answers of the endpoint's variant; `None`: none has shown it.
    #[must_use]
    pub fn token_time(&self, id: EndpointId) -> Option<Duration> {
        let endpoint = &self.endpoints[*self.indices.get(&id)?];
        self.variants[endpoint.variant].pace.token_time()
    }

    /// The health of an endpoint.
    pub fn ready(&mut self, now: Instant, id: EndpointId, ready: bool) {
        if let Some(&index) = self.indices.get(&id) {
            self.endpoints[index].set_ready(now, now.since(self.created_at), ready);
        }
    }

    /// Filters may run requests at an endpoint that are reported only at their end, or no longer. Nothing is learned from the times of
    /// requests there meanwhile, because the load beside them isn't known.
    pub fn set_credit(&mut self, now: Instant, id: EndpointId, has_credit: bool) {
        let Some(&index) = self.indices.get(&id) else {
            return;
        };
        let endpoint = &mut self.endpoints[index];
        if core::mem::replace(&mut endpoint.has_credit, has_credit) && !has_credit {
            endpoint.credit_until = Some(now);
        }
    }

    /// The metrics of a model server; `None` if they can no longer be read.
    pub fn scraped(&mut self, now: Instant, id: EndpointId, scraped: Option<Scraped>) {
        let Some(&index) = self.indices.get(&id) else {
            return;
        };
        if self.endpoints[index].update_metrics(now, scraped.as_ref()) {
            self.record_activity(now);
        }
        if let Some(Scraped { running: Some(running), waiting: Some(waiting), .. }) = scraped {
            self.take_page(now, index, running, waiting);
        }
    }

    /// When [`Self::handle_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let end = self.window_since.map(|since| since.after(self.window))?;
        [self.fit_at, self.judge_at].into_iter().flatten().chain([end]).min()
    }

    /// Closes a window that is over, and learns from it.
    pub fn handle_timeout(&mut self, now: Instant, backlog: Backlog) {
        let Some(since) = self.window_since else {
            return;
        };
        if self.judge_at.is_some_and(|due| due <= now) {
            self.judge_bounds(now, backlog);
        }
        if since.after(self.window) <= now {
            self.close_window(now, since, backlog);
        } else if self.fit_at.is_some_and(|due| due <= now) {
            self.fit_unknown(now, since);
        }
    }

    /// The next input for the engine.
    pub fn poll_input(&mut self) -> Option<Input> {
        self.inputs.pop_front()
    }

    /// Parameters that have changed since the last call enough to be stored, by variant.
    pub fn take_kept(&mut self) -> Vec<(String, Kept)> {
        core::mem::take(&mut self.learned)
    }

    /// The autopilot at this moment.
    #[must_use]
    pub fn status(&self) -> AutopilotStatus {
        let variants: Vec<VariantStatus> = (0..self.variants.len())
            .map(|index| {
                let (current, pending) = self.replicas(index);
                self.variants[index].status(current, pending, self.saturation.required(current))
            })
            .collect();
        AutopilotStatus {
            gate: self.gate_status(),
            slo: self.slo,
            capacity: variants.iter().map(|variant| variant.capacity).sum(),
            variants,
            demand: self.demand,
        }
    }

    /// The requests that are in flight, in no order.
    pub fn in_flight(&self) -> impl Iterator<Item = RequestId> {
        self.in_flight.keys().copied()
    }

    /// The request is in flight at an endpoint that is followed here.
    #[must_use]
    pub fn is_in_flight(&self, id: RequestId) -> bool {
        self.in_flight.contains_key(&id)
    }

    /// The endpoint is listed, or it was and hasn't been forgotten since.
    #[must_use]
    pub fn follows(&self, endpoint: EndpointId) -> bool {
        self.indices.contains_key(&endpoint)
    }

    /// The load of every endpoint agrees with the requests in flight, and its overlap tracker and the queues of requests that haven't begun
    /// follow only these.
    #[must_use]
    pub fn audit(&self) -> bool {
        self.endpoints.iter().enumerate().all(|(index, endpoint)| {
            let in_flight_here = || self.in_flight.values().filter(|request| request.endpoint == index);
            let here = in_flight_here().count();
            let above = in_flight_here().filter(|request| request.is_extra);
            let extra = above
                .fold((0, 0), |(requests, sequences), request| (requests + 1, sequences + request.sequences));
            let within = || in_flight_here().filter(|request| !request.is_extra);
            let unstarted = within().filter(|request| !request.has_started).count();
            let answering = within().filter(|request| request.has_started);
            let answering: u64 = answering.map(|request| request.sequences).sum();
            usize::try_from(endpoint.in_flight()) == Ok(here)
                && endpoint.overlap_tracker.running() <= here
                && endpoint.has_started_counts(unstarted, answering, extra)
        })
    }

    /// Something happens: a window runs from now on.
    fn record_activity(&mut self, now: Instant) {
        if self.window_since.is_none() {
            self.window_since = Some(now);
            self.plan_fit(now);
        }
    }

    /// How many endpoints of a variant are ready, and how many of its servers are not: listed ones, and those that are no
    /// endpoints yet.
    fn replicas(&self, variant: usize) -> (u64, u64) {
        let starting = self.pending_of(variant).map(|pending| pending.servers).sum();
        let listed =
            self.endpoints.iter().filter(|endpoint| endpoint.variant == variant && endpoint.is_listed);
        listed.fold((0, starting), |(ready, pending), endpoint| {
            if endpoint.is_ready { (ready + 1, pending) } else { (ready, pending + 1) }
        })
    }

    /// The servers of a variant that are no endpoints yet.
    fn pending_of(&self, variant: usize) -> impl Iterator<Item = &PendingServers> {
        let name = self.variants.get(variant).map(|variant| variant.name.as_str());
        let pending = self.pending.iter();
        pending.filter(move |pending| name == Some(pending.variant.as_str()))
    }
}

/// Prompt tokens of a served request: those that the server computed, if it counted them, and those that it had cached.
fn prompt_tokens(request: &InFlight, served: &Served) -> (Option<f64>, f64) {
    let cached = served.cached.map_or(request.prompt - request.uncached, count);
    let input = served.prompt.map(|prompt| (count(prompt) - cached).max(0.0));
    (input, cached)
}

/// The variants of the settings by name, and the endpoints.
fn initial(settings: &AutopilotSettings) -> (Vec<Variant>, Vec<Endpoint>) {
    let endpoints = settings.endpoints.iter().map(|endpoint| &endpoint.variant);
    let names = sorted(endpoints.cloned().collect(), &settings.pending);
    let endpoints = settings.endpoints.iter().filter_map(|endpoint| {
        let variant = names.binary_search(&endpoint.variant).ok()?;
        let mut endpoint = Endpoint::new(endpoint, variant, settings.extra_places);
        endpoint.is_fresh = false;
        Some(endpoint)
    });
    let endpoints = endpoints.collect();
    let kept = |name: &str| {
        let kept = settings.kept.iter().find(|(kept, _)| kept == name);
        kept.map(|(_, kept)| *kept)
    };
    let variants = names.into_iter().map(|name| {
        let kept = kept(&name);
        Variant::new(name, kept)
    });
    (variants.collect(), endpoints)
}

/// The names of variants, those of `pending` servers too, each once.
fn sorted(mut names: Vec<String>, pending: &[PendingServers]) -> Vec<String> {
    names.extend(pending.iter().map(|pending| pending.variant.clone()));
    names.sort_unstable();
    names.dedup();
    names
}

/// By endpoint: its index.
fn indices(endpoints: &[Endpoint]) -> HashMap<EndpointId, usize> {
    let indexed = endpoints.iter().enumerate();
    indexed.map(|(index, endpoint)| (endpoint.id, index)).collect()
}

fn millis(time: Instant) -> f64 {
    count(time.as_nanos()) / 1e6
}
