//! One endpoint of a pool: its requests in flight, its window, and its model server's metrics.

use core::time::Duration;
use std::collections::VecDeque;

use penstock_engine::input::EndpointId;
use penstock_engine::policy::ExtraPlaces;
use penstock_engine::{Instant, RequestId};
use penstock_model::Parameters;
use penstock_model::overlap_tracker::OverlapTracker;
use penstock_model::workload::Observed;

use crate::bound_search::{BoundSearch, Present};
use crate::types::{AutopilotEndpoint, ExpectedUsage, Scraped, Totals};
use crate::window_stats::{WindowStats, count, with_times_of};

/// Queues of requests that haven't begun may have twice as many more entries as this than requests.
const ENTRIES_MIN: usize = 16;
/// The batch of a server whose batch isn't configured.
const MAX_BATCH_ASSUMED: u64 = 256;
/// An endpoint that becomes ready so soon after the autopilot's creation was up before.
const THERE_BEFORE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub(crate) struct InFlight {
    pub(crate) endpoint: usize,
    pub(crate) granted_at: Instant,
    /// Expected prompt tokens that the model server computes.
    pub(crate) uncached: f64,
    /// Expected prompt tokens, including those in the cache.
    pub(crate) prompt: f64,
    /// Expected output tokens, of all sequences together.
    pub(crate) output: f64,
    /// Sequences that decode at the same time; at least 1.
    pub(crate) sequences: u64,
    /// It was observed from its grant, at one endpoint, so its times show something of that endpoint.
    pub(crate) is_whole: bool,
    /// Its number among the requests within the bound of its endpoint, from 1; 0 for any other.
    pub(crate) number: u64,
    /// The beginning of its answer can be seen.
    pub(crate) is_streamed: bool,
    /// It has begun to answer, or at least isn't queued inside the server.
    pub(crate) has_started: bool,
    /// It runs above the bound, so it says nothing of the bound.
    pub(crate) is_extra: bool,
}

/// The most sequences at a time that are tried at a server with this batch. A batch that nobody has configured is an assumption.
const fn searched_max(max_batch: u64) -> u64 {
    if max_batch == MAX_BATCH_ASSUMED { u64::MAX } else { max_batch }
}

impl InFlight {
    pub(crate) fn new(endpoint: usize, granted_at: Instant, granted: &ExpectedUsage) -> Self {
        Self {
            endpoint,
            granted_at,
            uncached: count(granted.prompt.saturating_sub(granted.cached)),
            prompt: count(granted.prompt),
            output: count(granted.output),
            sequences: granted.sequences.max(1),
            is_whole: true,
            number: 0,
            is_streamed: granted.is_streamed,
            is_extra: granted.is_extra,
            has_started: true,
        }
    }

    /// The part of so many output tokens that one sequence has.
    pub(crate) fn of_one(&self, output: f64) -> f64 {
        output / count(self.sequences)
    }
}

/// The sum of the requests in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    requests: u64,
    sequences: u64,
    /// Requests that haven't begun to answer.
    unstarted: u64,
    /// Sequences of the others.
    answering: u64,
    uncached: f64,
    prompt: f64,
    output: f64,
}

/// The averages of one endpoint in one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Times that the window didn't measure are the last ones that were measured.
    pub(crate) observed: Observed,
    /// Only what the window measured itself; times of 0 were not measured. An old time beside a new rate would teach a
    /// relation that never held.
    pub(crate) measured: Observed,
}

