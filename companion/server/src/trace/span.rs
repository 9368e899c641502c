//! What a request's span says: its name, times, attributes and events, and whose child it is.

use std::time::{Duration, SystemTime};

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use penstock_data_plane::policy::band_name;
use penstock_engine::Outcome;

use super::Ended;
use crate::metrics::OTHER;

/// Every span's name.
const NAME: &str = "penstock.request";

/// Makes the span of a request, and ends it. Who isn't sampled leaves none: the client's word on that counts, where it
/// sent one.
pub(super) fn make(tracer: &SdkTracer, ended: &Ended) {
    let arrived = before(ended.at, ended.duration);
    let since = |after: Duration| arrived.checked_add(after).unwrap_or(ended.at);
    let builder = tracer
        .span_builder(NAME)
        .with_kind(SpanKind::Internal)
        .with_start_time(arrived)
        .with_attributes(attributes(ended));
    let mut span = tracer.build_with_context(builder, &parent(&ended.labels.traceparent));
    span.add_event_with_timestamp("queued", arrived, Vec::new());
    if ended.granted {
        span.add_event_with_timestamp("granted", since(ended.waited), Vec::new());
    }
    if let Some(first_byte) = ended.first_byte {
        span.add_event_with_timestamp("first_byte", since(first_byte), Vec::new());
    }
    if !ended.code.is_empty() && ended.outcome != Outcome::Cancelled {
        span.set_status(Status::error(ended.code));
    } else if ended.status >= 500 {
        span.set_status(Status::error("the server failed"));
    }
    span.end_with_timestamp(ended.at);
}

fn before(at: SystemTime, by: Duration) -> SystemTime {
    at.checked_sub(by).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The client's span, if it named one as it should be named.
fn parent(traceparent: &str) -> Context {
    TraceContextPropagator::new().extract_with_context(&Context::new(), &Header(traceparent))
}

fn attributes(ended: &Ended) -> Vec<KeyValue> {
    let labels = &*ended.labels;
    let text = |key: &'static str, value: &str| KeyValue::new(key, value.to_owned());
    let flow = if labels.private { OTHER } else { &labels.flow };
    let mut attributes = vec![
        text("penstock.request_id", &labels.request_id),
        text("penstock.pool", &labels.pool),
        text("penstock.model", &labels.model),
        text("penstock.target_model", &labels.target_model),
        text("penstock.band", band_name(labels.band)),
        text("penstock.flow", flow),
        text("penstock.outcome", ended.outcome.as_str()),
        KeyValue::new("penstock.wait_ms", ended.waited.as_secs_f64() * 1_000.0),
    ];
    for (key, value) in [
        ("penstock.class", &*labels.class),
        ("penstock.code", ended.code),
        ("penstock.endpoint", &*ended.endpoint),
    ] {
        if !value.is_empty() {
            attributes.push(text(key, value));
        }
    }
    if ended.status > 0 {
        let status = i64::from(ended.status);
        attributes.push(KeyValue::new("http.response.status_code", status));
    }
    for (key, tokens) in [
        ("gen_ai.usage.input_tokens", ended.input_tokens),
        ("gen_ai.usage.output_tokens", ended.output_tokens),
    ] {
        if let Some(tokens) = tokens {
            let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
            attributes.push(KeyValue::new(key, tokens));
        }
    }
    attributes
}

/// The one header that is known of a request.
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
    use penstock_engine::input::Band;

    use super::super::export::Spans;
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const PARENT: &str = "b7ad6b7169203331";

    pub(crate) fn ended(outcome: Outcome) -> Ended {
        Ended {
            labels: Arc::new(Labels {
                pool: "chat".into(),
                model: "m".into(),
                target_model: "m-fast".into(),
                class: Box::default(),
                traceparent: format!("00-{TRACE}-{PARENT}-01").into(),
                flow: "acme".into(),
                private: false,
                band: Band::Critical,
                request_id: "r".into(),
            }),
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000),
            duration: Duration::from_secs(10),
            waited: Duration::from_secs(3),
            granted: true,
            first_byte: Some(Duration::from_secs(4)),
            outcome,
            code: "",
            endpoint: "127.0.0.1:1".into(),
            status: 200,
            input_tokens: Some(7),
            output_tokens: None,
        }
    }

    fn spans(ended: &[Ended]) -> Vec<SpanData> {
        let spans = Spans::default();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(spans.clone())
            .build();
        for ended in ended {
            make(&provider.tracer("penstock"), ended);
        }
        spans.take()
    }

    fn with(traceparent: &str) -> Ended {
        let of = ended(Outcome::Dispatched);
        let mut labels = Arc::into_inner(of.labels).expect("the only one");
        labels.traceparent = traceparent.into();
        Ended {
            labels: Arc::new(labels),
            ..of
        }
    }

    #[test]
    fn a_span_goes_from_arrival_to_end_and_belongs_to_the_clients() {
        let spans = spans(&[ended(Outcome::Dispatched)]);
        let [span] = &spans[..] else {
            panic!("{spans:?}");
        };
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!((span.start_time, span.end_time), (at(990), at(1_000)));
        assert_eq!(span.span_context.trace_id().to_string(), TRACE);
        assert_eq!(span.parent_span_id.to_string(), PARENT);
        let events: Vec<_> = span
            .events
            .iter()
            .map(|it| (it.name.to_string(), it.timestamp))
            .collect();
        assert_eq!(
            events,
            [
                ("queued".to_owned(), at(990)),
                ("granted".to_owned(), at(993)),
                ("first_byte".to_owned(), at(994)),
            ]
        );
        let says = |key: &str| {
            let found = span.attributes.iter().find(|it| it.key.as_str() == key);
            found.map(|it| it.value.to_string())
        };
        assert_eq!(says("penstock.flow").as_deref(), Some("acme"));
        assert_eq!(says("penstock.target_model").as_deref(), Some("m-fast"));
        assert_eq!(says("penstock.wait_ms").as_deref(), Some("3000"));
        assert_eq!(says("gen_ai.usage.input_tokens").as_deref(), Some("7"));
        assert_eq!(says("gen_ai.usage.output_tokens"), None);
        assert_eq!(says("penstock.code"), None);
    }

    #[test]
    fn who_says_it_is_not_sampled_is_not_and_what_is_malformed_says_nothing() {
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
    fn a_private_flow_is_in_no_span() {
        let of = ended(Outcome::ExpiredTtl);
        let mut labels = Arc::into_inner(of.labels).expect("the only one");
        labels.private = true;
        let of = Ended {
            labels: Arc::new(labels),
            code: "queue_timeout",
            granted: false,
            first_byte: None,
            ..of
        };
        let spans = spans(&[of]);
        let said = format!("{:?}", spans[0].attributes);
        assert!(!said.contains("acme") && said.contains("other"), "{said}");
        assert_eq!(spans[0].status, Status::error("queue_timeout"));
        assert_eq!(spans[0].events.len(), 1);
    }
}
