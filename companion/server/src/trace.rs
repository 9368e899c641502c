//! One span for each request, by OTLP: off unless the environment names a collector, in OpenTelemetry's own words.
//!
//! The driver hands over what it has seen, and waits for nothing: the queue has a limit, and what finds it full, or
//! can't be delivered, is counted. Prompts and private flows are in no span. What a filter refuses by itself has none:
//! of such a request the companion hears after it is over.

#[cfg_attr(not(feature = "otlp"), path = "trace/without_export.rs")]
mod export;
#[cfg(feature = "otlp")]
mod span;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use penstock_control::Labels;
use penstock_data_plane::traces::is_wanted;
use penstock_engine::Outcome;
use prometheus::IntCounter;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::metrics::Metrics;

/// Spans that wait to be sent, unless the environment says otherwise;
const QUEUE: usize = 2_048;
/// no more, whatever it says.
const QUEUE_MAX: usize = 65_536;

/// Where spans are handed over.
#[derive(Clone, Debug)]
pub struct Tracer {
    queue: mpsc::Sender<Ended>,
    dropped: IntCounter,
}

/// A request that has ended, as far as its span says it.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) labels: Arc<Labels>,
    /// When it ended,
    pub(crate) at: SystemTime,
    /// and how long after its arrival.
    pub(crate) duration: Duration,
    /// From its arrival until it was let go, or refused.
    pub(crate) waited: Duration,
    /// It was let go.
    pub(crate) granted: bool,
    /// From its arrival to the first byte of its answer.
    pub(crate) first_byte: Option<Duration>,
    pub(crate) outcome: Outcome,
    /// The code of an answer of ours; empty: it was a server's.
    pub(crate) code: &'static str,
    /// The server's address; empty: none.
    pub(crate) endpoint: Box<str>,
    /// What the client got, of a server; 0: nothing.
    pub(crate) status: u16,
    pub(crate) input_tokens: Option<u64>,
    pub(crate) output_tokens: Option<u64>,
}

impl Ended {
    /// One that has ended just now, and of which no more is known.
    pub(crate) fn new(labels: Arc<Labels>, outcome: Outcome, waited: Duration, duration: Duration) -> Self {
        Self {
            labels,
            at: SystemTime::now(),
            duration,
            waited,
            granted: false,
            first_byte: None,
            outcome,
            code: "",
            endpoint: Box::default(),
            status: 0,
            input_tokens: None,
            output_tokens: None,
        }
    }
}

impl Tracer {
    /// Hands a request over, if there is room.
    pub(crate) fn ended(&self, ended: Ended) {
        if self.queue.try_send(ended).is_err() {
            self.dropped.inc();
        }
    }
}

/// Starts what sends spans, if the environment wants it. The task ends when `ending` does, with what it has then sent.
///
/// # Errors
/// When the environment says something that can't be, with what.
pub fn spawn(
    metrics: &Metrics,
    ending: impl Future<Output = ()> + Send + 'static,
) -> Result<Option<(Tracer, JoinHandle<()>)>, String> {
    if !is_wanted() {
        return Ok(None);
    }
    let exporter = export::Exporter::from_environment(metrics)?;
    let most = number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE).clamp(1, QUEUE_MAX);
    let (queue, ended) = mpsc::channel(most);
    let tracer = Tracer {
        queue,
        dropped: metrics.spans_dropped.with_label_values(&["queue_full"]),
    };
    Ok(Some((tracer, tokio::spawn(exporter.run(ended, ending)))))
}

/// A number of the environment.
fn number(name: &str, default: usize) -> usize {
    let said = std::env::var(name).ok();
    said.and_then(|it| it.trim().parse().ok()).unwrap_or(default)
}

#[cfg(all(test, feature = "otlp"))]
mod tests {
    use super::*;

    #[test]
    fn who_finds_the_queue_full_is_counted_and_waits_for_nothing() {
        let metrics = Metrics::new().expect("distinct names");
        let (queue, mut taken) = mpsc::channel(2);
        let tracer = Tracer {
            queue,
            dropped: metrics.spans_dropped.with_label_values(&["queue_full"]),
        };
        for _ in 0..5 {
            tracer.ended(span::tests::ended(Outcome::Dispatched));
        }
        assert_eq!(tracer.dropped.get(), 3);
        assert!(taken.try_recv().is_ok());
        tracer.ended(span::tests::ended(Outcome::Dispatched));
        assert_eq!(tracer.dropped.get(), 3);
    }
}
