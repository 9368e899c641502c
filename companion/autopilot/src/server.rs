//! One endpoint as the autopilot sees it: what of ours is in flight there, what that does to an iteration, and the
//! window that runs.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_engine::input::EndpointId;
use penstock_model::Parameters;
use penstock_model::overlap_tracker::OverlapTracker;
use penstock_model::workload::Observed;

use crate::types::{Granted, Scraped, Totals};
use crate::window_stats::{Tally, count};

/// For so long a server that has just come up isn't representative: caches are cold, kernels are compiled.
const YOUNG_FOR: Duration = Duration::from_secs(120);
/// What becomes ready for the first time so soon was there before us.
const THERE_BEFORE: Duration = Duration::from_secs(10);

/// A request that is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// Index of its server.
    pub(crate) server: usize,
    pub(crate) granted_at: Instant,
    /// Tokens of its prompt that are computed, all of them, and of its output, as they are expected.
    pub(crate) uncached: f64,
    pub(crate) prompt: f64,
    pub(crate) output: f64,
    /// It was seen from its beginning, at one place: its times say something of that place.
    pub(crate) whole: bool,
}

impl Flight {
    pub(crate) fn new(server: usize, granted_at: Instant, granted: &Granted) -> Self {
        Self {
            server,
            granted_at,
            uncached: count(granted.prompt.saturating_sub(granted.cached)),
            prompt: count(granted.prompt),
            output: count(granted.output),
            whole: true,
        }
    }
}

/// What is in flight, added up.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    requests: u64,
    uncached: f64,
    prompt: f64,
    output: f64,
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) id: EndpointId,
    /// Index of its variant.
    pub(crate) variant: usize,
    pub(crate) max_batch: u64,
    /// The pool has it; else it is here until the last request there has ended.
    pub(crate) listed: bool,
    /// It hasn't got its variant yet.
    pub(crate) is_fresh: bool,
    pub(crate) ready: bool,
    pub(crate) overlap_tracker: OverlapTracker,
    pub(crate) tally: Tally,
    /// The last window that had averages.
    pub(crate) observed: Option<Observed>,
    pub(crate) kv_tokens: Option<u64>,
    /// Mean prompt tokens that were in its cache, when some were last served.
    pub(crate) cached: f64,
    /// Its budget as it was last said.
    pub(crate) budget: Option<penstock_engine::Budget>,
    load: Load,
    /// The most that was in flight in the last window, and in this one.
    peak: u64,
    peak_so_far: u64,
    /// Since when it has been ready, if it wasn't at first.
    ready_since: Option<Instant>,
    totals: Option<Totals>,
    totals_before: Option<Totals>,
}

impl Server {
    pub(crate) fn new(id: EndpointId, variant: usize, max_batch: u64) -> Self {
        Self {
            id,
            variant,
            max_batch,
            listed: true,
            is_fresh: true,
            ready: true,
            overlap_tracker: OverlapTracker::default(),
            tally: Tally::default(),
            observed: None,
            kv_tokens: None,
            cached: 0.0,
            budget: None,
            load: Load::default(),
            peak: 0,
            peak_so_far: 0,
            ready_since: None,
            totals: None,
            totals_before: None,
        }
    }

    /// `age`: of the autopilot.
    pub(crate) fn set_ready(&mut self, now: Instant, age: Duration, ready: bool) {
        if ready && !self.ready && age > THERE_BEFORE {
            self.ready_since = Some(now);
        }
        self.ready = ready;
    }

    /// It isn't listed, and nothing is in flight there.
    pub(crate) const fn is_over(&self) -> bool {
        !self.listed && self.load.requests == 0
    }

    /// It is of another variant: what it did so far says nothing of that.
    pub(crate) fn begin_anew(&mut self) {
        self.overlap_tracker = OverlapTracker::default();
        self.tally = Tally::default();
        self.observed = None;
        self.kv_tokens = None;
        self.cached = 0.0;
        self.totals = None;
        self.totals_before = None;
    }

