//! What runs at one endpoint over time, and what that was to each request: C, the decodes beside it and the prompts
//! that were computed meanwhile, and M, the tokens that were resident.
//!
//! A request is known exactly when it has ended: when its first and its last token came, and how many there were. So
//! each waits until those that came after it and overlap it have ended too, or until enough others have; then it is
//! set against all that overlapped it, at the cost of one visit to each. A mean is one over iterations, not over time:
//! an iteration that computes a prompt is long, and counts once. Servers take requests in the order they come, so the
//! first token of one that still runs lies between those of its neighbours.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::{PAST_MAX, PATIENCE, RUNNING_MAX, TOKENS_MAX};

/// A request that has ended, as its server saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// When its last token came.
    pub at_ms: f64,
    /// Tokens of its prompt that were computed.
    pub input: f64,
    /// Tokens of its output.
    pub output: f64,
    /// From its dispatch to its first token; 0: it isn't known.
    pub ttft_ms: f64,
    /// The time to the first token that was predicted at its dispatch; `None`: nothing was, or the first token's time
    /// isn't known.
    pub ttft_predicted_ms: Option<f64>,
    /// Its mean time between tokens, and the load it decoded under; `None`: it had one token, or no stream.
    pub decode: Option<Decode>,
}

/// The decoding of one request: `itl_ms = alpha + beta * batch + gamma * resident`, and noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Mean time between its tokens.
    pub itl_ms: f64,
    /// C: decodes in flight, itself included, and prompt tokens computed meanwhile for each of its decodes.
    pub batch: f64,
    /// M: resident tokens, its own included.
    pub resident: f64,
}

/// A request that has ended, and all that is known of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Served {
    /// Its first token; it decoded from then on.
    pub first_ms: f64,
    /// Its last token.
    pub last_ms: f64,
    /// Tokens of its prompt that were computed.
    pub input: f64,
    /// Tokens of its output.
    pub output: f64,
}

impl Decode {
    /// The load that `request` decoded under, where all that ran beside it is known. `others`: those of its endpoint
    /// that decoded at some time while it did; not itself. `None`: it had one token, or its times make no sense.
    pub fn beside<'a>(request: &Served, others: impl IntoIterator<Item = &'a Served>) -> Option<Self> {
        let gaps = request.output - 1.0;
        let itl_ms = (request.last_ms - request.first_ms) / gaps;
        if !(gaps >= 1.0 && itl_ms > 0.0 && itl_ms.is_finite()) {
            return None;
        }
        let mut load = Load::new(&request.into(), request.first_ms, request.last_ms, itl_ms);
        for other in others {
            load.add(&other.into(), other.first_ms);
        }
        load.mean(gaps)
    }
}

/// How a request ended. Moments are of the clock of `now_ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// Its first token; `None`: there was none, or it isn't known.
    pub first_ms: Option<f64>,
    /// Its last token.
    pub last_ms: Option<f64>,
    /// It came token by token.
    pub streamed: bool,
    /// Tokens of its prompt that were computed; `None`: as expected.
    pub input: Option<f64>,
    /// Tokens of its output; `None`: nobody counted.
    pub output: Option<f64>,
}

/// One that was sent there.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// By order of dispatch.
    number: u64,
    dispatched_ms: f64,
    input: f64,
    cached: f64,
    output: f64,
    ttft_ms: Option<f64>,
    /// Its first token, where that is known.
    first_ms: Option<f64>,
    /// Its last token; `None`: it runs.
    last_ms: Option<f64>,
}

impl From<&Served> for Entry {
    fn from(request: &Served) -> Self {
        Self {
            number: 0,
            dispatched_ms: request.first_ms,
            input: tokens(request.input),
            cached: 0.0,
            output: tokens(request.output),
            ttft_ms: None,
            first_ms: Some(request.first_ms),
            last_ms: Some(request.last_ms),
        }
    }
}

/// One that has ended, and waits for others to end.
#[derive(Clone, Copy, Debug)]
struct Pending {
    observation: Observation,
    number: u64,
    first_ms: f64,
    /// None of those before this one is waited for.
    next: u64,
    /// Requests ended there by which it waits no longer.
    until: u64,
}