/// A model server's counters at one time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    totals: Totals,
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    pub(crate) variant: usize,
    pub(crate) max_batch: u64,
    /// The engine's bound while there is no allowance.
    pub(crate) bound_initial: u64,
    /// The pool lists it. Otherwise it is kept until its last request has ended.
    pub(crate) is_listed: bool,
    /// It has no variant yet.
    pub(crate) is_fresh: bool,
    pub(crate) is_ready: bool,
    pub(crate) overlap_tracker: OverlapTracker,
    pub(crate) stats: WindowStats,
    /// The averages of the last window that had any.
    pub(crate) observed: Option<Observed>,
    pub(crate) kv_tokens: Option<u64>,
    /// Mean prompt tokens in its cache, in the last window in which requests were served.
    pub(crate) cached: f64,
    /// The endpoint's last allowance.
    pub(crate) allowance: Option<penstock_engine::Allowance>,
    load: Load,
    /// The requests and sequences of `load` above the bound.
    extra: (u64, u64),
    /// Sequences that its server runs beside these, by its last metrics.
    foreign: u64,
    /// Filters may run requests here that aren't known.
    pub(crate) has_credit: bool,
    /// The last time at which they could.
    pub(crate) credit_until: Option<Instant>,
    /// The model predicts what limits it, so measurement only has to find that its server queues.
    pub(crate) is_limited: bool,
    /// How many requests its server computes at a time, by measurement.
    pub(crate) search: BoundSearch,
    /// Requests that were granted here.
    numbered: u64,
    /// Sequences of the last of them.
    width: u64,
    /// Streamed requests that may not have begun to answer, with their numbers, in the order of their grants.
    unstarted: VecDeque<(RequestId, u64)>,
    /// The same of requests whose answers aren't streamed.
    unstarted_whole: VecDeque<(RequestId, u64)>,
    /// The time at which it became ready; `None` if it was up from the start.
    ready_since: Option<Instant>,
    /// The last reading of its counters.
    reading: Option<Reading>,
    /// The last reading before the window began.
    reading_before: Option<Reading>,
}

impl Endpoint {
    pub(crate) fn new(listed: &AutopilotEndpoint, variant: usize, extra_places: ExtraPlaces) -> Self {
        let AutopilotEndpoint { id, max_batch, bound_initial, .. } = *listed;
        Self {
            id,
            variant,
            max_batch,
            bound_initial,
            is_listed: true,
            is_fresh: true,
            is_ready: true,
            overlap_tracker: OverlapTracker::default(),
            stats: WindowStats::default(),
            observed: None,
            kv_tokens: None,
            cached: 0.0,
            allowance: None,
            load: Load::default(),
            extra: (0, 0),
            foreign: 0,
            has_credit: false,
            credit_until: None,
            is_limited: false,
            search: BoundSearch::new(bound_initial, searched_max(max_batch), extra_places),
            numbered: 0,
            width: 1,
            unstarted: VecDeque::new(),
            unstarted_whole: VecDeque::new(),
            ready_since: None,
            reading: None,
            reading_before: None,
        }
    }

    /// Sets the health. `age`: the time since the autopilot's creation.
    pub(crate) fn set_ready(&mut self, now: Instant, age: Duration, ready: bool) {
        if ready && !self.is_ready && age > THERE_BEFORE {
            self.ready_since = Some(now);
        }
        self.is_ready = ready;
    }

    /// Nothing is known of how many requests its server computes at a time.
    pub(crate) fn restart_search(&mut self) {
        let places = self.search.extra_places();
        self.search = BoundSearch::new(self.bound_initial, searched_max(self.max_batch), places);
        self.is_limited = false;
    }

    /// It gets requests.
    pub(crate) const fn is_usable(&self) -> bool {
        self.is_listed && self.is_ready
    }

    pub(crate) fn set_limits(&mut self, listed: &AutopilotEndpoint) {
        let before = core::mem::replace(&mut self.bound_initial, listed.bound_initial);
        self.max_batch = listed.max_batch;
        if self.search.is_untouched(before) {
            self.restart_search();
        }
        let present = self.present();
        self.search.set_bound_max(searched_max(listed.max_batch), &present);
    }

    /// It isn't listed, has no request in flight, and no filter may run one there.
    pub(crate) const fn is_over(&self) -> bool {
        !self.is_listed && self.load.requests == 0 && !self.has_credit
    }

    /// Forgets everything that was observed, because the endpoint has another variant now.
    pub(crate) fn forget_history(&mut self) {
        self.restart_search();
        self.overlap_tracker = OverlapTracker::default();
        self.stats = WindowStats::default();
        self.observed = None;
        self.kv_tokens = None;
        self.cached = 0.0;
        self.reading = None;
        self.reading_before = None;
    }

    /// Requests that aren't known may have run here since `since`.
    pub(crate) fn had_credit(&self, since: Instant) -> bool {
        self.has_credit || self.credit_until.is_some_and(|until| until >= since)
    }

    /// It has become ready less than `transient` ago.
    pub(crate) fn is_young(&self, now: Instant, transient: Duration) -> bool {
        self.ready_since.is_some_and(|since| now.since(since) < transient)
    }

    /// The averages of the window that runs.
    pub(crate) fn window_so_far(&self, length: Duration) -> Option<Observed> {
        let measured = self.measured(length)?;
        Some(self.with_last_times(measured))
    }

