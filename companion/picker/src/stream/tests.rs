//! Streams without a gateway and without a companion: the pool fails open, so the core decides alone.

use futures_util::{FutureExt as _, StreamExt as _};
use penstock_filter_core::config::Config;
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::session::Epoch;
use penstock_wire as wire;

use super::*;
use crate::generated::body_mutation::Mutation;
use crate::generated::processing_response::Response;
use crate::generated::{HeaderMap, HeaderValue, HttpTrailers, ProcessingResponse, ProtocolConfiguration};
use crate::outbox::{self, Answers, Pace};
use crate::shared_data::WorkersData;

const NOW: Instant = Instant::from_nanos(60_000_000_000);
const BODY: &str = r#"{"model": "m", "messages": []}"#;

fn worker() -> Worker {
    let route = wire::Route {
        path: "/v1/chat/completions".into(),
        api: wire::Api::ChatCompletions.into(),
        action: wire::PathAction::Queue.into(),
    };
    let pool = wire::Pool {
        name: "chat".into(),
        is_default: true,
        endpoints: vec!["127.0.0.1:1".into()],
        fallback: wire::Fallback::Open.into(),
        ttl_ms: 30_000,
        no_endpoint_ttl_ms: 30_000,
        ..wire::Pool::default()
    };
    let policy = wire::Policy {
        routes: vec![route],
        pools: vec![pool],
        body_bytes_max: 1 << 25,
        ..wire::Policy::default()
    };
    let config = Config {
        companion: "companion".into(),
        node: "picker".into(),
        requeue_listener: None,
        is_requeue_listener: false,
        routes_report_endpoint: false,
        logs_attempts: false,
        routes_requeue: false,
        restarts: false,
        keeps_alive: false,
        is_picker: true,
        policy,
    };
    let random = RandomBits { epoch: Epoch { hi: 1, lo: 2 }, envoy: 3, key: Default::default() };
    Worker::new(Instant::from_nanos(0), &random, &config, Box::new(WorkersData::default()))
}

struct World {
    worker: Worker,
    stream: Stream,
    answers: Answers,
    _pace: Pace,
}

impl World {
    fn new() -> Self {
        let (out, answers, pace) = outbox::new();
        let stream = Stream::new(7, out, Facts::new(None));
        Self { worker: worker(), stream, answers, _pace: pace }
    }

    /// Passes a message, and returns what it is answered with.
    fn receive(&mut self, request: Request) -> Vec<Response> {
        self.receive_with(request, None)
    }

    fn receive_with(
        &mut self,
        request: Request,
        modes: Option<(BodySendMode, BodySendMode)>,
    ) -> Vec<Response> {
        let protocol_config = modes.map(|(request, response)| ProtocolConfiguration {
            request_body_mode: request.into(),
            response_body_mode: response.into(),
            send_body_without_waiting_for_header_response: false,
        });
        let message =
            ProcessingRequest { request: Some(request), protocol_config, ..ProcessingRequest::default() };
        self.stream.receive(NOW, &mut self.worker, message);
        let next = |answers: &mut Answers| answers.next().now_or_never().flatten();
        let answers = std::iter::from_fn(|| next(&mut self.answers));
        answers.filter_map(|answer: Result<ProcessingResponse, _>| answer.ok()?.response).collect()
    }
}

fn headers(pairs: &[(&str, &str)], end: bool) -> HttpHeaders {
    let headers = pairs.iter().map(|(name, value)| HeaderValue {
        key: (*name).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    });
    HttpHeaders { headers: Some(HeaderMap { headers: headers.collect() }), end_of_stream: end }
}

fn request_headers() -> Request {
    let path = (":path", "/v1/chat/completions");
    Request::RequestHeaders(headers(&[(":method", "POST"), path, ("content-length", "30")], false))
}

fn request_body(bytes: impl Into<Bytes>, end: bool) -> Request {
    Request::RequestBody(HttpBody { body: bytes.into(), end_of_stream: end })
}

/// The endpoint that an answer names.
fn endpoint(answer: &Response) -> Option<String> {
    let common = match answer {
        Response::RequestHeaders(answer) => answer.response.as_ref()?,
        Response::RequestBody(answer) => answer.response.as_ref()?,
        _ => return None,
    };
    let set = common.header_mutation.as_ref()?.set_headers.iter();
    let mut headers = set.filter_map(|set| set.header.as_ref());
    let found = headers.find(|header| header.key == "x-gateway-destination-endpoint")?;
    String::from_utf8(found.raw_value.to_vec()).ok()
}

/// The pieces of a body that is sent back, each with whether it is the last one.
fn pieces(answers: &[Response]) -> Vec<(Bytes, bool)> {
    let piece = |answer: &Response| match answer {
        Response::RequestBody(answer) | Response::ResponseBody(answer) => {
            match answer.response.as_ref()?.body_mutation.as_ref()?.mutation.as_ref()? {
                Mutation::StreamedResponse(piece) => Some((piece.body.clone(), piece.end_of_stream)),
                Mutation::Body(_) => None,
            }
        }
        _ => None,
    };
    answers.iter().filter_map(piece).collect()
}