    /// It hasn't been ready for long.
    pub(crate) fn is_young(&self, now: Instant) -> bool {
        self.ready_since.is_some_and(|since| now.since(since) < YOUNG_FOR)
    }

    /// The most that was in flight of late.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.max(self.peak_so_far)
    }

    /// What the window that runs says so far.
    pub(crate) fn so_far(&self, over: Duration) -> Option<Observed> {
        self.tally.observed(over, self.observed.as_ref())
    }

    pub(crate) const fn in_flight(&self) -> u64 {
        self.load.requests
    }

    /// The time to the first token of a newcomer, by the closed form at what is in flight now.
    pub(crate) fn first_token_ms(&self, parameters: &Parameters, newcomer: &Flight) -> f64 {
        let Load {
            requests,
            uncached,
            prompt,
            output,
        } = self.load;
        let requests = count(requests) + 1.0;
        let output = (output + newcomer.output).max(requests);
        let batch = requests + (uncached + newcomer.uncached) * requests / output;
        let resident = prompt + newcomer.prompt + output / 2.0;
        let iteration_ms = parameters.alpha_ms + parameters.beta_ms * batch + parameters.gamma_ms * resident;
        iteration_ms + (parameters.beta_ms + parameters.gamma_ms) * newcomer.uncached
    }

    pub(crate) fn add(&mut self, flight: &Flight) {
        self.load.requests += 1;
        self.load.uncached += flight.uncached;
        self.load.prompt += flight.prompt;
        self.load.output += flight.output;
        self.peak_so_far = self.peak_so_far.max(self.load.requests);
    }

    pub(crate) fn remove(&mut self, flight: &Flight) {
        self.load.requests = self.load.requests.saturating_sub(1);
        if self.load.requests == 0 {
            // Sums of numbers that aren't whole don't go back to where they were.
            self.load = Load::default();
            return;
        }
        self.load.uncached = (self.load.uncached - flight.uncached).max(0.0);
        self.load.prompt = (self.load.prompt - flight.prompt).max(0.0);
        self.load.output = (self.load.output - flight.output).max(0.0);
    }

    /// `true`: the server has worked since it last spoke.
    pub(crate) fn scraped(&mut self, scraped: Option<&Scraped>) -> bool {
        self.kv_tokens = scraped.and_then(|it| it.kv_tokens).or(self.kv_tokens);
        let totals = scraped.and_then(|it| it.totals);
        let before = core::mem::replace(&mut self.totals, totals);
        // Nobody knows when what happened in between did.
        if totals.is_none() || self.totals_before.is_none() {
            self.totals_before = totals;
        }
        matches!((before, totals), (Some(before), Some(totals)) if before.requests != totals.requests)
    }

    /// Closes the window: what it says, `None` if the endpoint was idle or nothing is known of its requests.
    pub(crate) fn close(&mut self, over: Duration) -> Option<Observed> {
        let scraped = match (self.totals, self.totals_before) {
            (Some(totals), Some(before)) => totals.since(&before, over),
            (None, _) | (_, None) => None,
        };
        self.totals_before = self.totals;
        let tally = core::mem::take(&mut self.tally);
        self.cached = tally.cached().unwrap_or(self.cached);
        self.peak = core::mem::replace(&mut self.peak_so_far, self.load.requests);
        let observed = match tally.observed(over, self.observed.as_ref()) {
            // What ours don't say, because none of them came token by token, the server may.
            Some(ours) if ours.ttft_ms > 0.0 && ours.itl_ms > 0.0 => Some(ours),
            Some(ours) => Some(match scraped {
                Some(scraped) => Observed {
                    ttft_ms: scraped.ttft_ms,
                    itl_ms: scraped.itl_ms,
                    ..ours
                },
                None => ours,
            }),
            None => scraped,
        };
        // They outlast the window, and nothing has changed.
        let observed = observed.or(self.observed.filter(|_| self.load.requests > 0));
        self.observed = observed.or(self.observed);
        observed
    }
}