/// What runs at one endpoint. Numbers that are none, or negative, count as 0.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    running: BTreeMap<u64, u64>,
    /// In the order of dispatch: those that run, and those that ended and overlap one that isn't settled.
    entries: VecDeque<Entry>,
    /// At that many the entries are tidied.
    tidy_at: usize,
    pending: Vec<Pending>,
    settled: VecDeque<Observation>,
    dispatched: u64,
    ended: u64,
    /// Until when entries were forgotten for want of room: before that not all is known.
    forgotten_ms: Option<f64>,
    first_token: FirstToken,
    /// Mean time between tokens of late; 0: none was seen.
    itl_ms: f64,
}

impl Ledger {
    /// `id` was sent there: with so many prompt tokens to compute, `cached` ones beside, and an expected output. Its
    /// first token is expected after `ttft_ms`. One that runs already is forgotten first.
    pub fn dispatched(
        &mut self,
        now_ms: f64,
        id: u64,
        input: f64,
        cached: f64,
        output: f64,
        ttft_ms: Option<f64>,
    ) {
        self.dropped(now_ms, id);
        if !now_ms.is_finite() || self.running.len() >= RUNNING_MAX {
            return;
        }
        let before_ms = self.entries.back().map_or(now_ms, |last| last.dispatched_ms);
        let number = self.dispatched;
        self.dispatched += 1;
        self.running.insert(id, number);
        self.entries.push_back(Entry {
            number,
            dispatched_ms: now_ms.max(before_ms),
            input: tokens(input),
            cached: tokens(cached),
            output: tokens(output),
            ttft_ms: ttft_ms.filter(|ms| ms.is_finite() && *ms >= 0.0),
            first_ms: None,
            last_ms: None,
        });
    }

    /// Requests that run there, as far as they are followed.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// `id` has ended there. What it says comes from [`Self::poll`], now or when others have ended. Times that make no
    /// sense are as if it had been dropped.
    pub fn ended(&mut self, now_ms: f64, id: u64, end: &End) {
        let last_ms = end.last_ms.unwrap_or(now_ms);
        let Some(at) = self.running.get(&id).and_then(|number| self.position(*number)) else {
            return;
        };
        let running = self.running.len();
        let entry = &mut self.entries[at];
        let sound = |ms: f64| ms.is_finite() && ms >= entry.dispatched_ms;
        if !sound(last_ms) {
            return self.dropped(now_ms, id);
        }
        let first_ms = end
            .first_ms
            .filter(|first| end.streamed && sound(*first) && *first <= last_ms);
        entry.first_ms = first_ms;
        entry.last_ms = Some(last_ms);
        entry.input = end.input.map_or(entry.input, tokens);
        entry.output = end.output.map_or(entry.output, tokens);
        let entry = *entry;
        self.running.remove(&id);
        self.ended += 1;
        let ttft_ms = first_ms.map_or(0.0, |first| first - entry.dispatched_ms);
        let gaps = entry.output - 1.0;
        if let Some(first_ms) = first_ms {
            self.first_token.saw(ttft_ms, entry.ttft_ms);
            if gaps >= 1.0 {
                let weight = if self.itl_ms > 0.0 { 0.1 } else { 1.0 };
                self.itl_ms += weight * ((last_ms - first_ms) / gaps - self.itl_ms);
            }
        }
        let observation = Observation {
            at_ms: last_ms,
            input: entry.input,
            output: entry.output,
            ttft_ms,
            ttft_predicted_ms: entry.ttft_ms.filter(|_| first_ms.is_some()),
            decode: None,
        };
        match first_ms.filter(|first| gaps >= 1.0 && end.output.is_some() && last_ms > *first) {
            Some(first_ms) if running < RUNNING_MAX => self.pending.push(Pending {
                observation,
                number: entry.number,
                first_ms,
                next: entry.number + 1,
                until: self.ended + PATIENCE * running as u64,
            }),
            Some(_) | None => self.settled.push_back(observation),
        }
        self.settle();
    }

