//! Follows the requests at one endpoint over time, and computes the load that each of them decoded under: C, the decodes
//! in flight and the prompts computed meanwhile, and M, the resident tokens.
//!
//! The exact times and token counts of a request are known only at its end. A completed request therefore waits until
//! the later requests that overlap it have ended too, or until enough requests have ended to stop waiting. It is then
//! compared with every request that overlapped it, at the cost of one visit to each. Servers start requests in order of
//! arrival, so the first token of a running request lies between those of its neighbours.

use std::collections::{BTreeMap, VecDeque};

use crate::first_token::FirstTokenPredictor;
use crate::limits::{PAST_MAX, RUNNING_MAX, SEQUENCES_MAX, SETTLE_ROUNDS, TOKENS_MAX};
use crate::observation::{Completion, Decode, Observation};
use crate::overlap::{self, Span};

/// A request that was dispatched to the endpoint.
#[derive(Clone, Copy, Debug)]
struct TrackedRequest {
    /// Position in the order of dispatch.
    sequence: u64,
    dispatched_ms: f64,
    input: f64,
    cached: f64,
    /// Of each of its sequences.
    output: f64,
    /// Sequences that decode at the same time.
    sequences: u32,
    /// Time to the first token predicted at dispatch.
    ttft_predicted_ms: Option<f64>,
    /// Time of the first token, if known.
    first_ms: Option<f64>,
    /// Time of the last token; `None` while the request runs.
    last_ms: Option<f64>,
}

/// A completed request that waits for the requests overlapping it to end.
#[derive(Clone, Copy, Debug)]
struct Pending {
    observation: Observation,
    sequence: u64,
    first_ms: f64,
    /// Requests before this sequence number need not be waited for.
    next_sequence: u64,
    /// The wait is over when the endpoint has completed this many requests in total.
    until_ended: u64,
}

/// The decoding phase of the request being measured.
#[derive(Clone, Copy, Debug)]
struct Decoding {
    sequence: u64,
    first_ms: f64,
    last_ms: f64,
    itl_ms: f64,
}

/// Time of a first token, measured or estimated.
struct FirstToken {
    at_ms: f64,
    /// The estimate is too coarse to order it relative to the start or the end of the decoding being measured.
    uncertain: bool,
}

/// Follows the requests at one endpoint. Input that is not a number, or is negative, counts as 0.
#[derive(Clone, Debug, Default)]
pub struct OverlapTracker {
    /// Sequence numbers of running requests, by request id.
    running: BTreeMap<u64, u64>,
    /// In order of dispatch: running requests, and completed ones that overlap a request that isn't settled.
    requests: VecDeque<TrackedRequest>,
    /// `requests` is pruned when it reaches this length.
    prune_at: usize,
    pending: Vec<Pending>,
    settled: VecDeque<Observation>,
    dispatched: u64,
    ended: u64,
    /// Before this time the history is incomplete, because requests were discarded to free space.
    discarded_until_ms: Option<f64>,
    first_token: FirstTokenPredictor,
    /// Time that a prompt token adds to an iteration, once learned.
    prompt_ms: Option<f64>,
    /// Reused buffer.
    spans: Vec<Span>,
    /// Recent mean time between tokens; `None` before the first one was measured.
    itl_ms: Option<f64>,
}

impl OverlapTracker {
    /// Records the dispatch of request `id` with `input` prompt tokens to compute, `cached` tokens already at the server
    /// and an expected `output`. `ttft_ms` is the predicted time to the first token. If `id` already runs, it is
    /// dropped first.
    pub fn record_dispatch(
        &mut self,
        now_ms: f64,
        id: u64,
        input: f64,
        cached: f64,
        output: f64,
        ttft_ms: Option<f64>,
    ) {
        self.record_drop(now_ms, id);
        if !now_ms.is_finite() || self.running.len() >= RUNNING_MAX {
            return;
        }
        let previous_ms = self.requests.back().map_or(now_ms, |last| last.dispatched_ms);
        let sequence = self.dispatched;
        self.dispatched += 1;
        self.running.insert(id, sequence);
        self.requests.push_back(TrackedRequest {
            sequence,
            dispatched_ms: now_ms.max(previous_ms),
            input: token_count(input),
            cached: token_count(cached),
            output: token_count(output),
            sequences: 1,
            ttft_predicted_ms: ttft_ms.filter(|ms| ms.is_finite() && *ms >= 0.0),
            first_ms: None,
            last_ms: None,
        });
    }

