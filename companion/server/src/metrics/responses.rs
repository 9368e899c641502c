//! Metrics of granted requests: responses, tokens, and times.

use penstock_control::EstimateReason;
use prometheus::{HistogramVec, IntCounterVec};

use super::{Maker, REQUEST, request_labels};

/// The upper bounds of the buckets of queue times, times to the first token and durations.
pub(crate) const WAIT_SECONDS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
const ITL_SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0];

/// The counters and histograms.
#[derive(Debug)]
pub(crate) struct ResponseMetrics {
    pub(crate) responses: IntCounterVec,
    pub(crate) input_tokens: IntCounterVec,
    pub(crate) output_tokens: IntCounterVec,
    pub(crate) estimated: IntCounterVec,
    pub(crate) queue_latency: HistogramVec,
    pub(crate) ttft: HistogramVec,
    pub(crate) itl: HistogramVec,
    pub(crate) duration: HistogramVec,
}

impl ResponseMetrics {
    pub(super) fn new(make: &Maker) -> prometheus::Result<Self> {
        Ok(Self {
            responses: make.counter(
                "responses_total",
                "Responses to granted requests, by endpoint and class of the status; without an endpoint, the gateway's own.",
                &request_labels(&["endpoint", "code_class"]),
            )?,
            input_tokens: make.counter(
                "input_tokens_total",
                "Prompt tokens, as counted by the model servers.",
                &REQUEST,
            )?,
            output_tokens: make.counter(
                "output_tokens_total",
                "Output tokens, as counted by the model servers, or else by the text of the answer or by the time at the server.",
                &REQUEST,
            )?,
            estimated: make.counter(
                "answers_estimated_total",
                "Answers that were not charged by the counts of their servers, by the reason: the client left before them (client_left), \
                 the server failed before them (cut), sent none (no_usage) or impossible ones (implausible), or the filter is gone \
                 (filter_lost).",
                &["pool", "reason"],
            )?,
            queue_latency: make.seconds(
                "queue_latency_seconds",
                "Time from a request's arrival to its grant or rejection.",
                &request_labels(&["band", "outcome"]),
                &WAIT_SECONDS,
            )?,
            ttft: make.seconds(
                "ttft_seconds",
                "Time from a request's arrival to the first token of its response. Only complete streams count.",
                &request_labels(&["endpoint"]),
                &WAIT_SECONDS,
            )?,
            itl: make.seconds(
                "itl_seconds",
                "Mean time between two tokens of a response.",
                &request_labels(&["endpoint"]),
                &ITL_SECONDS,
            )?,
            duration: make.seconds(
                "request_duration_seconds",
                "Time from a granted request's arrival to its end.",
                &request_labels(&["endpoint"]),
                &WAIT_SECONDS,
            )?,
        })
    }

    /// Exports a pool's counters of estimated answers as 0, because a rate can't be computed over an absent series.
    pub(super) fn init_pool(&self, pool: &str) {
        for reason in EstimateReason::ALL {
            self.estimated.with_label_values(&[pool, reason.as_str()]);
        }
    }
}