    /// What the window shows so far: its requests, and the model server's counters. Both know the requests of this gateway.
    /// Only the server knows the times of responses that aren't streamed, and only its counters know other clients' requests.
    fn measured(&self, length: Duration) -> Option<Observed> {
        let scraped = match (self.reading, self.reading_before) {
            (Some(now), Some(before)) => {
                // Readings may be further apart than windows, and the first one after a gap may be inside this window.
                let between = now.at.since(before.at).max(length);
                now.totals.averages_since(&before.totals, between)
            }
            (None, _) | (_, None) => None,
        };
        let before = self.observed.as_ref().map(|observed| &observed.traffic);
        let Some(ours) = self.stats.averages(length, before) else {
            return scraped;
        };
        let Some(scraped) = scraped.filter(|_| !self.stats.is_mostly_timed()) else {
            return Some(ours);
        };
        // A few streams among many other responses say less than the server's means over all of them.
        let times = with_times_of(scraped, &ours);
        Some(Observed { ttft_ms: times.ttft_ms, itl_ms: times.itl_ms, ..ours })
    }

    fn with_last_times(&self, measured: Observed) -> Observed {
        match &self.observed {
            Some(last) => with_times_of(measured, last),
            None => measured,
        }
    }

    pub(crate) const fn in_flight(&self) -> u64 {
        self.load.requests
    }

    /// The predicted time to the first token of a new request, by the closed form at the present load.
    pub(crate) fn first_token_ms(&self, parameters: &Parameters, newcomer: &InFlight) -> f64 {
        let Load { sequences, uncached, prompt, output, .. } = self.load;
        let sequences = count(sequences) + count(newcomer.sequences);
        let output = (output + newcomer.output).max(sequences);
        let batch = sequences + (uncached + newcomer.uncached) * sequences / output;
        let resident = prompt + newcomer.prompt + output / 2.0;
        let iteration_ms = parameters.alpha_ms + parameters.beta_ms * batch + parameters.gamma_ms * resident;
        iteration_ms + (parameters.beta_ms + parameters.gamma_ms) * newcomer.uncached
    }

    /// What is in flight within the bound, for the search. Sequences that aren't known here take places like the others, and answer.
    pub(crate) const fn present(&self) -> Present {
        let Load { requests, unstarted, .. } = self.load;
        let (extra_requests, extra_sequences) = self.extra;
        let requests = requests.saturating_sub(extra_requests);
        let within = self.load.sequences.saturating_sub(extra_sequences);
        let sequences = within.saturating_add(self.foreign);
        let answering = self.load.answering.saturating_add(self.foreign);
        Present { last: self.numbered, requests, sequences, unstarted, answering, width: self.width }
    }

    /// Gives a granted request its number, before it is added.
    pub(crate) fn number(&mut self, id: RequestId, request: &mut InFlight) {
        self.numbered += 1;
        self.width = request.sequences;
        request.number = self.numbered;
        request.has_started = false;
        let queue = if request.is_streamed { &mut self.unstarted } else { &mut self.unstarted_whole };
        queue.push_back((id, self.numbered));
    }

    fn count_started(&mut self, request: &InFlight, is_more: bool) {
        if request.is_extra {
            return;
        }
        let Load { unstarted, answering, .. } = &mut self.load;
        let (counter, amount) =
            if request.has_started { (answering, request.sequences) } else { (unstarted, 1) };
        *counter = if is_more { *counter + amount } else { counter.saturating_sub(amount) };
    }

    /// `request` has begun to answer, or at least isn't queued inside the server.
    pub(crate) fn start(&mut self, request: &mut InFlight) {
        self.count_started(request, false);
        request.has_started = true;
        self.count_started(request, true);
    }

    /// The streamed request that was granted first, of those that haven't begun to answer. `is_unstarted`: a request with this number
    /// is one of them.
    pub(crate) fn oldest_unstarted(
        &mut self,
        is_unstarted: impl Fn(RequestId, u64) -> bool,
    ) -> Option<RequestId> {
        // Behind one that never begins, entries of ended requests would pile up.
        let kept_max =
            2 * usize::try_from(self.load.requests).unwrap_or(usize::MAX).saturating_add(ENTRIES_MIN);
        for queue in [&mut self.unstarted, &mut self.unstarted_whole] {
            if queue.len() > kept_max {
                queue.retain(|&(id, number)| is_unstarted(id, number));
            }
            while queue.front().is_some_and(|&(id, number)| !is_unstarted(id, number)) {
                queue.pop_front();
            }
        }
        self.unstarted.front().map(|(id, _)| *id)
    }

