//! The span of a request: its name, times, attributes and events, and its parent.

use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use penstock_engine::Outcome;
use penstock_wire::Code;

use super::SpanRecord;
use crate::metrics::OTHER;

/// The name of every span.
const NAME: &str = "penstock.request";

/// Makes and ends the span of a request. A request that isn't sampled leaves no span; a client's sampling decision is
/// kept, if it sent one.
pub(super) fn make(tracer: &SdkTracer, record: &SpanRecord) {
    let arrived = subtract(record.ended_at, record.duration);
    let after = |elapsed: Duration| arrived.checked_add(elapsed).unwrap_or(record.ended_at);
    let builder = tracer
        .span_builder(NAME)
        .with_kind(SpanKind::Internal)
        .with_start_time(arrived)
        .with_attributes(attributes(record));
    let mut span = tracer.build_with_context(builder, &parent(&record.labels.traceparent));
    span.add_event_with_timestamp("queued", arrived, Vec::new());
    if record.granted {
        span.add_event_with_timestamp("granted", after(record.waited), Vec::new());
    }
    if let Some(first_token) = record.first_token {
        span.add_event_with_timestamp("first_byte", after(first_token), Vec::new());
    }
    if let Some(code) = record.code.filter(|_| record.outcome != Outcome::Cancelled) {
        span.set_status(Status::error(code.as_str()));
    } else if record.status >= 500 {
        span.set_status(Status::error("the server failed"));
    }
    span.end_with_timestamp(record.ended_at);
}

fn subtract(time: SystemTime, duration: Duration) -> SystemTime {
    time.checked_sub(duration).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The context with the client's span as parent, if its `traceparent` header is well-formed.
fn parent(traceparent: &str) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Header(traceparent))
}

fn attributes(record: &SpanRecord) -> Vec<KeyValue> {
    let labels = &*record.labels;
    let text = |key: &'static str, value: &str| KeyValue::new(key, value.to_owned());
    let flow = if labels.private { OTHER } else { &labels.flow };
    let mut attributes = vec![
        text("penstock.request_id", &labels.request_id),
        text("penstock.pool", &labels.pool),
        text("penstock.model", &labels.model.requested),
        text("penstock.target_model", &labels.model.target),
        text("penstock.band", labels.band.as_str()),
        text("penstock.flow", flow),
        text("penstock.outcome", record.outcome.as_str()),
        KeyValue::new("penstock.wait_ms", record.waited.as_secs_f64() * 1_000.0),
    ];
    for (key, value) in [
        ("penstock.class", &*labels.class),
        ("penstock.code", record.code.map_or("", Code::as_str)),
        ("penstock.endpoint", &*record.endpoint),
    ] {
        if !value.is_empty() {
            attributes.push(text(key, value));
        }
    }
    if record.requeues > 0 {
        let requeues = i64::from(record.requeues);
        attributes.push(KeyValue::new("penstock.requeues", requeues));
    }
    if record.status > 0 {
        let status = i64::from(record.status);
        attributes.push(KeyValue::new("http.response.status_code", status));
    }
    for (key, tokens) in [
        ("gen_ai.usage.input_tokens", record.input_tokens),
        ("gen_ai.usage.output_tokens", record.output_tokens),
    ] {
        if let Some(tokens) = tokens {
            let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
            attributes.push(KeyValue::new(key, tokens));
        }
    }
    attributes
}

/// The only request header that is used.
struct Header<'a>(&'a str);

