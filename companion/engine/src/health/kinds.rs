//! The last answers of each endpoint to each kind of request.
//!
//! A kind is a model and a path, asked for by one flow. A client's bad requests fail wherever they go; a server that fails does so at
//! requests that other servers answer. So a failure at an endpoint is compared with the answers of other endpoints to the same kind, and with
//! earlier answers of the endpoint itself. If only this endpoint has answered the flow so far, the model and the path alone are compared, and
//! each flow counts once.
//!
//! The table has a limit; the kind that was asked for the longest time ago is forgotten. Of each kind, a few endpoints are remembered: enough
//! for a comparison. Which endpoints serve a model at a path is remembered of all.

use core::time::Duration;

use hashlink::LruCache;
use smallvec::SmallVec;

use crate::input::{AnswerResult, EndpointAnswer, EndpointId, Kind};
use crate::limits::{KIND_ENDPOINTS_MAX, KINDS_MAX, LAST_ANSWERS_MAX};
use crate::time::Instant;

/// How many successes one failure elsewhere is assumed to weigh, before any was seen: a client's request may be bad.
const PRIOR: f64 = 0.5;
/// The same for a failure that the server calls its own.
const PRIOR_OF_SERVERS: f64 = 0.2;
/// Makes the key of a kind without its flow another one than that of any flow.
const ANY_FLOW: u64 = 0x9e37_79b9_7f4a_7c15;

/// The last answers of an endpoint to a kind.
#[derive(Clone, Copy, Debug)]
struct Cell {
    endpoint: EndpointId,
    /// One bit for each answer, the newest the lowest: 1 if it succeeded.
    outcomes: u32,
    /// How many bits count.
    count: u32,
    /// Answers that have begun well and haven't ended.
    begun: u32,
    at: Instant,
}

/// The last four answers of an endpoint to a model and path. Fewer than a cell remembers, because a server may lose a model.
#[derive(Clone, Copy, Debug, Default)]
struct LastAnswers {
    /// As in [`Cell`].
    outcomes: u8,
    begun: u32,
}

impl LastAnswers {
    fn push(&mut self, succeeded: bool) {
        self.outcomes = (self.outcomes << 1 | u8::from(succeeded)) & 0b1111;
    }

    /// One of them succeeded, or one has begun.
    const fn serves(&self) -> bool {
        self.outcomes != 0 || self.begun > 0
    }
}

impl Cell {
    fn push(&mut self, succeeded: bool) {
        self.outcomes = (self.outcomes << 1) | u32::from(succeeded);
        self.count = (self.count + 1).min(u32::BITS);
    }

    /// Successes and failures.
    const fn tally(&self) -> Tally {
        let successes = self.outcomes.count_ones();
        Tally { successes, failures: self.count.saturating_sub(successes) }
    }