    /// The running request `id` decodes so many sequences at the same time. Its outputs, expected and counted, are those of
    /// one sequence.
    pub fn set_sequences(&mut self, id: u64, sequences: u64) {
        let sequence = self.running.get(&id);
        let position = sequence.and_then(|sequence| self.position(*sequence));
        if let Some(request) = position.and_then(|position| self.requests.get_mut(position)) {
            let sequences = u32::try_from(sequences).unwrap_or(u32::MAX);
            request.sequences = sequences.clamp(1, SEQUENCES_MAX);
        }
    }

    /// Number of running requests that are followed; at most [`RUNNING_MAX`].
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Records that request `id` completed. Its observation comes from [`Self::poll_observation`], now or after other
    /// requests have ended. A completion with impossible times is treated as a drop.
    pub fn record_completion(&mut self, now_ms: f64, id: u64, completion: &Completion) {
        let last_ms = completion.last_ms.unwrap_or(now_ms);
        let sequence = self.running.get(&id);
        let Some(position) = sequence.and_then(|sequence| self.position(*sequence)) else {
            return;
        };
        let running = self.running.len();
        let request = &mut self.requests[position];
        let is_possible = |ms: f64| ms.is_finite() && ms >= request.dispatched_ms;
        if !is_possible(last_ms) {
            return self.record_drop(now_ms, id);
        }
        let first_ms = completion
            .first_ms
            .filter(|first| completion.streamed && is_possible(*first) && *first <= last_ms);
        request.first_ms = first_ms;
        request.last_ms = Some(last_ms);
        request.input = completion.input.map_or(request.input, token_count);
        request.cached = completion.cached.map_or(request.cached, token_count);
        request.output = completion.output.map_or(request.output, token_count);
        let request = *request;
        self.running.remove(&id);
        self.ended += 1;
        let gaps = request.output - 1.0;
        if let Some(first_ms) = first_ms {
            self.learn_times(&request, first_ms, last_ms);
        }
        let observation = Observation {
            at_ms: last_ms,
            input: request.input,
            output: request.output,
            ttft_ms: first_ms.map_or(0.0, |first| first - request.dispatched_ms),
            ttft_predicted_ms: request.ttft_predicted_ms.filter(|_| first_ms.is_some()),
            decode: None,
        };
        match first_ms.filter(|first| gaps >= 1.0 && completion.output.is_some() && last_ms > *first) {
            Some(first_ms) if running < RUNNING_MAX => self.pending.push(Pending {
                observation,
                sequence: request.sequence,
                first_ms,
                next_sequence: request.sequence + 1,
                until_ended: self.ended + SETTLE_ROUNDS * running as u64,
            }),
            Some(_) | None => self.settled.push_back(observation),
        }
        self.settle();
    }

    /// Learns from the times of a completed request.
    fn learn_times(&mut self, request: &TrackedRequest, first_ms: f64, last_ms: f64) {
        let ttft_ms = first_ms - request.dispatched_ms;
        self.first_token.observe(ttft_ms, request.input, request.ttft_predicted_ms);
        let gaps = request.output - 1.0;
        if gaps >= 1.0 {
            let itl_ms = (last_ms - first_ms) / gaps;
            self.itl_ms = Some(match self.itl_ms.filter(|mean_ms| *mean_ms > 0.0) {
                Some(mean_ms) => mean_ms + 0.1 * (itl_ms - mean_ms),
                None => itl_ms,
            });
        }
    }

