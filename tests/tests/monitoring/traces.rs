//! One span per request, from its arrival to its end, as a child of the client's span, through a real Envoy to a collector.

use penstock_tests::collector::{Collector, Span};
use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{ClientRequest, Gateway, Upstream, run};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

async fn gateway(collector: &Collector, head: &str, server: &Upstream) -> Gateway {
    let more = format!("{}  queue: {{flow_capacity: 1}}\n", slots(1));
    let document = config(head, &[pool("p", "m", &[server], &more)]);
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20".to_owned()),
        ("OTEL_SERVICE_NAME", "gateway-of-a-test".to_owned()),
    ];
    Gateway::with_environment(&document, &environment).await
}

fn span_of<'a>(spans: &'a [Span], id: &str) -> &'a Span {
    let found: Vec<&Span> = spans
        .iter()
        .filter(|span| span.attributes.get("penstock.request_id").is_some_and(|value| value == id))
        .collect();
    let [span] = found[..] else {
        panic!("{} spans of {id}: {spans:?}", found.len());
    };
    span
}

fn ask(id: &str, tenant: &str) -> ClientRequest {
    ClientRequest::chat("m", "hello").tenant(tenant).header("x-request-id", id)
}

fn parent(sampled: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{sampled}")
}

#[test]
fn request_is_one_span_from_its_arrival_to_its_end() {
    run(async {
        let (collector, server) = (Collector::start().await, Upstream::scripted().await);
        let gateway = gateway(&collector, "", &server).await;
        let first = ask("first", "acme").header("traceparent", &parent("01")).streamed();
        let second = ask("second", "beta").header("x-penstock-priority", "critical");
        let unsampled = ask("unsampled", "beta").header("traceparent", &parent("00"));
        let malformed = ask("malformed", "gamma").header("traceparent", "00-nonsense");
        let refused = ask("refused", "beta");
        let requests = async {
            tokio::join!(
                gateway.send(first),
                async {
                    gateway.stock("p", 1).await;
                    gateway.send(second).await
                },
                async {
                    gateway.waiting("p", 1).await;
                    gateway.send(malformed).await
                },
            )
        };
        let served = async {
            let events = server.next().await.stream();
            gateway.waiting("p", 2).await;
            // beta may have one waiting request.
            let answer = gateway.send(refused.header("x-penstock-priority", "critical")).await;
            answer.expect_error(503, "flow_capacity", "rejected_flow_capacity");
            events.text("a");
            events.finish(5, 7);
            server.next().await.answer();
            server.next().await.answer();
        };
        tokio::join!(requests, served);
        let (answer, ()) = tokio::join!(gateway.send(unsampled), async {
            server.next().await.answer();
        });
        assert_eq!(answer.status, 200);

        let spans = collector.spans(4).await;
        let first = span_of(&spans, "first");
        assert_eq!((&*first.name, &*first.trace_id, &*first.parent), ("penstock.request", TRACE, PARENT));
        let says = |span: &Span, key: &str| span.attributes.get(key).cloned().unwrap_or_default();
        for (key, value) in [
            ("penstock.pool", "p"),
            ("penstock.model", "m"),
            ("penstock.target_model", "m"),
            ("penstock.band", "default"),
            ("penstock.flow", "acme"),
            ("penstock.outcome", "bypassed"),
            ("penstock.endpoint", &server.address().to_string()),
            ("http.response.status_code", "200"),
            ("gen_ai.usage.input_tokens", "5"),
            ("gen_ai.usage.output_tokens", "7"),
            ("service.name", "gateway-of-a-test"),
        ] {
            assert_eq!(says(first, key), value, "{key}");
        }
        let names = |span: &Span| span.events.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(first), ["queued", "granted", "first_byte"]);

        let second = span_of(&spans, "second");
        assert_eq!(says(second, "penstock.band"), "critical");
        assert_eq!(says(second, "penstock.outcome"), "dispatched");
        let (start, end) = second.times;
        let granted = second.events[1].1;
        assert!(start < granted && granted <= end, "{second:?}");
        let waited: f64 = says(second, "penstock.wait_ms").parse().expect("a number");
        assert!((waited - (granted - start) as f64 / 1e6).abs() < 0.01, "{second:?}");

        let refused = span_of(&spans, "refused");
        assert_eq!(says(refused, "penstock.code"), "flow_capacity");
        assert_eq!(names(refused), ["queued"]);
        let malformed = span_of(&spans, "malformed");
        assert_ne!(malformed.trace_id, TRACE);
        assert_eq!(malformed.parent, "");
        assert!(
            !spans.iter().any(|span| says(span, "penstock.request_id") == "unsampled"),
            "its client didn't want it sampled"
        );
    });
}

#[test]
fn refusing_collector_delays_no_request_and_lost_spans_are_counted() {
    run(async {
        let (collector, server) = (Collector::start().await, Upstream::scripted().await);
        collector.refuse(true);
        let gateway = gateway(&collector, "identity: {fairness_id: [{body: user}]}\n", &server).await;
        let private = ClientRequest::chat("m", "hello").with("user", "secret-person");
        let (answer, ()) = tokio::join!(gateway.send(private), async {
            server.next().await.answer();
        });
        assert_eq!(answer.status, 200);
        penstock_tests::until("the loss is counted", || async {
            let lost = [("reason", "not_taken")];
            match gateway.metrics().await.sum("penstock_trace_spans_dropped_total", &lost) {
                1.0 => Ok(()),
                count => Err(format!("{count}")),
            }
        })
        .await;
        collector.refuse(false);
        let private = ClientRequest::chat("m", "hello").with("user", "secret-person");
        let (answer, ()) = tokio::join!(gateway.send(private), async {
            server.next().await.answer();
        });
        assert_eq!(answer.status, 200);
        let spans = collector.spans(1).await;
        assert_eq!(spans[0].attributes["penstock.flow"], "other");
        assert!(!format!("{spans:?}").contains("secret-person"));
    });
}
