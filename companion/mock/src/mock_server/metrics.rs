//! The server's /metrics, under the names and buckets that vLLM gives them.
//!
//! Like vLLM it names the first served model only, whatever a request asked for.

use std::time::Duration;

use penstock_model_server::{Gauges, Hardware, Totals};
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry, TextEncoder,
};

const TTFT_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
const ITL_S: [f64; 19] = [
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const E2E_S: [f64; 20] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0,
];
/// Tokens in a block of the KV cache, for those who multiply.
const BLOCK_TOKENS: u64 = 16;

/// The series. Cloning shares them.
#[derive(Clone)]
pub(super) struct Metrics {
    registry: Registry,
    running: Gauge,
    waiting: Gauge,
    kv_usage: Gauge,
    preemptions: IntCounter,
    prompt_tokens: IntCounter,
    generation_tokens: IntCounter,
    success: IntCounterVec,
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    kv_tokens: u64,
}

impl Metrics {
    /// All series, at zero.
    ///
    /// # Errors
    /// A label isn't what Prometheus allows; the names here all are.
    pub(super) fn new(model: &str, hardware: &Hardware) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let opts = |name: &str, help: &str| {
            Opts::new(format!("vllm:{name}"), help)
                .const_label("model_name", model)
                .const_label("engine", "0")
        };
        let gauge = |name, help| -> Result<Gauge, prometheus::Error> {
            let gauge = Gauge::with_opts(opts(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name, help| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::with_opts(opts(name, help))?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let histogram = |name, help, buckets: &[f64]| -> Result<Histogram, prometheus::Error> {
            let opts = HistogramOpts {
                common_opts: opts(name, help),
                buckets: buckets.to_vec(),
            };
            let histogram = Histogram::with_opts(opts)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok(histogram)
        };
        let success = opts(
            "request_success_total",
            "Requests that were answered, by why they ended.",
        );
        let success = IntCounterVec::new(success, &["finished_reason"])?;
        registry.register(Box::new(success.clone()))?;
        let cache = opts("cache_config_info", "The KV cache.")
            .const_label("block_size", BLOCK_TOKENS.to_string())
            .const_label("num_gpu_blocks", (hardware.kv_tokens / BLOCK_TOKENS).to_string());
        let cache = Gauge::with_opts(cache)?;
        cache.set(1.0);
        registry.register(Box::new(cache))?;
        Ok(Self {
            running: gauge("num_requests_running", "Requests in the batch.")?,
            waiting: gauge(
                "num_requests_waiting",
                "Requests that wait for a place in the batch.",
            )?,
            kv_usage: gauge(
                "kv_cache_usage_perc",
                "Part of the KV cache in use; 1 is all of it.",
            )?,
            preemptions: counter(
                "num_preemptions_total",
                "Times a request lost its place in the batch.",
            )?,
            prompt_tokens: counter("prompt_tokens_total", "Prompt tokens processed.")?,
            generation_tokens: counter("generation_tokens_total", "Tokens produced.")?,
            success,
            ttft: histogram(
                "time_to_first_token_seconds",
                "From arrival to the first token.",
                &TTFT_S,
            )?,
            itl: histogram(
                "inter_token_latency_seconds",
                "From one token to the next.",
                &ITL_S,
            )?,
            e2e: histogram(
                "e2e_request_latency_seconds",
                "From arrival to the last token.",
                &E2E_S,
            )?,
            kv_tokens: hardware.kv_tokens,
            registry,
        })
    }

    pub(super) fn first_token(&self, after: Duration) {
        self.ttft.observe(after.as_secs_f64());
    }

    pub(super) fn token(&self, after: Duration) {
        self.itl.observe(after.as_secs_f64());
    }

    /// `reason`: `length`, `stop` or `abort`.
    pub(super) fn ended(&self, reason: &str, after: Duration) {
        self.success.with_label_values(&[reason]).inc();
        self.e2e.observe(after.as_secs_f64());
    }

    /// Brings gauges and counters to what the server says.
    pub(super) fn follow(&self, now: Gauges, totals: Totals) {
        self.running.set(now.running as f64);
        self.waiting.set(now.waiting as f64);
        self.kv_usage.set(now.kv_tokens as f64 / self.kv_tokens as f64);
        for (counter, total) in [
            (&self.preemptions, totals.preemptions),
            (&self.prompt_tokens, totals.prompt_tokens),
            (&self.generation_tokens, totals.output_tokens),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    /// In Prometheus' text format.
    ///
    /// # Errors
    /// A series is inconsistent.
    pub(super) fn text(&self) -> Result<String, prometheus::Error> {
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}