    /// Records that request `id` did not run at this endpoint, or that its end is not known. It counts as decoding from
    /// its expected first token until now.
    pub fn record_drop(&mut self, now_ms: f64, id: u64) {
        let sequence = self.running.remove(&id);
        let Some(position) = sequence.and_then(|sequence| self.position(sequence)) else {
            return;
        };
        let expected_ms = self.expected_first_ms(&self.requests[position]);
        let request = &mut self.requests[position];
        if now_ms.is_finite() && expected_ms < now_ms {
            request.last_ms = Some(now_ms);
            if let Some(itl_ms) = self.itl_ms.filter(|ms| *ms > 0.0) {
                let produced = (now_ms - expected_ms) / itl_ms;
                request.output = token_count(produced).min(request.output.max(1.0));
            }
        } else {
            self.requests.remove(position);
        }
        self.settle();
    }

    /// Sets the learned time that a prompt token adds to an iteration, in milliseconds. Until it is set, the tracker
    /// estimates it from the times to the first token.
    pub fn set_prompt_ms(&mut self, prompt_ms: f64) {
        self.prompt_ms = Some(prompt_ms).filter(|ms| ms.is_finite() && *ms >= 0.0);
    }

    /// The next settled observation: a completed request with its final load.
    pub fn poll_observation(&mut self) -> Option<Observation> {
        self.settled.pop_front()
    }

    fn position(&self, sequence: u64) -> Option<usize> {
        let position = self.requests.partition_point(|request| request.sequence < sequence);
        (self.requests.get(position)?.sequence == sequence).then_some(position)
    }

    fn expected_first_ms(&self, request: &TrackedRequest) -> f64 {
        let ttft_ms = self.first_token.expected_ms(request.input, request.ttft_predicted_ms);
        request.dispatched_ms + ttft_ms
    }

    /// Settles pending requests after their neighbours have ended.
    fn settle(&mut self) {
        let mut index = 0;
        while let Some(pending) = self.pending.get(index).copied() {
            let (next_sequence, waits) = self.next_unfinished(&pending);
            if waits && self.ended < pending.until_ended {
                self.pending[index].next_sequence = next_sequence;
                index += 1;
                continue;
            }
            self.pending.swap_remove(index);
            let mut observation = pending.observation;
            observation.decode = self.measure_decode(pending.sequence);
            self.settled.push_back(observation);
        }
        if self.requests.len() >= self.prune_at {
            self.prune();
        }
    }

    /// The first request that was dispatched after `pending` and before its end, and whether it still runs.
    fn next_unfinished(&self, pending: &Pending) -> (u64, bool) {
        let from = self.requests.partition_point(|request| request.sequence < pending.next_sequence);
        for request in self.requests.range(from..) {
            if request.dispatched_ms >= pending.observation.at_ms {
                return (request.sequence, false);
            }
            if request.last_ms.is_none() {
                return (request.sequence, true);
            }
        }
        (self.dispatched, false)
    }

    /// The load that a completed request decoded under.
    fn measure_decode(&mut self, sequence: u64) -> Option<Decode> {
        let subject = self.requests.get(self.position(sequence)?)?;
        let (first_ms, last_ms) = (subject.first_ms?, subject.last_ms?);
        if self.discarded_until_ms.is_some_and(|until| until > first_ms) {
            return None;
        }
        let decoding =
            Decoding { sequence, first_ms, last_ms, itl_ms: (last_ms - first_ms) / (subject.output - 1.0) };
        let mut spans = core::mem::take(&mut self.spans);
        let position = self.collect_spans(&decoding, &mut spans);
        let prompt_ms = self.prompt_ms.unwrap_or_else(|| self.first_token.prompt_ms(self.itl_ms));
        let decode = overlap::decode_conditions(&mut spans, position, prompt_ms);
        self.spans = spans;
        decode
    }

