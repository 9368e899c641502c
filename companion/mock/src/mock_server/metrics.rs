//! The server's /metrics, with vLLM's names and buckets.
//!
//! As in vLLM, the label `model_name` is always the first served model.

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
/// Tokens in a block of the KV cache, for `cache_config_info`.
const BLOCK_TOKENS: u64 = 16;

/// The metrics. Clones share the same series.
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

/// Registers series with the labels that all of them share.
struct Registrar<'a> {
    registry: &'a Registry,
    model: &'a str,
}

impl Registrar<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        Opts::new(format!("vllm:{name}"), help)
            .const_label("model_name", self.model)
            .const_label("engine", "0")
    }

    fn gauge(&self, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
        let gauge = Gauge::with_opts(self.opts(name, help))?;
        self.registry.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        let counter = IntCounter::with_opts(self.opts(name, help))?;
        self.registry.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        let opts = HistogramOpts { common_opts: self.opts(name, help), buckets: buckets.to_vec() };
        let histogram = Histogram::with_opts(opts)?;
        self.registry.register(Box::new(histogram.clone()))?;
        Ok(histogram)
    }

    fn success(&self) -> Result<IntCounterVec, prometheus::Error> {
        let opts = self.opts("request_success_total", "Requests that ended, by the reason of their end.");
        let success = IntCounterVec::new(opts, &["finished_reason"])?;
        self.registry.register(Box::new(success.clone()))?;
        Ok(success)
    }

    fn cache_config(&self, hardware: &Hardware) -> Result<(), prometheus::Error> {
        let opts = self
            .opts("cache_config_info", "Configuration of the KV cache.")
            .const_label("block_size", BLOCK_TOKENS.to_string())
            .const_label("num_gpu_blocks", (hardware.kv_tokens / BLOCK_TOKENS).to_string());
        let cache = Gauge::with_opts(opts)?;
        cache.set(1.0);
        self.registry.register(Box::new(cache))
    }
}

impl Metrics {
    /// All series, at zero.
    ///
    /// # Errors
    /// A label is not valid in Prometheus, which only a model's name could cause.
    pub(super) fn new(model: &str, hardware: &Hardware) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let registrar = Registrar { registry: &registry, model };
        registrar.cache_config(hardware)?;
        Ok(Self {
            running: registrar.gauge("num_requests_running", "Requests in the batch.")?,
            waiting: registrar
                .gauge("num_requests_waiting", "Requests that wait for a place in the batch.")?,
            kv_usage: registrar.gauge("kv_cache_usage_perc", "Used part of the KV cache, from 0 to 1.")?,
            preemptions: registrar
                .counter("num_preemptions_total", "Preemptions of a request in favour of an older one.")?,
            prompt_tokens: registrar.counter("prompt_tokens_total", "Processed prompt tokens.")?,
            generation_tokens: registrar.counter("generation_tokens_total", "Produced tokens.")?,
            success: registrar.success()?,
            ttft: registrar.histogram(
                "time_to_first_token_seconds",
                "Time from arrival to the first token.",
                &TTFT_S,
            )?,
            itl: registrar.histogram(
                "inter_token_latency_seconds",
                "Time between two tokens of a response.",
                &ITL_S,
            )?,
            e2e: registrar.histogram(
                "e2e_request_latency_seconds",
                "Time from arrival to the last token.",
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

    /// Records a request's end. `reason` is `length`, `stop` or `abort`.
    pub(super) fn ended(&self, reason: &str, after: Duration) {
        self.success.with_label_values(&[reason]).inc();
        self.e2e.observe(after.as_secs_f64());
    }

    /// Sets gauges and counters to the server's current values.
    pub(super) fn update(&self, now: Gauges, totals: Totals) {
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

    /// The metrics in Prometheus' text format.
    ///
    /// # Errors
    /// A series is inconsistent.
    pub(super) fn text(&self) -> Result<String, prometheus::Error> {
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }
}
