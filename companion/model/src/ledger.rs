//! What runs at one endpoint over time, and what that was to each request: C, the decodes beside it and the prompts
//! that were computed meanwhile, and M, the tokens that were resident.
//!
//! A request is known exactly when it has ended: when its first and its last token came, and how many there were. So
//! each waits until those that came after it and overlap it have ended too, or until enough others have; then it is
//! set against all that overlapped it, at the cost of one visit to each. A mean is one over iterations, not over time:
//! an iteration that computes a prompt is long, and counts once. Servers take requests in the order they come, so the
//! first token of one that still runs lies between those of its neighbours.

use std::collections::{BTreeMap, VecDeque};

use crate::first_token::FirstToken;
use crate::limits::{PAST_MAX, PATIENCE, RUNNING_MAX, TOKENS_MAX};
use crate::overlap::{self, Span};

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
    /// Of this, the prompt tokens.
    pub prompts: f64,
    /// M: resident tokens, its own included.
    pub resident: f64,
    /// How the others beside it came and went while it decoded: the variance over time of how many there were, the
    /// covariance of that with their resident tokens, and the variance of these.
    pub uneven: [f64; 3],
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
    /// Tokens of its prompt that the server held already; `None`: as expected.
    pub cached: Option<f64>,
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
    /// What a prompt token adds to an iteration, where that was learned.
    prompt_ms: Option<f64>,
    /// Kept for its room.
    spans: Vec<Span>,
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
        entry.cached = end.cached.map_or(entry.cached, tokens);
        entry.output = end.output.map_or(entry.output, tokens);
        let entry = *entry;
        self.running.remove(&id);
        self.ended += 1;
        let ttft_ms = first_ms.map_or(0.0, |first| first - entry.dispatched_ms);
        let gaps = entry.output - 1.0;
        if let Some(first_ms) = first_ms {
            self.first_token.saw(ttft_ms, entry.input, entry.ttft_ms);
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
        let expected_ms = self.expected_first(&self.entries[at]);
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

    /// What a prompt token adds to an iteration has been learned, in milliseconds. Until then it is guessed from the times
    /// to first tokens.
    pub fn learned(&mut self, prompt_ms: f64) {
        self.prompt_ms = Some(prompt_ms).filter(|ms| ms.is_finite() && *ms >= 0.0);
    }

    /// The next request that has ended and whose load is known as well as it will be.
    pub fn poll(&mut self) -> Option<Observation> {
        self.settled.pop_front()
    }

    fn position(&self, number: u64) -> Option<usize> {
        let at = self.entries.partition_point(|entry| entry.number < number);
        (self.entries.get(at)?.number == number).then_some(at)
    }

    fn expected_first(&self, entry: &Entry) -> f64 {
        entry.dispatched_ms + self.first_token.expected_ms(entry.input, entry.ttft_ms)
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

    /// The load that one of them decoded under.
    fn decode(&mut self, number: u64) -> Option<Decode> {
        let r = self.entries.get(self.position(number)?)?;
        let (first_ms, last_ms) = (r.first_ms?, r.last_ms?);
        if self.forgotten_ms.is_some_and(|until| until > first_ms) {
            return None;
        }
        let mut spans = core::mem::take(&mut self.spans);
        spans.clear();
        let itl_ms = (last_ms - first_ms) / (r.output - 1.0);
        let mut own = 0;
        // The first tokens of the nearest before and after whose own is known.
        let (mut before_ms, mut after_ms) = (f64::NEG_INFINITY, None);
        for (at, q) in self.entries.iter().enumerate() {
            if q.dispatched_ms >= last_ms {
                break;
            }
            let mut doubtful = false;
            let q_first_ms = q.first_ms.unwrap_or_else(|| {
                let upper = *after_ms.get_or_insert_with(|| {
                    let known = |q: &Entry| q.first_ms;
                    self.entries.range(at..).find_map(known).unwrap_or(f64::INFINITY)
                });
                let expected_ms = self.expected_first(q);
                let least = before_ms.max(q.dispatched_ms);
                let most = upper
                    .min(expected_ms + (expected_ms - q.dispatched_ms))
                    .max(least);
                doubtful = [first_ms, last_ms].iter().any(|end| (least..most).contains(end));
                expected_ms.min(upper).max(q.dispatched_ms)
            });
            if q.first_ms.is_some() {
                after_ms = None;
            }
            before_ms = q_first_ms.max(before_ms);
            // One that runs goes on; what it does after `r` plays no part.
            let q_last_ms = q.last_ms.unwrap_or(last_ms).max(before_ms);
            if q.number == number {
                own = spans.len();
            } else if q_last_ms <= first_ms {
                continue;
            }
            let goes_on = || 1.0 + (q_last_ms - before_ms) / itl_ms;
            spans.push(Span {
                first_ms: if q.number == number { first_ms } else { before_ms },
                last_ms: q_last_ms,
                input: q.input,
                held: q.cached + q.input,
                output: q.last_ms.map_or_else(goes_on, |_| q.output.max(1.0)),
                doubtful,
                computed_ms: 0.0,
            });
        }
        let prompt_ms = (self.prompt_ms).unwrap_or_else(|| self.first_token.prompt_ms(self.itl_ms));
        let decode = overlap::decode(&mut spans, own, prompt_ms);
        self.spans = spans;
        decode
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