    /// Fills `spans` with the requests that overlap `decoding`, and returns the position of the decoding request itself.
    fn collect_spans(&self, decoding: &Decoding, spans: &mut Vec<Span>) -> usize {
        spans.clear();
        let mut position = 0;
        let mut previous_first_ms = f64::NEG_INFINITY;
        // The next measured first token; searched for only where a first token must be estimated.
        let mut next_first_ms = None;
        for (index, request) in self.requests.iter().enumerate() {
            if request.dispatched_ms >= decoding.last_ms {
                break;
            }
            let first = if let Some(at_ms) = request.first_ms {
                next_first_ms = None;
                FirstToken { at_ms, uncertain: false }
            } else {
                let upper_ms = *next_first_ms.get_or_insert_with(|| self.next_measured_first_ms(index));
                self.estimate_first_token(request, previous_first_ms, upper_ms, decoding)
            };
            previous_first_ms = first.at_ms.max(previous_first_ms);
            let is_subject = request.sequence == decoding.sequence;
            // A running request goes on. What it does after the end of `decoding` plays no part.
            let request_last_ms = request.last_ms.unwrap_or(decoding.last_ms).max(previous_first_ms);
            if is_subject {
                position = spans.len();
            } else if request_last_ms <= decoding.first_ms {
                continue;
            }
            let produced_so_far = || 1.0 + (request_last_ms - previous_first_ms) / decoding.itl_ms;
            let span = Span {
                first_ms: if is_subject { decoding.first_ms } else { previous_first_ms },
                last_ms: request_last_ms,
                input: request.input,
                resident: request.cached + request.input,
                output: request.last_ms.map_or_else(produced_so_far, |_| request.output.max(1.0)),
                uncertain: first.uncertain,
                prompts_computed_ms: 0.0,
            };
            spans.push(span);
            // The prompt is computed once, and all sequences share its place in the cache.
            for _ in 1..request.sequences {
                spans.push(Span { input: 0.0, resident: 0.0, ..span });
            }
        }
        position
    }

    /// The first measured first token at or after `index` in the order of dispatch; infinite if there is none.
    fn next_measured_first_ms(&self, index: usize) -> f64 {
        let mut following = self.requests.range(index..);
        following.find_map(|request| request.first_ms).unwrap_or(f64::INFINITY)
    }

    /// Estimates an unmeasured first token between those of its neighbours in the order of dispatch.
    fn estimate_first_token(
        &self,
        request: &TrackedRequest,
        previous_first_ms: f64,
        next_first_ms: f64,
        decoding: &Decoding,
    ) -> FirstToken {
        let expected_ms = self.expected_first_ms(request);
        let earliest_ms = previous_first_ms.max(request.dispatched_ms);
        let latest_ms =
            next_first_ms.min(expected_ms + (expected_ms - request.dispatched_ms)).max(earliest_ms);
        FirstToken {
            at_ms: expected_ms.min(next_first_ms).max(request.dispatched_ms),
            uncertain: [decoding.first_ms, decoding.last_ms]
                .iter()
                .any(|boundary| (earliest_ms..latest_ms).contains(boundary)),
        }
    }

    /// Discards completed requests that overlap no unsettled one, and beyond [`PAST_MAX`] of them the older half.
    fn prune(&mut self) {
        let oldest_running = self.requests.iter().find(|request| request.last_ms.is_none());
        let oldest_ms = (self.pending.iter().map(|pending| pending.first_ms))
            .chain(oldest_running.map(|request| request.dispatched_ms))
            .fold(f64::INFINITY, f64::min);
        self.requests.retain(|request| request.last_ms.is_none_or(|last| last >= oldest_ms));
        if self.requests.len().saturating_sub(self.running.len()) > PAST_MAX {
            let half = self.requests[self.requests.len() / 2].sequence;
            let discarded_until_ms = &mut self.discarded_until_ms;
            self.requests.retain(|request| match request.last_ms {
                Some(last) if request.sequence < half => {
                    *discarded_until_ms = Some(discarded_until_ms.map_or(last, |until| until.max(last)));
                    false
                }
                Some(_) | None => true,
            });
        }
        self.prune_at = (self.requests.len() * 5 / 4).max(32);
    }
}

fn token_count(count: f64) -> f64 {
    if count.is_nan() { 0.0 } else { count.clamp(0.0, TOKENS_MAX) }
}
