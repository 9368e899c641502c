//! What runs at one endpoint over time, and what that was to each request: C, the decodes beside it and the prompts
//! that were computed meanwhile, and M, the tokens that were resident.
//!
//! A request is known exactly when it has ended: when its first and its last token came, and how many there were. So
//! each is set against all that overlapped it, those that have ended as they were and those that still run as they
//! are expected, at the cost of one visit to each of them. A mean is one over iterations, not over time: an iteration
//! that computes a prompt is long, and counts once.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::{ENDED_MAX, RUNNING_MAX, TOKENS_MAX};

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

/// One that was sent there and has not ended.
#[derive(Clone, Copy, Debug)]
struct Running {
    dispatched_ms: f64,
    input: f64,
    cached: f64,
    output: f64,
    ttft_ms: Option<f64>,
}

/// One that has ended: it decoded from `first_ms` to `last_ms`.
#[derive(Clone, Copy, Debug)]
struct Ended {
    ended_ms: f64,
    first_ms: f64,
    last_ms: f64,
    input: f64,
    cached: f64,
    output: f64,
}

/// What runs at one endpoint. Numbers that are none, or negative, count as 0.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    running: BTreeMap<u64, Running>,
    /// In the order they ended.
    ended: VecDeque<Ended>,
    /// When the newest that was forgotten for want of room had ended: of nothing earlier is all known.
    forgotten_ms: Option<f64>,
    first_token: FirstToken,
    /// Mean time between tokens of late; 0: none was seen.
    itl_ms: f64,
}

impl Ledger {
    /// `id` was sent there: with so many prompt tokens to compute, `cached` ones beside, and an expected output. Its
    /// first token is expected after `ttft_ms`. One that runs already is replaced.
    pub fn dispatched(
        &mut self,
        now_ms: f64,
        id: u64,
        input: f64,
        cached: f64,
        output: f64,
        ttft_ms: Option<f64>,
    ) {
        if !now_ms.is_finite() || self.running.len() >= RUNNING_MAX {
            return;
        }
        self.running.insert(
            id,
            Running {
                dispatched_ms: now_ms,
                input: tokens(input),
                cached: tokens(cached),
                output: tokens(output),
                ttft_ms: ttft_ms.filter(|ms| ms.is_finite() && *ms > 0.0),
            },
        );
    }

    /// `id` has ended there. `None`: it never was there, or its times make no sense.
    pub fn ended(&mut self, now_ms: f64, id: u64, end: &End) -> Option<Observation> {
        let was = self.running.remove(&id)?;
        let last_ms = end.last_ms.unwrap_or(now_ms);
        if !last_ms.is_finite() || !now_ms.is_finite() || last_ms < was.dispatched_ms {
            return None;
        }
        let first_ms = end
            .first_ms
            .filter(|first| end.streamed && *first >= was.dispatched_ms && *first <= last_ms);
        let request = Ended {
            ended_ms: now_ms,
            first_ms: first_ms.unwrap_or_else(|| self.expected_first(&was).min(last_ms)),
            last_ms,
            input: end.input.map_or(was.input, tokens),
            cached: was.cached,
            output: end.output.map_or(was.output, tokens),
        };
        let ttft_ms = first_ms.map_or(0.0, |first| first - was.dispatched_ms);
        if first_ms.is_some() {
            self.first_token.saw(ttft_ms, was.ttft_ms);
        }
        let counted = first_ms.is_some() && end.output.is_some();
        let decode = counted.then(|| self.decode(now_ms, &request)).flatten();
        if let Some(decode) = decode {
            let weight = if self.itl_ms > 0.0 { 0.1 } else { 1.0 };
            self.itl_ms += weight * (decode.itl_ms - self.itl_ms);
        }
        self.keep(request);
        Some(Observation {
            at_ms: last_ms,
            input: request.input,
            output: request.output,
            ttft_ms,
            ttft_predicted_ms: was.ttft_ms.filter(|_| first_ms.is_some()),
            decode,
        })
    }

    /// `id` never ran there, or nobody knows what became of it: from when its first token was expected it counts as
    /// one that decoded until now.
    pub fn dropped(&mut self, now_ms: f64, id: u64) {
        let Some(was) = self.running.remove(&id) else {
            return;
        };
        let first_ms = self.expected_first(&was);
        if now_ms.is_finite() && first_ms < now_ms {
            let produced = if self.itl_ms > 0.0 {
                (now_ms - first_ms) / self.itl_ms
            } else {
                was.output
            };
            self.keep(Ended {
                ended_ms: now_ms,
                first_ms,
                last_ms: now_ms,
                input: was.input,
                cached: was.cached,
                output: tokens(produced).min(was.output.max(1.0)),
            });
        }
    }

