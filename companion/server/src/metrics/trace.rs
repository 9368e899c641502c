//! One span for each request, exported by OTLP. Off unless an `OTEL_*` environment variable names a collector.
//!
//! The driver never waits for the export: the queue has a limit, and spans that find it full or can't be delivered are
//! counted and dropped. Spans contain no prompts and no private flows. Requests that a filter rejects by itself have no
//! span, because the companion learns of them only after they ended.

#[cfg_attr(not(feature = "otlp"), path = "trace/without_export.rs")]
mod export;
#[cfg(feature = "otlp")]
mod span;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use penstock_control::Labels;
use penstock_data_plane::traces;
use penstock_engine::Outcome;
use penstock_wire::Code;
use prometheus::IntCounter;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::metrics::Metrics;

/// Spans that wait to be sent, by default.
const QUEUE: usize = 2_048;
/// Spans that wait to be sent, at most.
const QUEUE_MAX: usize = 65_536;
/// Spans in a batch, by default.
const BATCH: usize = 512;
/// Milliseconds until an incomplete batch is sent, by default.
const DELAY_MS: usize = 5_000;

/// The settings of the export, read once at the start. The OpenTelemetry library reads its other variables (endpoint,
/// headers, TLS, compression, resource, sampler) itself when [`spawn`] builds the exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `OTEL_BSP_MAX_QUEUE_SIZE`.
    queue: usize,
    /// `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`.
    batch: usize,
    /// `OTEL_BSP_SCHEDULE_DELAY`.
    delay: Duration,
}

impl Settings {
    /// Reads the settings; `variable` returns the value of an environment variable. `None`: no collector is named, or
    /// `OTEL_SDK_DISABLED` or `OTEL_TRACES_EXPORTER` turn traces off.
    #[must_use]
    pub(crate) fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        if !traces::are_on(&variable) {
            return None;
        }
        let number = |name: &str, default: usize| {
            let text = variable(name);
            text.and_then(|text| text.trim().parse().ok()).unwrap_or(default)
        };
        let delay_ms = number("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS).max(1);
        Some(Self {
            queue: number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE).clamp(1, QUEUE_MAX),
            batch: number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH).max(1),
            delay: Duration::from_millis(u64::try_from(delay_ms).unwrap_or(u64::MAX)),
        })
    }
}

/// Queues the spans of ended requests. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tracer {
    queue: mpsc::Sender<SpanRecord>,
    dropped: IntCounter,
}

/// The facts of an ended request that its span shows.
#[derive(Debug)]
pub(crate) struct SpanRecord {
    pub(crate) labels: Arc<Labels>,
    /// When the request ended.
    pub(crate) ended_at: SystemTime,
    /// From the request's arrival to its end.
    pub(crate) duration: Duration,
    /// From the request's arrival to its grant or rejection.
    pub(crate) waited: Duration,
    pub(crate) granted: bool,
    /// From the request's arrival to the first byte of its response.
    pub(crate) first_token: Option<Duration>,
    pub(crate) outcome: Outcome,
    /// The error code of Penstock's own response; `None`: the response came from a model server.
    pub(crate) code: Option<Code>,
    /// The model server's address; empty: none.
    pub(crate) endpoint: Box<str>,
    /// The HTTP status of the model server's response; 0: the client got none.
    pub(crate) status: u16,
    pub(crate) input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
    /// How often the request was requeued.
    pub(crate) requeues: u32,
}

impl SpanRecord {
    /// The record of a request that ends now, without grant and response.
    pub(crate) fn new(labels: Arc<Labels>, outcome: Outcome, waited: Duration, duration: Duration) -> Self {
        Self {
            labels,
            ended_at: SystemTime::now(),
            duration,
            waited,
            granted: false,
            first_token: None,
            outcome,
            code: None,
            endpoint: Box::default(),
            status: 0,
            input_tokens: None,
            output_tokens: None,
            requeues: 0,
        }
    }
}

impl Tracer {
    /// Queues a record, or counts it as dropped when the queue is full.
    pub(crate) fn record(&self, record: SpanRecord) {
        if self.queue.try_send(record).is_err() {
            self.dropped.inc();
        }
    }
}

/// Starts the task that exports spans. When `ending` returns, the task sends what is queued and ends.
///
/// # Errors
/// When the exporter can't be built from the environment, with the reason.
pub(crate) fn spawn(
    settings: &Settings,
    metrics: &Metrics,
    ending: impl Future<Output = ()> + Send + 'static,
) -> Result<(Tracer, JoinHandle<()>), String> {
    let exporter = export::Exporter::new(settings, metrics)?;
    let (queue, records) = mpsc::channel(settings.queue);
    let tracer = Tracer { queue, dropped: metrics.spans_dropped.with_label_values(&["queue_full"]) };
    // Not an essential task: without it spans are lost and counted, and decisions go on.
    Ok((tracer, tokio::spawn(exporter.run(records, ending))))
}

#[cfg(all(test, feature = "otlp"))]
mod tests {
    use super::*;

    const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
    const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

    #[test]
    fn records_beyond_the_queue_are_dropped_and_counted() {
        let metrics = Metrics::new().expect("distinct names");
        let (queue, mut taken) = mpsc::channel(2);
        let tracer = Tracer { queue, dropped: metrics.spans_dropped.with_label_values(&["queue_full"]) };
        for _ in 0..5 {
            tracer.record(span::tests::record(Outcome::Dispatched));
        }
        assert_eq!(tracer.dropped.get(), 3);
        assert!(taken.try_recv().is_ok());
        tracer.record(span::tests::record(Outcome::Dispatched));
        assert_eq!(tracer.dropped.get(), 3);
    }
    #[test]
    fn the_environment_turns_the_export_on_and_off() {
        let read = |variables: &[(&str, &str)]| {
            Settings::from_environment(|name| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[(ENDPOINT, " ")]), None);
        assert_eq!(read(&[(ENDPOINT, "http://c"), ("OTEL_SDK_DISABLED", "TRUE")]), None);
        assert_eq!(read(&[(ENDPOINT, "http://c"), ("OTEL_TRACES_EXPORTER", "none")]), None);
        let defaults = Settings { queue: 2_048, batch: 512, delay: Duration::from_secs(5) };
        assert_eq!(read(&[(TRACES_ENDPOINT, "http://c")]).as_ref(), Some(&defaults));
        let numbers = [
            (ENDPOINT, "http://c"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "1000000"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "0"),
            ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ];
        let limited = Settings { queue: QUEUE_MAX, batch: 1, ..defaults };
        assert_eq!(read(&numbers), Some(limited));
    }
}