    /// The beginnings of answers are watched no longer.
    pub(crate) fn forget_unstarted(&mut self) {
        self.unstarted.clear();
        self.unstarted_whole.clear();
    }

    /// So many requests haven't begun to answer, so many sequences answer, so many requests and sequences run above the bound, and few entries of others are kept.
    pub(crate) fn has_started_counts(&self, unstarted: usize, answering: u64, extra: (u64, u64)) -> bool {
        let kept_max =
            2 * usize::try_from(self.load.requests).unwrap_or(usize::MAX).saturating_add(ENTRIES_MIN) + 1;
        usize::try_from(self.load.unstarted) == Ok(unstarted)
            && self.load.answering == answering
            && self.extra == extra
            && self.unstarted.len() <= kept_max
            && self.unstarted_whole.len() <= kept_max
    }

    /// The next request with an unstreamed answer that was granted before the one with this number and hasn't begun to answer. Servers
    /// begin with requests in their order, so it has begun when that one begins.
    pub(crate) fn whole_before(
        &mut self,
        number: u64,
        is_unstarted: impl Fn(RequestId, u64) -> bool,
    ) -> Option<RequestId> {
        while let Some(&(id, own)) = self.unstarted_whole.front().filter(|(_, own)| *own < number) {
            self.unstarted_whole.pop_front();
            if is_unstarted(id, own) {
                return Some(id);
            }
        }
        None
    }

    pub(crate) fn add(&mut self, request: &InFlight) {
        self.load.requests += 1;
        self.load.sequences += request.sequences;
        if request.is_extra {
            self.extra = (self.extra.0 + 1, self.extra.1 + request.sequences);
        }
        self.load.uncached += request.uncached;
        self.load.prompt += request.prompt;
        self.load.output += request.output;
        self.count_started(request, true);
    }

    pub(crate) fn remove(&mut self, request: &InFlight) {
        self.load.requests = self.load.requests.saturating_sub(1);
        if self.load.requests == 0 {
            // Sums of fractions don't return to exactly 0.
            self.load = Load::default();
            self.extra = (0, 0);
            return;
        }
        if request.is_extra {
            let (requests, sequences) = self.extra;
            self.extra = (requests.saturating_sub(1), sequences.saturating_sub(request.sequences));
        }
        self.load.sequences = self.load.sequences.saturating_sub(request.sequences);
        self.count_started(request, false);
        self.load.uncached = (self.load.uncached - request.uncached).max(0.0);
        self.load.prompt = (self.load.prompt - request.prompt).max(0.0);
        self.load.output = (self.load.output - request.output).max(0.0);
    }

    /// Takes the model server's metrics. `true` if it has served requests since the last ones.
    pub(crate) fn update_metrics(&mut self, now: Instant, scraped: Option<&Scraped>) -> bool {
        let running = scraped.and_then(|scraped| scraped.running);
        self.foreign = running.unwrap_or(0).saturating_sub(self.load.sequences);
        self.kv_tokens = scraped.and_then(|scraped| scraped.kv_tokens).or(self.kv_tokens);
        let totals = scraped.and_then(|scraped| scraped.totals);
        let reading = totals.map(|totals| Reading { at: now, totals });
        let before = core::mem::replace(&mut self.reading, reading);
        // Requests between two readings with a gap can't be assigned to a window.
        if reading.is_none() || self.reading_before.is_none() {
            self.reading_before = reading;
        }
        matches!((before, totals), (Some(before), Some(totals)) if before.totals.requests != totals.requests)
    }

    /// Closes the window and returns its averages; `None` if the endpoint was idle, or if no average is known.
    pub(crate) fn close_window(&mut self, length: Duration) -> Option<Window> {
        let measured = self.measured(length);
        self.reading_before = self.reading;
        let stats = core::mem::take(&mut self.stats);
        self.cached = stats.cached().unwrap_or(self.cached);
        let window = match measured {
            Some(measured) => Some(Window { observed: self.with_last_times(measured), measured }),
            // The requests in flight are longer than the window, so the averages haven't changed.
            None => self.observed.filter(|_| self.load.requests > 0).map(|observed| Window {
                observed,
                measured: Observed { ttft_ms: 0.0, itl_ms: 0.0, ..observed },
            }),
        };
        self.observed = window.map(|window| window.observed).or(self.observed);
        window
    }
}
