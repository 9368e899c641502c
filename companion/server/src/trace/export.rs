//! Sends spans to a collector, in batches: what can't be delivered is counted and said, and nothing waits for it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor,
};
use prometheus::IntCounter;
use tokio::sync::mpsc;

use super::{Ended, number, span};
use crate::metrics::Metrics;

/// What the collector is told who this is, unless the environment says it.
const SERVICE: &str = "penstock";
/// Spans of a batch, and the time that is waited for them in milliseconds, unless the environment says otherwise.
const BATCH: usize = 512;
const DELAY_MS: usize = 5_000;
/// A collector that doesn't answer for so long has failed.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The same at the end, when all else waits.
const LAST_MAX: Duration = Duration::from_secs(1);
/// That nobody takes the spans is said once in this time.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The collector's side of the queue.
#[derive(Debug)]
pub(super) struct Exporter {
    exporter: SpanExporter,
    tracer: SdkTracer,
    spans: Spans,
    lost: IntCounter,
    batch: usize,
    delay: Duration,
    warned: Option<Instant>,
}

/// The spans that were made and not sent yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Spans(Arc<Mutex<Vec<SpanData>>>);

impl Spans {
    pub(super) fn take(&self) -> Vec<SpanData> {
        let mut spans = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *spans)
    }
}

impl SpanProcessor for Spans {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        let mut spans = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        spans.push(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

impl Exporter {
    /// As the standard variables say it: `OTEL_EXPORTER_OTLP_*`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`,
    /// `OTEL_TRACES_SAMPLER` and `OTEL_BSP_*`.
    pub(super) fn from_environment(metrics: &Metrics) -> Result<Self, String> {
        let mut exporter = SpanExporter::builder()
            .with_tonic()
            .build()
            .map_err(|error| error.to_string())?;
        let resource = resource();
        exporter.set_resource(&resource);
        let spans = Spans::default();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(spans.clone())
            .with_resource(resource)
            .build();
        let delay = number("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS).max(1);
        Ok(Self {
            exporter,
            tracer: provider.tracer(SERVICE),
            spans,
            lost: metrics.spans_dropped.with_label_values(&["not_taken"]),
            batch: number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH).max(1),
            delay: Duration::from_millis(u64::try_from(delay).unwrap_or(u64::MAX)),
            warned: None,
        })
    }

    /// Sends what comes until `ending` ends, or nothing can come any more.
    pub(super) async fn run(
        mut self,
        mut queue: mpsc::Receiver<Ended>,
        ending: impl Future<Output = ()> + Send,
    ) {
        let mut ending = std::pin::pin!(ending);
        let mut batch: Vec<Ended> = Vec::with_capacity(self.batch);
        loop {
            let received = tokio::select! {
                received = queue.recv_many(&mut batch, self.batch) => received,
                () = &mut ending => 0,
            };
            let due = tokio::time::Instant::now() + self.delay;
            let mut over = received == 0;
            while !over && batch.len() < self.batch {
                let room = self.batch - batch.len();
                tokio::select! {
                    more = queue.recv_many(&mut batch, room) => over = more == 0,
                    () = tokio::time::sleep_until(due) => break,
                    () = &mut ending => over = true,
                }
            }
            if over {
                while let Ok(ended) = queue.try_recv() {
                    batch.push(ended);
                }
                let _ = tokio::time::timeout(LAST_MAX, self.send(&mut batch)).await;
                return;
            }
            self.send(&mut batch).await;
        }
    }

    async fn send(&mut self, batch: &mut Vec<Ended>) {
        for ended in batch.drain(..) {
            span::make(&self.tracer, &ended);
        }
        let spans = self.spans.take();
        if spans.is_empty() {
            return;
        }
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let why = match tokio::time::timeout(ANSWER_MAX, self.exporter.export(spans)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it doesn't answer".to_owned(),
        };
        self.lost.inc_by(count);
        if self.warned.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(why, "the collector of traces takes nothing: spans are lost");
        }
    }
}

/// Who this is: the environment's name for it, or its own.
fn resource() -> Resource {
    let resource = Resource::builder().build();
    let name = resource.get(&"service.name".into());
    if name.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        return resource;
    }
    Resource::builder().with_service_name(SERVICE).build()
}