#[test]
fn a_body_is_sent_back_after_the_headers_in_the_memory_in_which_it_came() {
    let mut world = World::new();
    // A gateway that names no modes wants bodies back.
    assert!(world.receive(request_headers()).is_empty());
    let whole =
        Bytes::from(format!(r#"{{"model": "m", "messages": [{{"content": "{}"}}]}}"#, "x".repeat(150_000)));
    let (first, last) = (whole.slice(..100_000), whole.slice(100_000..));
    assert!(world.receive(request_body(first.clone(), false)).is_empty());
    let answers = world.receive(request_body(last, true));
    assert_eq!(endpoint(&answers[0]).as_deref(), Some("127.0.0.1:1"));
    let pieces = pieces(&answers);
    assert_eq!(pieces.len(), answers.len() - 1);
    assert!(pieces.iter().all(|(piece, _)| piece.len() <= PIECE_BYTES));
    assert_eq!(pieces[0].0.as_ptr(), first.as_ptr(), "not a copy");
    assert_eq!(pieces.iter().flat_map(|(piece, _)| piece.to_vec()).collect::<Vec<_>>(), whole);
    let ends: Vec<bool> = pieces.iter().map(|(_, end)| *end).collect();
    assert_eq!(ends.iter().filter(|end| **end).count(), 1);
    assert_eq!(ends.last(), Some(&true));
}

#[test]
fn trailers_end_a_body() {
    let mut world = World::new();
    world.receive(request_headers());
    assert!(world.receive(request_body(BODY, false)).is_empty());
    let answers = world.receive(Request::RequestTrailers(HttpTrailers { trailers: None }));
    assert_eq!(pieces(&answers), [(Bytes::from(BODY), false)]);
    assert!(
        matches!(answers[..], [Response::RequestHeaders(_), _, Response::RequestTrailers(_)]),
        "{answers:?}"
    );
}

#[test]
fn an_end_without_bytes_is_sent_back_too() {
    let mut world = World::new();
    world.receive(request_headers());
    world.receive(request_body(BODY, false));
    let answers = world.receive(request_body(Bytes::new(), true));
    assert_eq!(pieces(&answers), [(Bytes::from(BODY), true)]);
    let other = [(":method", "GET"), (":path", "/metrics-of-nobody")];
    let mut passing = World::new();
    let refused = passing.receive(Request::RequestHeaders(headers(&other, true)));
    assert!(matches!(refused[..], [Response::ImmediateResponse(_)]), "{refused:?}");
    assert!(passing.receive(request_body(BODY, true)).is_empty(), "after a reply all is over");
}

#[test]
fn a_whole_body_is_answered_with_the_endpoint() {
    let mut world = World::new();
    let modes = Some((BodySendMode::Buffered, BodySendMode::Buffered));
    let answers = world.receive_with(request_headers(), modes);
    assert!(matches!(answers[..], [Response::RequestHeaders(_)]) && endpoint(&answers[0]).is_none());
    // Without the end of the stream: trailers follow, which this gateway keeps.
    let answers = world.receive(request_body(BODY, false));
    assert_eq!(endpoint(&answers[0]).as_deref(), Some("127.0.0.1:1"));
    assert_eq!(answers.len(), 1);
    let response =
        Request::ResponseHeaders(headers(&[(":status", "200"), ("content-type", "application/json")], false));
    assert!(matches!(world.receive(response)[..], [Response::ResponseHeaders(_)]), "the gateway holds them");
    let error = HttpBody { body: r#"{"error": {"message": "no", "code": 500}}"#.into(), end_of_stream: true };
    let answers = world.receive(Request::ResponseBody(error));
    let [Response::ImmediateResponse(reply)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(reply.status.map(|status| status.code), Some(500));
    assert_eq!(world.worker.exchanges(), 0);
}

#[test]
fn headers_alone_decide_where_the_body_comes_too_late() {
    for mode in [BodySendMode::None, BodySendMode::Streamed] {
        let mut world = World::new();
        let answers = world.receive_with(request_headers(), Some((mode, BodySendMode::None)));
        assert_eq!(endpoint(&answers[0]).as_deref(), Some("127.0.0.1:1"), "{mode:?}");
        if mode == BodySendMode::Streamed {
            for (bytes, end) in [("{\"mo", false), ("del\"", true)] {
                let answers = world.receive(request_body(bytes, end));
                assert!(matches!(answers[..], [Response::RequestBody(_)]), "{answers:?}");
            }
        }
        let response = headers(&[(":status", "200"), ("content-type", "text/event-stream")], false);
        let answers = world.receive(Request::ResponseHeaders(response));
        assert!(matches!(answers[..], [Response::ResponseHeaders(_)]), "nothing is held: {answers:?}");
        world.stream.end(NOW, &mut world.worker);
        assert_eq!(world.worker.exchanges(), 0);
    }
}

#[test]
fn a_stream_that_ends_in_any_state_leaves_no_exchange() {
    let messages = [
        request_headers(),
        request_body(BODY, true),
        Request::ResponseHeaders(headers(
            &[(":status", "200"), ("content-type", "text/event-stream")],
            false,
        )),
        Request::ResponseBody(HttpBody { body: "data: {}\n\n".into(), end_of_stream: false }),
    ];
    for count in 0..=messages.len() {
        let mut world = World::new();
        for message in messages.iter().take(count) {
            world.receive(message.clone());
        }
        assert_eq!(world.worker.exchanges(), usize::from(count > 0), "{count}");
        world.stream.end(NOW, &mut world.worker);
        assert_eq!(world.worker.exchanges(), 0, "{count}");
    }
}

#[test]
fn modes_that_the_picker_does_not_know_are_refused() {
    for mode in [BodySendMode::BufferedPartial, BodySendMode::Grpc] {
        let mut world = World::new();
        let answers = world.receive_with(request_headers(), Some((mode, BodySendMode::None)));
        let [Response::ImmediateResponse(reply)] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!(reply.status.map(|status| status.code), Some(503));
        assert!(reply.body.windows(20).any(|part| part == b"filter_misconfigured"), "{:?}", reply.body);
        assert_eq!(world.worker.exchanges(), 0);
    }
}