impl Extractor for Header<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == "traceparent" && !self.0.is_empty()).then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use opentelemetry::trace::{TraceContextExt, TracerProvider as _};
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData};
    use penstock_control::Labels;
    use penstock_engine::ModelName;
    use penstock_engine::input::Band;

    use super::super::export::Spans;
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const PARENT: &str = "b7ad6b7169203331";

    pub(crate) fn record(outcome: Outcome) -> SpanRecord {
        SpanRecord {
            labels: Arc::new(Labels {
                tokens: None,
                pool: "chat".into(),
                model: ModelName::new("m", "m-fast"),
                class: Box::default(),
                traceparent: format!("00-{TRACE}-{PARENT}-01").into(),
                flow: "acme".into(),
                private: false,
                band: Band::Critical,
                request_id: "r".into(),
            }),
            ended_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000),
            duration: Duration::from_secs(10),
            waited: Duration::from_secs(3),
            granted: true,
            first_token: Some(Duration::from_secs(4)),
            outcome,
            code: None,
            endpoint: "127.0.0.1:1".into(),
            status: 200,
            input_tokens: Some(7),
            output_tokens: None,
            requeues: 0,
        }
    }

    fn spans(records: &[SpanRecord]) -> Vec<SpanData> {
        let spans = Spans::default();
        let provider = SdkTracerProvider::builder().with_span_processor(spans.clone()).build();
        for record in records {
            make(&provider.tracer("penstock"), record);
        }
        spans.take()
    }

    fn with(traceparent: &str) -> SpanRecord {
        let record = record(Outcome::Dispatched);
        let mut labels = Arc::into_inner(record.labels).expect("the only one");
        labels.traceparent = traceparent.into();
        SpanRecord { labels: Arc::new(labels), ..record }
    }

    #[test]
    fn a_span_covers_arrival_to_end_and_is_a_child_of_the_clients_span() {
        let spans = spans(&[record(Outcome::Dispatched)]);
        let [span] = &spans[..] else {
            panic!("{spans:?}");
        };
        let time = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!((span.start_time, span.end_time), (time(990), time(1_000)));
        assert_eq!(span.span_context.trace_id().to_string(), TRACE);
        assert_eq!(span.parent_span_id.to_string(), PARENT);
        let events: Vec<_> =
            span.events.iter().map(|event| (event.name.to_string(), event.timestamp)).collect();
        assert_eq!(
            events,
            [
                ("queued".to_owned(), time(990)),
                ("granted".to_owned(), time(993)),
                ("first_byte".to_owned(), time(994)),
            ]
        );
        let attribute = |key: &str| {
            let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
            found.map(|attribute| attribute.value.to_string())
        };
        assert_eq!(attribute("penstock.flow").as_deref(), Some("acme"));
        assert_eq!(attribute("penstock.target_model").as_deref(), Some("m-fast"));
        assert_eq!(attribute("penstock.wait_ms").as_deref(), Some("3000"));
        assert_eq!(attribute("gen_ai.usage.input_tokens").as_deref(), Some("7"));
        assert_eq!(attribute("gen_ai.usage.output_tokens"), None);
        assert_eq!(attribute("penstock.code"), None);
    }

    #[test]
    fn an_unsampled_parent_is_respected_and_a_malformed_one_ignored() {
        assert!(spans(&[with(&format!("00-{TRACE}-{PARENT}-00"))]).is_empty());
        for malformed in ["", "00-zz-yy-01", &format!("00-{TRACE}-{PARENT}"), "x"] {
            let spans = spans(&[with(malformed)]);
            assert_eq!(spans.len(), 1, "{malformed}");
            assert_ne!(spans[0].span_context.trace_id().to_string(), TRACE);
            assert_eq!(spans[0].parent_span_id, opentelemetry::trace::SpanId::INVALID);
        }
        assert!(!parent("").span().span_context().is_valid());
    }

    #[test]
    fn a_private_flow_is_not_in_the_span() {
        let record = record(Outcome::ExpiredTtl);
        let mut labels = Arc::into_inner(record.labels).expect("the only one");
        labels.private = true;
        let record = SpanRecord {
            labels: Arc::new(labels),
            code: Some(Code::QueueTimeout),
            granted: false,
            first_token: None,
            ..record
        };
        let spans = spans(&[record]);
        let attributes = format!("{:?}", spans[0].attributes);
        assert!(!attributes.contains("acme") && attributes.contains("other"), "{attributes}");
        assert_eq!(spans[0].status, Status::error("queue_timeout"));
        assert_eq!(spans[0].events.len(), 1);
    }
}