    fn expected_first(&self, request: &Running) -> f64 {
        request.dispatched_ms + self.first_token.expected(request.ttft_ms)
    }

    /// The load that `r` decoded under: every other one's part in its iterations.
    fn decode(&self, now_ms: f64, r: &Ended) -> Option<Decode> {
        let span_ms = r.last_ms - r.first_ms;
        let iterations = r.output - 1.0;
        let blind = self.forgotten_ms.is_some_and(|until| until > r.first_ms)
            || self.running.len() + 1 >= RUNNING_MAX;
        if span_ms <= 0.0 || iterations < 1.0 || blind {
            return None;
        }
        let itl_ms = span_ms / iterations;
        let mut load = Load::new(r, itl_ms);
        let from = self.ended.partition_point(|q| q.ended_ms < r.first_ms);
        for q in self.ended.range(from..) {
            load.add(q);
        }
        for q in self.running.values() {
            let first_ms = self.expected_first(q);
            let produced = (r.last_ms - first_ms).max(0.0) / itl_ms;
            load.add(&Ended {
                ended_ms: now_ms,
                first_ms,
                // It goes on: what it does after `r` plays no part.
                last_ms: r.last_ms.max(first_ms),
                input: q.input,
                cached: q.cached,
                output: 1.0 + produced,
            });
        }
        let (batch, resident) = (load.tokens / iterations, load.resident / iterations);
        (itl_ms.is_finite() && batch.is_finite() && resident.is_finite()).then_some(Decode {
            itl_ms,
            batch,
            resident,
        })
    }

    /// Keeps what may still overlap one that runs.
    fn keep(&mut self, request: Ended) {
        let oldest_ms = (self.running.values())
            .map(|q| q.dispatched_ms)
            .fold(f64::INFINITY, f64::min);
        self.ended.push_back(request);
        while self.ended.front().is_some_and(|q| q.ended_ms < oldest_ms) {
            self.ended.pop_front();
        }
        while self.ended.len() > ENDED_MAX {
            self.forgotten_ms = self.ended.pop_front().map(|q| q.ended_ms);
        }
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
    fn new(r: &Ended, itl_ms: f64) -> Self {
        let iterations = r.output - 1.0;
        Self {
            first_ms: r.first_ms,
            last_ms: r.last_ms,
            itl_ms,
            jitter_ms: (itl_ms * 0.1).min(2.0),
            tokens: iterations,
            resident: iterations * (r.cached + r.input + r.output / 2.0),
        }
    }

    /// Another one's: its prompt, if that was computed meanwhile, and its decodes.
    fn add(&mut self, q: &Ended) {
        let (first, last) = (self.first_ms + self.jitter_ms, self.last_ms + self.jitter_ms);
        if q.first_ms > first && q.first_ms <= last {
            // A prompt is computed in the iteration that ends with its first token.
            self.tokens += q.input;
            self.resident += q.cached + q.input;
        }
        let (from, to) = (q.first_ms.max(self.first_ms), q.last_ms.min(self.last_ms));
        let overlap_ms = to - from;
        let span_ms = q.last_ms - q.first_ms;
        if overlap_ms <= 0.0 || span_ms <= 0.0 {
            return;
        }
        // The one of the two that lies more within the other knows better how many iterations they shared.
        let q_itl_ms = span_ms / (q.output - 1.0).max(1.0);
        let itl_ms = if span_ms < self.last_ms - self.first_ms {
            q_itl_ms
        } else {
            self.itl_ms
        };
        let shared = overlap_ms / itl_ms;
        let middle = (f64::midpoint(from, to) - q.first_ms) / q_itl_ms;
        self.tokens += shared;
        self.resident += shared * (q.cached + q.input + middle + 0.5);
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
        if let Some(predicted_ms) = predicted_ms {
            let ratio = (ttft_ms / predicted_ms).clamp(0.01, 100.0);
            self.bias += weight(self.bias) * (ratio - self.bias);
        }
    }

    fn expected(&self, predicted_ms: Option<f64>) -> f64 {
        match predicted_ms {
            Some(ms) if self.bias > 0.0 => ms * self.bias,
            Some(ms) => ms,
            None => self.mean_ms,
        }
    }
}
