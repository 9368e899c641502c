//! A filter's worker with a hostile companion, between arbitrary requests: any bytes, any commands, any headers.
//!
//! The worker must not panic, must resume or answer a stream at most once and only while it waits, number its frames
//! without a gap, send no message over the limit, answer with complete JSON and valid headers, and list in its next
//! `Hello` exactly the requests that have not ended.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use penstock_data_plane::filter_policy;
use penstock_filter_core::config::Config as PluginConfig;
use penstock_filter_core::effect::{BodyAction, Effect, HeadersAction, SessionId, StreamAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::session::SessionEffect;
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use penstock_wire as wire;
use prost::Message;
use serde_json::{Value, json};
use wire::command::Kind;
use wire::filter_frame::Event as FilterEvent;
use wire::names;

use super::choices::Choices;
use super::frames::{self, ADDRESSES};
use super::host::{
    DRAW, Host, PATH, Shared, assert_applicable, assert_readable, request_headers, response_headers,
    serialize,
};
use super::policies::configs;

/// Operations of one input.
const OPERATIONS: usize = 2_000;
/// The most effects that one call may have.
const EFFECTS: usize = 10_000;

/// Runs the operations that the input encodes.
pub fn run(input: &[u8]) {
    let mut choices = Choices::new(input);
    let plugins = plugins();
    let plugin = &plugins[usize::from(choices.byte()) % plugins.len()];
    let now = Instant::from_nanos(1_000_000_000);
    let commons = Shared::default();
    let mut world = World {
        worker: Worker::new(now, &DRAW, plugin, Box::new(commons.clone())),
        commons,
        now,
        policies: plugins.iter().map(|plugin| plugin.policy.clone()).collect(),
        stream: Stream::None,
        sent: 0,
        received: 0,
        contexts: BTreeMap::new(),
        last_context: 0,
    };
    for _ in 0..OPERATIONS {
        if choices.is_empty() {
            break;
        }
        world.operate(&mut choices);
        world.take_effects();
    }
    world.finish();
}

fn plugins() -> &'static [PluginConfig] {
    static PLUGINS: OnceLock<Vec<PluginConfig>> = OnceLock::new();
    PLUGINS.get_or_init(|| {
        let variants = [json!({}), json!({"requeue": "penstock"}), json!({"reenters": true})];
        let all = configs().iter().flat_map(|config| {
            variants.iter().map(move |variant| {
                let mut json = filter_policy::plugin_configuration(config, "n", false);
                for (key, value) in variant.as_object().into_iter().flatten() {
                    json[key] = value.clone();
                }
                let json = json.to_string();
                PluginConfig::parse(json.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{json}"))
            })
        });
        all.collect()
    })
}

/// A requeue token of this Envoy, which allows a request to enter again.
fn token() -> &'static str {
    static TOKEN: OnceLock<String> = OnceLock::new();
    TOKEN.get_or_init(|| {
        let plugin = plugins().iter().find(|plugin| plugin.requeue_listener.is_some());
        let plugin = plugin.expect("a configuration with a listener to enter again by");
        let now = Instant::from_nanos(1_000_000_000);
        let mut worker = Worker::new(now, &DRAW, plugin, Box::new(Shared::default()));
        worker.handle_tick(now);
        worker.handle_opened(now, SessionId::MAIN);
        let headers = [(b":method".to_vec(), b"POST".to_vec()), (b":path".to_vec(), PATH.into())];
        let header_map = serialize(&headers);
        let host = Host::new(Choices::new(&[]));
        let headed = worker.handle_request_headers(now, 1, Headers::new(&header_map), false, &host);
        let HeadersAction::Pause(sequence, _) = headed else {
            panic!("{headed:?}");
        };
        let body = br#"{"model":"m"}"#;
        let read = |start: usize, length: usize| body.get(start..start + length).map(<[u8]>::to_vec);
        worker.handle_request_body(now, sequence, body.len(), true, read);
        let version = wire::limits::VERSION_MAX;
        let kinds = [
            Kind::HelloAck(wire::HelloAck { version, term: 1 }),
            Kind::Grant(wire::Grant {
                sequence,
                pool: "chat".into(),
                endpoints: vec![ADDRESSES[0].into()],
                requeue: true,
                ..wire::Grant::default()
            }),
        ];
        let frame = wire::CompanionFrame {
            seq: 1,
            ack: 0,
            commands: kinds.map(|kind| wire::Command { kind: Some(kind) }).into(),
        };
        worker.handle_message(now, SessionId::MAIN, &frame.encode_to_vec());
        core::iter::from_fn(|| worker.poll_effect())
            .find_map(|effect| match effect {
                Effect::Stream { action: StreamAction::Resume { edits, .. }, .. } => {
                    edits.into_iter().find_map(|edit| match edit {
                        HeaderEdit::Set(names::REQUEUE_HEADER, token) => Some(token),
                        HeaderEdit::Add(..)
                        | HeaderEdit::Set(..)
                        | HeaderEdit::SetStatic(..)
                        | HeaderEdit::SetProperty(..)
                        | HeaderEdit::Remove(_) => None,
                    })
                }
                Effect::Session(..) | Effect::Stream { .. } | Effect::LogError(_) => None,
            })
            .expect("a token")
    })
}