    /// `id` never ran there, or nobody knows what became of it: from when its first token was expected it counts as
    /// one that decoded until now.
    pub fn dropped(&mut self, now_ms: f64, id: u64) {
        let Some(at) = self.running.remove(&id).and_then(|number| self.position(number)) else {
            return;
        };
        let expected_ms = self.first_token.expected(&self.entries[at]);
        let produced = (now_ms - expected_ms) / self.itl_ms;
        let entry = &mut self.entries[at];
        if now_ms.is_finite() && expected_ms < now_ms {
            entry.last_ms = Some(now_ms);
            if self.itl_ms > 0.0 {
                entry.output = tokens(produced).min(entry.output.max(1.0));
            }
        } else {
            self.entries.remove(at);
        }
        self.settle();
    }

    /// The next request that has ended and whose load is known as well as it will be.
    pub fn poll(&mut self) -> Option<Observation> {
        self.settled.pop_front()
    }

    fn position(&self, number: u64) -> Option<usize> {
        let at = self.entries.partition_point(|entry| entry.number < number);
        (self.entries.get(at)?.number == number).then_some(at)
    }

    /// Lets go of those whose neighbours have ended.
    fn settle(&mut self) {
        let mut at = 0;
        while let Some(pending) = self.pending.get(at).copied() {
            let (next, waits) = self.waits(&pending);
            if waits && self.ended < pending.until {
                self.pending[at].next = next;
                at += 1;
                continue;
            }
            self.pending.swap_remove(at);
            let mut observation = pending.observation;
            observation.decode = self.decode(pending.number);
            self.settled.push_back(observation);
        }
        if self.entries.len() >= self.tidy_at {
            self.tidy();
        }
    }

    /// The first of those sent after it and before its end that still runs.
    fn waits(&self, pending: &Pending) -> (u64, bool) {
        let from = self.entries.partition_point(|entry| entry.number < pending.next);
        for entry in self.entries.range(from..) {
            if entry.dispatched_ms >= pending.observation.at_ms {
                return (entry.number, false);
            }
            if entry.last_ms.is_none() {
                return (entry.number, true);
            }
        }
        (self.dispatched, false)
    }

    /// The load that one of them decoded under: every other one's part in its iterations.
    fn decode(&self, number: u64) -> Option<Decode> {
        let r = self.entries.get(self.position(number)?)?;
        let (first_ms, last_ms) = (r.first_ms?, r.last_ms?);
        if self.forgotten_ms.is_some_and(|until| until > first_ms) {
            return None;
        }
        let gaps = r.output - 1.0;
        let itl_ms = (last_ms - first_ms) / gaps;
        let mut load = Load::new(r, first_ms, last_ms, itl_ms);
        // The first tokens of the nearest before and after whose own is known.
        let (mut before_ms, mut after_ms) = (f64::NEG_INFINITY, None);
        for (at, q) in self.entries.iter().enumerate() {
            if q.dispatched_ms > last_ms + load.jitter_ms {
                break;
            }
            let q_first_ms = q.first_ms.unwrap_or_else(|| {
                let upper = *after_ms.get_or_insert_with(|| {
                    let known = |q: &Entry| q.first_ms;
                    self.entries.range(at..).find_map(known).unwrap_or(f64::INFINITY)
                });
                self.first_token
                    .expected(q)
                    .min(upper)
                    .max(before_ms)
                    .max(q.dispatched_ms)
            });
            if q.first_ms.is_some() {
                before_ms = before_ms.max(q_first_ms);
                after_ms = None;
            }
            if q.number != number {
                load.add(q, q_first_ms);
            }
        }
        load.mean(gaps)
    }

    /// Forgets those that overlap nothing any more, and if they are too many, the older half.
    fn tidy(&mut self) {
        let oldest_ms = (self.pending.iter().map(|pending| pending.first_ms))
            .chain(
                self.entries
                    .iter()
                    .find(|e| e.last_ms.is_none())
                    .map(|e| e.dispatched_ms),
            )
            .fold(f64::INFINITY, f64::min);
        self.entries
            .retain(|entry| entry.last_ms.is_none_or(|last| last >= oldest_ms));
        if self.entries.len() - self.running.len().min(self.entries.len()) > PAST_MAX {
            let half = self.entries[self.entries.len() / 2].number;
            let forgotten_ms = &mut self.forgotten_ms;
            self.entries.retain(|entry| match entry.last_ms {
                Some(last) if entry.number < half => {
                    *forgotten_ms = Some(forgotten_ms.map_or(last, |until| until.max(last)));
                    false
                }
                Some(_) | None => true,
            });
        }
        self.tidy_at = (self.entries.len() * 5 / 4).max(32);
    }
}