    /// Without the failures since the last success.
    const fn tally_before_run(&self) -> Tally {
        if self.outcomes == 0 {
            return Tally { successes: 0, failures: 0 };
        }
        let successes = self.outcomes.count_ones();
        let run = self.outcomes.trailing_zeros();
        Tally { successes, failures: self.count.saturating_sub(successes).saturating_sub(run) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    successes: u32,
    failures: u32,
}

impl Tally {
    /// The probability of a failure.
    fn failing(self, prior: f64) -> f64 {
        let failures = f64::from(self.failures);
        (failures + prior) / (failures + f64::from(self.successes) + 1.0)
    }
}

const fn prior(is_servers: bool) -> f64 {
    if is_servers { PRIOR_OF_SERVERS } else { PRIOR }
}

type Cells = SmallVec<[Cell; 2]>;

/// The tables of a pool.
#[derive(Debug)]
pub(crate) struct Kinds {
    cells: LruCache<u64, Cells>,
    /// By model and path, and endpoint.
    last_answers: LruCache<(u64, EndpointId), LastAnswers>,
}

impl Default for Kinds {
    fn default() -> Self {
        Self { cells: LruCache::new(KINDS_MAX), last_answers: LruCache::new(LAST_ANSWERS_MAX) }
    }
}

const fn key(kind: Kind) -> u64 {
    kind.model_and_path.rotate_left(23) ^ kind.flow
}

const fn key_of_any_flow(kind: Kind) -> u64 {
    kind.model_and_path.rotate_left(23) ^ ANY_FLOW
}

impl Kinds {
    /// Records an answer of an endpoint.
    pub(crate) fn record(&mut self, now: Instant, answer: &EndpointAnswer) {
        let EndpointAnswer { endpoint, kind, result, .. } = *answer;
        for key in [key(kind), key_of_any_flow(kind)] {
            if self.cells.peek(&key).is_none() {
                self.cells.insert(key, Cells::new());
            }
            let Some(cells) = self.cells.get_mut(&key) else { continue };
            let cell = cell_of(cells, now, endpoint);
            cell.at = now;
            cell.begun = cell.begun.saturating_sub(u32::from(answer.has_begun));
            match result {
                AnswerResult::Begun => cell.begun = cell.begun.saturating_add(1),
                AnswerResult::Served => cell.push(true),
                AnswerResult::Failed(_) | AnswerResult::Rejected(_) => cell.push(false),
                // Neither overload nor a client that left says anything about the kind.
                AnswerResult::Refused(_) | AnswerResult::Left => {}
            }
        }
        let key = (kind.model_and_path, endpoint);
        let mut last = self.last_answers.remove(&key).unwrap_or_default();
        last.begun = last.begun.saturating_sub(u32::from(answer.has_begun));
        match result {
            AnswerResult::Begun => last.begun = last.begun.saturating_add(1),
            AnswerResult::Served => last.push(true),
            AnswerResult::Failed(_) | AnswerResult::Rejected(_) => last.push(false),
            AnswerResult::Refused(_) | AnswerResult::Left => {}
        }
        self.last_answers.insert(key, last);
    }

    /// Forgets what an endpoint has answered: its failures were its own, so they are no measure for what it answers later. Visits the whole
    /// table, when an endpoint leaves.
    pub(crate) fn forget(&mut self, endpoint: EndpointId) {
        for (_, cells) in self.cells.iter_mut() {
            cells.retain(|cell| cell.endpoint != endpoint);
        }
        self.last_answers.retain(|(_, answered), _| *answered != endpoint);
    }

    /// The endpoint has served the model at this path lately.
    pub(crate) fn has_served(&self, endpoint: EndpointId, kind: Kind) -> bool {
        self.last_answers.peek(&(kind.model_and_path, endpoint)).is_some_and(LastAnswers::serves)
    }

    /// Some endpoint has.
    pub(crate) fn is_served(&self, kind: Kind) -> bool {
        let cells = self.cells.peek(&key_of_any_flow(kind));
        cells.is_some_and(|cells| cells.iter().any(|cell| self.has_served(cell.endpoint, kind)))
    }

    fn cell(&self, key: u64, endpoint: EndpointId) -> Option<&Cell> {
        self.cells.peek(&key)?.iter().find(|cell| cell.endpoint == endpoint)
    }
}

/// The cell of `endpoint`, which replaces the one that changed the longest time ago if there are too many.
fn cell_of(cells: &mut Cells, now: Instant, endpoint: EndpointId) -> &mut Cell {
    let known = cells.iter().position(|cell| cell.endpoint == endpoint);
    let index = known.unwrap_or_else(|| {
        let new = Cell { endpoint, outcomes: 0, count: 0, begun: 0, at: now };
        if cells.len() < KIND_ENDPOINTS_MAX {
            cells.push(new);
            return cells.len() - 1;
        }
        let oldest = (0..cells.len()).min_by_key(|&index| cells[index].at).unwrap_or(0);
        cells[oldest] = new;
        oldest
    });
    &mut cells[index]
}

/// The table, as one endpoint is compared with the others.
pub(crate) struct Comparison<'a> {
    pub(crate) kinds: &'a Kinds,
    pub(crate) endpoint: EndpointId,
    pub(crate) now: Instant,
    /// Answers before this time ago don't count.
    pub(crate) memory: Duration,
    /// The endpoint is ready and healthy, so its answers are a measure.
    pub(crate) is_measure: &'a dyn Fn(EndpointId) -> bool,
}

impl Comparison<'_> {
    /// How surprising a failure at a request of this kind is: the negative natural logarithm of its probability by the other endpoints' answers,
    /// and by this one's before it began to fail. 0: no other endpoint has succeeded. `flows`: those that have been counted without their own
    /// answers elsewhere.
    pub(crate) fn surprise(&self, kind: Kind, is_servers: bool, flows: &[u64]) -> f64 {
        self.compare(kind, flows, |key| self.surprise_by(key, prior(is_servers), true))
    }

    /// [`Self::surprise`] by the other endpoints' answers alone.
    pub(crate) fn surprise_elsewhere(&self, kind: Kind, is_servers: bool, flows: &[u64]) -> f64 {
        self.compare(kind, flows, |key| self.surprise_by(key, prior(is_servers), false))
    }

    /// [`Self::surprise`] by answers to the same flow alone; `None`: no other endpoint has served it.
    pub(crate) fn surprise_of_flow(&self, kind: Kind, is_servers: bool) -> Option<f64> {
        self.surprise_by(key(kind), prior(is_servers), true)
    }

    fn compare(&self, kind: Kind, flows: &[u64], surprise_by: impl Fn(u64) -> Option<f64>) -> f64 {
        let of_flow = surprise_by(key(kind));
        if of_flow.is_some() || flows.contains(&kind.flow) {
            return of_flow.unwrap_or(0.0);
        }
        // What a flow gets that has succeeded nowhere may be its own fault.
        if self.elsewhere(key(kind)).is_some() {
            return 0.0;
        }
        surprise_by(key_of_any_flow(kind)).unwrap_or(0.0)
    }

    fn surprise_by(&self, key: u64, prior: f64, counts_own: bool) -> Option<f64> {
        let elsewhere = self.elsewhere(key).filter(|tally| tally.successes > 0)?;
        let own = self.kinds.cell(key, self.endpoint).filter(|_| counts_own).map(Cell::tally_before_run);
        let own = own.filter(|tally| tally.failures > 0).map_or(0.0, |tally| tally.failing(prior));
        Some(-libm::log(elsewhere.failing(prior).max(own)))
    }

    /// The answers of the other endpoints; `None` without any.
    fn elsewhere(&self, key: u64) -> Option<Tally> {
        let mut sum = None;
        for cell in self.kinds.cells.peek(&key)? {
            let is_recent = cell.begun > 0 || self.now.since(cell.at) <= self.memory;
            if cell.endpoint == self.endpoint || !is_recent || !(self.is_measure)(cell.endpoint) {
                continue;
            }
            let tally = cell.tally();
            let sum: &mut Tally = sum.get_or_insert_default();
            sum.successes += tally.successes + cell.begun.min(u32::BITS);
            sum.failures += tally.failures;
        }
        sum
    }

    /// The endpoint itself has served this kind before.
    pub(crate) fn was_served_here(&self, kind: Kind, flows: &[u64]) -> bool {
        let has_served = |key| self.kinds.cell(key, self.endpoint).is_some_and(|cell| cell.outcomes != 0);
        has_served(key(kind)) || !flows.contains(&kind.flow) && has_served(key_of_any_flow(kind))
    }
}