/// The session's stream as the host sees it.
#[derive(Clone, Copy, PartialEq)]
enum Stream {
    None,
    Ordered,
    Open,
}

/// An HTTP stream as the host sees it.
#[derive(Clone, Debug, PartialEq)]
enum Http {
    /// The body is arriving; these bytes are buffered.
    Body(Vec<u8>),
    /// Paused.
    Paused,
    /// Sent to a server, or answered by it.
    Resumed,
    Answered,
}

struct World {
    worker: Worker,
    commons: Shared,
    now: Instant,
    policies: Vec<wire::Policy>,
    stream: Stream,
    sent: u64,
    received: u64,
    /// Open HTTP streams by context: the worker's sequence number and the state.
    contexts: BTreeMap<u32, (u64, Http)>,
    last_context: u32,
}

impl World {
    fn operate(&mut self, choices: &mut Choices<'_>) {
        match choices.below(16) {
            0 => self.tick(choices),
            1 => self.open(choices),
            2 => {
                if self.stream == Stream::Open && choices.one_in(4) {
                    self.stream = Stream::None;
                    self.worker.handle_closed(self.now, SessionId::MAIN);
                }
            }
            3 => self.message(choices.bytes()),
            4..=6 => self.frame(choices),
            7..=9 => self.request(choices),
            10 | 11 => self.body(choices),
            12 => self.response(choices),
            13 => self.response_body(choices),
            14 => self.log(choices),
            _ => self.commons.change_by_another_worker(choices),
        }
    }

    fn tick(&mut self, choices: &mut Choices<'_>) {
        self.now = self.now.after(match choices.below(4) {
            0 => Duration::from_micros(u64::from(choices.byte())),
            1 | 2 => Duration::from_millis(u64::from(choices.byte())),
            _ => Duration::from_millis(100 * u64::from(choices.byte())),
        });
        assert!(!self.worker.tick_period(self.now).is_zero(), "the tick period is above zero");
        self.worker.handle_tick(self.now);
    }

    /// The host opens the stream that was ordered, or fails to.
    fn open(&mut self, choices: &mut Choices<'_>) {
        if self.stream != Stream::Ordered {
            return;
        }
        if choices.one_in(8) {
            self.stream = Stream::None;
            return self.worker.handle_open_failed(self.now, SessionId::MAIN);
        }
        self.opened();
        if !choices.one_in(8) {
            self.take_effects();
            let ack = wire::HelloAck { version: 1 + u32::from(choices.below(2)), term: choices.number() };
            self.send(self.sent, vec![Kind::HelloAck(ack)]);
        }
    }

    fn opened(&mut self) {
        self.stream = Stream::Open;
        (self.sent, self.received) = (0, 0);
        self.worker.handle_opened(self.now, SessionId::MAIN);
    }

    fn frame(&mut self, choices: &mut Choices<'_>) {
        let ack = if choices.one_in(8) { choices.number() } else { self.sent };
        let count = 1 + choices.below(3);
        let kinds = (0..count).map(|_| frames::command(choices, &self.policies)).collect();
        if choices.one_in(32) {
            self.received = self.received.wrapping_add(choices.number());
        }
        self.send(ack, kinds);
    }

    fn send(&mut self, ack: u64, kinds: Vec<Kind>) {
        self.received = self.received.wrapping_add(1);
        let commands = kinds.into_iter().map(|kind| wire::Command { kind: Some(kind) });
        let frame = wire::CompanionFrame { seq: self.received, ack, commands: commands.collect() };
        self.message(&frame.encode_to_vec());
    }