fn tokens(count: f64) -> f64 {
    if count.is_nan() {
        0.0
    } else {
        count.clamp(0.0, TOKENS_MAX)
    }
}

/// What the iterations of one request had to do, summed up.
struct Load {
    first_ms: f64,
    last_ms: f64,
    itl_ms: f64,
    /// First tokens this near belong to one iteration.
    jitter_ms: f64,
    /// Tokens that were processed.
    tokens: f64,
    /// Resident tokens, in each iteration.
    resident: f64,
}

impl Load {
    /// Its own part to begin with.
    fn new(r: &Entry, first_ms: f64, last_ms: f64, itl_ms: f64) -> Self {
        let gaps = r.output - 1.0;
        Self {
            first_ms,
            last_ms,
            itl_ms,
            jitter_ms: (itl_ms * 0.1).min(2.0),
            tokens: gaps,
            resident: gaps * (r.cached + r.input + r.output / 2.0),
        }
    }

    /// Over so many iterations.
    fn mean(&self, gaps: f64) -> Option<Decode> {
        let (itl_ms, batch, resident) = (self.itl_ms, self.tokens / gaps, self.resident / gaps);
        let sound = [itl_ms, batch, resident]
            .iter()
            .all(|value| value.is_finite() && *value > 0.0);
        sound.then_some(Decode {
            itl_ms,
            batch,
            resident,
        })
    }

    /// Another one's: its prompt, if that was computed meanwhile, and its decodes.
    fn add(&mut self, q: &Entry, q_first_ms: f64) {
        let (first, last) = (self.first_ms + self.jitter_ms, self.last_ms + self.jitter_ms);
        if q_first_ms > first && q_first_ms <= last {
            // A prompt is computed in the iteration that ends with its first token.
            self.tokens += q.input;
            self.resident += q.cached + q.input;
        }
        // One that runs goes on; what it does after `r` plays no part.
        let q_last_ms = q.last_ms.unwrap_or(self.last_ms).max(q_first_ms);
        let (from, to) = (q_first_ms.max(self.first_ms), q_last_ms.min(self.last_ms));
        let overlap_ms = to - from;
        if overlap_ms <= 0.0 {
            return;
        }
        let span_ms = q_last_ms - q_first_ms;
        let q_itl_ms = if q.last_ms.is_some() && q.output > 1.0 {
            span_ms / (q.output - 1.0)
        } else {
            self.itl_ms
        };
        // The one of the two that lies more within the other knows better how many iterations they shared.
        let itl_ms = if span_ms < self.last_ms - self.first_ms {
            q_itl_ms
        } else {
            self.itl_ms
        };
        let shared = overlap_ms / itl_ms;
        let produced = (f64::midpoint(from, to) - q_first_ms) / q_itl_ms;
        self.tokens += shared;
        self.resident += shared * (q.cached + q.input + produced + 0.5);
    }
}

/// When first tokens come, of late: for those whose own isn't known yet.
#[derive(Clone, Copy, Debug, Default)]
struct FirstToken {
    /// Mean time to it; 0: none was seen.
    mean_ms: f64,
    /// Observed over predicted; 0: none was seen.
    bias: f64,
}

impl FirstToken {
    fn saw(&mut self, ttft_ms: f64, predicted_ms: Option<f64>) {
        let weight = |seen: f64| if seen > 0.0 { 0.05 } else { 1.0 };
        self.mean_ms += weight(self.mean_ms) * (ttft_ms - self.mean_ms);
        if let Some(predicted_ms) = predicted_ms.filter(|ms| *ms > 0.0) {
            let ratio = (ttft_ms / predicted_ms).clamp(0.01, 100.0);
            self.bias += weight(self.bias) * (ratio - self.bias);
        }
    }

    /// When that of `entry` is expected.
    fn expected(&self, entry: &Entry) -> f64 {
        let after_ms = match entry.ttft_ms {
            Some(ms) if self.bias > 0.0 => ms * self.bias,
            Some(ms) => ms,
            None => self.mean_ms,
        };
        entry.dispatched_ms + after_ms
    }
}
