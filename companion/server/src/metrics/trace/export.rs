//! Sends spans to a collector in batches. Spans that can't be delivered are counted and logged; nothing waits for them.

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

use super::{Settings, SpanRecord, span};
use crate::metrics::Metrics;

/// The service's name, unless the environment names it.
const SERVICE: &str = "penstock";
/// A collector that doesn't answer within this time has failed.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The longest wait for the last batch, at shutdown.
const LAST_ANSWER_MAX: Duration = Duration::from_secs(1);
/// The least time between two warnings about lost spans.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The consumer of the queue.
#[derive(Debug)]
pub(super) struct Exporter {
    exporter: SpanExporter,
    tracer: SdkTracer,
    spans: Spans,
    undelivered: IntCounter,
    batch: usize,
    delay: Duration,
    warned: Option<Instant>,
}

/// Spans that were made and not sent yet.
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
    /// Built from the settings and from the variables that the OpenTelemetry library reads: `OTEL_EXPORTER_OTLP_*`,
    /// `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_TRACES_SAMPLER`.
    pub(super) fn new(settings: &Settings, metrics: &Metrics) -> Result<Self, String> {
        let mut exporter = SpanExporter::builder().with_tonic().build().map_err(|error| error.to_string())?;
        let resource = resource();
        exporter.set_resource(&resource);
        let spans = Spans::default();
        let provider =
            SdkTracerProvider::builder().with_span_processor(spans.clone()).with_resource(resource).build();
        Ok(Self {
            exporter,
            tracer: provider.tracer(SERVICE),
            spans,
            undelivered: metrics.spans_dropped.with_label_values(&["not_taken"]),
            batch: settings.batch,
            delay: settings.delay,
            warned: None,
        })
    }

    /// Sends records until `ending` returns or the queue's last sender is dropped.
    pub(super) async fn run(
        mut self,
        mut queue: mpsc::Receiver<SpanRecord>,
        ending: impl Future<Output = ()> + Send,
    ) {
        let mut ending = std::pin::pin!(ending);
        let mut batch: Vec<SpanRecord> = Vec::with_capacity(self.batch);
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
                while let Ok(record) = queue.try_recv() {
                    batch.push(record);
                }
                let _ = tokio::time::timeout(LAST_ANSWER_MAX, self.send(&mut batch)).await;
                return;
            }
            self.send(&mut batch).await;
        }
    }

    async fn send(&mut self, batch: &mut Vec<SpanRecord>) {
        for record in batch.drain(..) {
            span::make(&self.tracer, &record);
        }
        let spans = self.spans.take();
        if spans.is_empty() {
            return;
        }
        let count = u64::try_from(spans.len()).unwrap_or(u64::MAX);
        let why = match tokio::time::timeout(ANSWER_MAX, self.exporter.export(spans)).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {ANSWER_MAX:?}"),
        };
        self.undelivered.inc_by(count);
        if self.warned.is_none_or(|instant| instant.elapsed() >= WARN_INTERVAL) {
            self.warned = Some(Instant::now());
            tracing::warn!(
                why,
                "spans lost: the trace collector does not accept them; check OTEL_EXPORTER_OTLP_ENDPOINT"
            );
        }
    }
}

/// The service's resource: with the name from the environment, or [`SERVICE`].
fn resource() -> Resource {
    let resource = Resource::builder().build();
    let name = resource.get(&"service.name".into());
    if name.is_some_and(|name| !name.as_str().starts_with("unknown_service")) {
        return resource;
    }
    Resource::builder().with_service_name(SERVICE).build()
}