    fn message(&mut self, bytes: &[u8]) {
        if self.stream == Stream::Open {
            self.worker.handle_message(self.now, SessionId::MAIN, bytes);
        }
    }

    fn request(&mut self, choices: &mut Choices<'_>) {
        let header_map = request_headers(choices, token());
        let end = choices.one_in(16);
        self.last_context += 1;
        let context = self.last_context;
        let host = Host::new(*choices);
        let headed =
            self.worker.handle_request_headers(self.now, context, Headers::new(&header_map), end, &host);
        *choices = host.choices();
        match headed {
            HeadersAction::Pass(edits) => assert_applicable(&edits),
            HeadersAction::Answer(answer) => assert_readable(&answer),
            HeadersAction::Pause(sequence, edits) => {
                assert_applicable(&edits);
                self.contexts.insert(context, (sequence, Http::Body(Vec::new())));
            }
            HeadersAction::Reply(sequence, answer) => {
                assert_readable(&answer);
                self.contexts.insert(context, (sequence, Http::Answered));
            }
        }
    }

    /// Chooses one of the open HTTP streams.
    fn choose_stream(&self, choices: &mut Choices<'_>) -> Option<(u32, u64, Http)> {
        let index = usize::from(choices.byte()) % self.contexts.len().max(1);
        self.contexts.iter().nth(index).map(|(context, (sequence, http))| (*context, *sequence, http.clone()))
    }

    fn body(&mut self, choices: &mut Choices<'_>) {
        let Some((context, sequence, Http::Body(mut buffered))) = self.choose_stream(choices) else {
            return;
        };
        let usual: [&[u8]; 5] = [
            br#"{"model":"m","user":"u","max_tokens":3,"messages":[{"content":"hi"}]}"#,
            br#"{"model":"m-large","stream":true}"#,
            br#"{"model":"unknown"}"#,
            br#"{"model":"#,
            br#""m"}"#,
        ];
        let piece = if choices.one_in(4) { choices.bytes() } else { choices.item(&usual) };
        buffered.extend_from_slice(piece);
        let read = |start: usize, length: usize| buffered.get(start..start + length).map(<[u8]>::to_vec);
        let (end, by_trailers) = (!choices.one_in(4), choices.one_in(8));
        let ends_now = end && !by_trailers;
        let mut bodied = self.worker.handle_request_body(self.now, sequence, buffered.len(), ends_now, read);
        if bodied == BodyAction::Pause && by_trailers {
            bodied = self.worker.handle_request_end(self.now, sequence, read);
        }
        let http = match bodied {
            BodyAction::Reply(answer) => {
                assert_readable(&answer);
                Http::Answered
            }
            BodyAction::Continue(edits) => {
                assert!(end || by_trailers, "a request is resumed before its body ends");
                assert_applicable(&edits);
                Http::Resumed
            }
            BodyAction::Pause if end || by_trailers => Http::Paused,
            BodyAction::Pause => Http::Body(buffered),
        };
        self.contexts.insert(context, (sequence, http));
    }

    fn response(&mut self, choices: &mut Choices<'_>) {
        let stream = self.choose_stream(choices).filter(|(_, _, http)| *http == Http::Resumed);
        let passes = choices.one_in(8);
        if stream.is_none() && !passes {
            return;
        }
        let sequence = stream.map(|(_, sequence, _)| sequence);
        let header_map = response_headers(choices);
        let end = choices.one_in(8);
        let host = Host::new(*choices);
        let responded =
            self.worker.handle_response_headers(self.now, sequence, Headers::new(&header_map), end, &host);
        *choices = host.choices();
        assert_applicable(&responded.edits);
        if let Some(body) = responded.body {
            assert!(serde_json::from_slice::<Value>(&body).is_ok());
        }
    }

    fn response_body(&mut self, choices: &mut Choices<'_>) {
        let Some((_, sequence, Http::Resumed)) = self.choose_stream(choices) else {
            return;
        };
        let piece = choices.bytes();
        let read = |start: usize, length: usize| piece.get(start..start + length).map(<[u8]>::to_vec);
        let end = choices.one_in(4);
        self.worker.handle_response_body(self.now, sequence, piece.len(), end, read);
        if choices.one_in(8) {
            self.worker.handle_response_end(sequence);
        }
    }

    fn log(&mut self, choices: &mut Choices<'_>) {
        if let Some((context, sequence, _)) = self.choose_stream(choices) {
            self.contexts.remove(&context);
            let host = Host::new(*choices);
            self.worker.handle_log(self.now, sequence, &host);
            *choices = host.choices();
        }
    }

    /// Executes the worker's effects. Returns the number of requests in its `Hello`, if it sent one.
    fn take_effects(&mut self) -> Option<usize> {
        let mut listed = None;
        for count in 0.. {
            assert!(count < EFFECTS, "effects don't end");
            match self.worker.poll_effect() {
                None => return listed,
                Some(Effect::Session(_, SessionEffect::OpenStream { .. })) => {
                    assert!(self.stream == Stream::None, "opened twice");
                    self.stream = Stream::Ordered;
                }
                Some(Effect::Session(_, SessionEffect::ResetStream)) => self.stream = Stream::None,
                Some(Effect::Session(_, SessionEffect::LogWarning(text) | SessionEffect::LogInfo(text))) => {
                    assert!(!text.is_empty())
                }
                Some(Effect::Session(_, SessionEffect::Send(message))) => {
                    let frame = self.check_sent(&message);
                    if let Some(FilterEvent::Hello(hello)) = frame.event {
                        *listed.get_or_insert(0) += hello.waiting.len() + hello.running.len();
                    }
                }
                Some(Effect::Stream { context, action }) => self.act(context, action),
                Some(Effect::LogError(text)) => panic!("{text}"),
            }
        }
        listed
    }

    fn act(&mut self, context: u32, action: StreamAction) {
        match action {
            StreamAction::Resume { edits, rewrite } => {
                assert_applicable(&edits);
                if let Some(rewrite) = rewrite {
                    assert!(
                        rewrite.range.start < rewrite.range.end && rewrite.range.end <= rewrite.length,
                        "{rewrite:?}"
                    );
                }
                self.transition(context, Http::Resumed);
            }
            StreamAction::Reply(reply) => {
                assert_readable(&reply);
                self.transition(context, Http::Answered);
            }
            StreamAction::ResumeResponse { .. } | StreamAction::EndSilentResponse { .. } => {}
            StreamAction::Evict { sequence, reply } => {
                assert_readable(&reply);
                if self.worker.evict(self.now, sequence, reply.status) {
                    let (_, http) = self.contexts.get_mut(&context).expect("a stream that is open");
                    assert_eq!(*http, Http::Resumed, "{context} is evicted");
                    *http = Http::Answered;
                }
            }
            StreamAction::CountReceived { sequence } => {
                assert_eq!(self.worker.handle_received(self.now, sequence, 0), None);
            }
        }
    }

    fn transition(&mut self, context: u32, next: Http) {
        let (_, http) = self.contexts.get_mut(&context).expect("a stream that is open");
        assert_eq!(*http, Http::Paused, "{context} becomes {next:?}");
        *http = next;
    }

    fn check_sent(&mut self, message: &[u8]) -> wire::FilterFrame {
        assert!(self.stream == Stream::Open, "a message without a stream");
        assert!(message.len() <= wire::limits::MESSAGE_BYTES_MAX);
        let frame = wire::FilterFrame::decode(message).expect("a frame");
        self.sent += 1;
        assert_eq!(frame.seq, self.sent, "a gap");
        frame
    }

    /// Ends all HTTP streams; the next `Hello` lists no request.
    fn finish(mut self) {
        let host = Host::new(Choices::new(&[]));
        for (_, (sequence, _)) in core::mem::take(&mut self.contexts) {
            self.worker.handle_log(self.now, sequence, &host);
        }
        self.take_effects();
        if self.stream == Stream::Open {
            self.stream = Stream::None;
            self.worker.handle_closed(self.now, SessionId::MAIN);
        }
        for _ in 0..100 {
            self.take_effects();
            if self.stream == Stream::Ordered {
                self.opened();
                assert_eq!(self.take_effects(), Some(0), "requests leaked, or no Hello");
                return self.worker.handle_shutdown();
            }
            self.now = self.now.after(wire::limits::VERSION_RETRY);
            self.worker.handle_tick(self.now);
        }
        panic!("the worker opens no stream again");
    }
}
