//! What a companion says to a filter's worker, between arbitrary requests: any bytes, any commands, any headers.
//!
//! Whatever comes, the worker doesn't panic, resumes or answers a stream at most once and only while it waits, numbers its
//! frames without a gap, sends only what a message may hold, answers in whole JSON with headers that are headers, and says
//! in its next Hello exactly what hasn't ended.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use penstock_data_plane::policy;
use penstock_filter_core::config::Config as PluginConfig;
use penstock_filter_core::effect::{BodyAction, Effect, HeadersAction};
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::session::SessionEffect;
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use penstock_wire as wire;
use prost::Message;
use serde_json::{Value, json};
use wire::command::Kind;
use wire::filter_frame::Event as Said;
use wire::names;

use super::dice::Dice;
use super::frames::{self, ADDRESSES};
use super::host::{DRAW, Host, PATH, Shared, proper, request_headers, response_headers, serialize, whole};
use super::policies::configs;

/// Operations of one input.
const OPERATIONS: usize = 2_000;
/// Effects that one call may have for every stream there is.
const EFFECTS: usize = 10_000;

/// Lets a companion, clients and servers speak as the input says.
pub fn run(input: &[u8]) {
    let mut dice = Dice::new(input);
    let plugins = plugins();
    let plugin = &plugins[usize::from(dice.byte()) % plugins.len()];
    let now = Instant::from_nanos(1_000_000_000);
    let commons = Shared::default();
    let mut world = World {
        worker: Worker::new(now, &DRAW, plugin, Box::new(commons.clone())),
        commons,
        now,
        policies: plugins.iter().map(|it| it.policy.clone()).collect(),
        stream: Stream::None,
        said: 0,
        heard: 0,
        contexts: BTreeMap::new(),
        last_context: 0,
    };
    for _ in 0..OPERATIONS {
        if dice.is_empty() {
            break;
        }
        world.operate(&mut dice);
        world.effects();
    }
    world.leave();
}

fn plugins() -> &'static [PluginConfig] {
    static PLUGINS: OnceLock<Vec<PluginConfig>> = OnceLock::new();
    PLUGINS.get_or_init(|| {
        let variants = [
            json!({}),
            json!({"requeue": "penstock"}),
            json!({"reenters": true}),
        ];
        let all = configs().iter().flat_map(|config| {
            variants.iter().map(move |variant| {
                let mut json = policy::plugin_configuration(config, "n");
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

/// A token of this Envoy: what a request goes with that may enter again.
fn token() -> &'static str {
    static TOKEN: OnceLock<String> = OnceLock::new();
    TOKEN.get_or_init(|| {
        let plugin = plugins().iter().find(|it| it.requeue_listener.is_some());
        let plugin = plugin.expect("a configuration with a listener to enter again by");
        let now = Instant::from_nanos(1_000_000_000);
        let mut worker = Worker::new(now, &DRAW, plugin, Box::new(Shared::default()));
        worker.handle_tick(now);
        worker.handle_opened(now);
        let headers = [
            (b":method".to_vec(), b"POST".to_vec()),
            (b":path".to_vec(), PATH.into()),
        ];
        let map = serialize(&headers);
        let host = Host::new(Dice::new(&[]));
        let headed = worker.handle_request_headers(now, 1, Headers::new(&map), false, &host);
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
        worker.handle_message(now, &frame.encode_to_vec());
        core::iter::from_fn(|| worker.poll_effect())
            .find_map(|effect| match effect {
                Effect::Resume { edits, .. } => edits.into_iter().find_map(|edit| match edit {
                    HeaderEdit::Set(names::REQUEUE_HEADER, token) => Some(token),
                    HeaderEdit::Set(..) | HeaderEdit::Remove(_) => None,
                }),
                Effect::Session(_) | Effect::Reply { .. } => None,
            })
            .expect("a token")
    })
}

/// The session's stream, as the host has it.
#[derive(Clone, Copy, PartialEq)]
enum Stream {
    None,
    Ordered,
    Open,
}

/// An HTTP stream, as the host has it.
#[derive(Clone, Debug, PartialEq)]
enum Http {
    /// Its body comes; so much of it is there.
    Body(Vec<u8>),
    /// Paused.
    Paused,
    /// At a server, or back from there.
    Resumed,
    Answered,
}

struct World {
    worker: Worker,
    commons: Shared,
    now: Instant,
    policies: Vec<wire::Policy>,
    stream: Stream,
    said: u64,
    heard: u64,
    /// Open HTTP streams: the worker's number, and how far each is.
    contexts: BTreeMap<u32, (u64, Http)>,
    last_context: u32,
}

impl World {
    fn operate(&mut self, dice: &mut Dice<'_>) {
        match dice.below(16) {
            0 => self.tick(dice),
            1 => self.open(dice),
            2 => {
                if self.stream == Stream::Open && dice.one_in(4) {
                    self.stream = Stream::None;
                    self.worker.handle_closed(self.now);
                }
            }
            3 => self.message(dice.bytes()),
            4..=6 => self.frame(dice),
            7..=9 => self.request(dice),
            10 | 11 => self.body(dice),
            12 => self.response(dice),
            13 => self.response_body(dice),
            14 => self.log(dice),
            _ => self.commons.meddle(dice),
        }
    }

    fn tick(&mut self, dice: &mut Dice<'_>) {
        self.now = self.now.after(match dice.below(4) {
            0 => Duration::from_micros(u64::from(dice.byte())),
            1 | 2 => Duration::from_millis(u64::from(dice.byte())),
            _ => Duration::from_millis(100 * u64::from(dice.byte())),
        });
        assert!(!self.worker.tick_period(self.now).is_zero(), "it never rests");
        self.worker.handle_tick(self.now);
    }

    /// The host does what it was ordered to: the stream opens, or can't be opened.
    fn open(&mut self, dice: &mut Dice<'_>) {
        if self.stream != Stream::Ordered {
            return;
        }
        if dice.one_in(8) {
            self.stream = Stream::None;
            return self.worker.handle_open_failed(self.now);
        }
        self.opened();
        if !dice.one_in(8) {
            self.effects();
            let ack = wire::HelloAck {
                version: 1 + u32::from(dice.below(2)),
                term: dice.number(),
            };
            self.say(self.said, vec![Kind::HelloAck(ack)]);
        }
    }

    fn opened(&mut self) {
        self.stream = Stream::Open;
        (self.said, self.heard) = (0, 0);
        self.worker.handle_opened(self.now);
    }

    fn frame(&mut self, dice: &mut Dice<'_>) {
        let ack = if dice.one_in(8) { dice.number() } else { self.said };
        let count = 1 + dice.below(3);
        let kinds = (0..count)
            .map(|_| frames::command(dice, &self.policies))
            .collect();
        if dice.one_in(32) {
            self.heard = self.heard.wrapping_add(dice.number());
        }
        self.say(ack, kinds);
    }

    fn say(&mut self, ack: u64, kinds: Vec<Kind>) {
        self.heard = self.heard.wrapping_add(1);
        let commands = kinds.into_iter().map(|kind| wire::Command { kind: Some(kind) });
        let frame = wire::CompanionFrame {
            seq: self.heard,
            ack,
            commands: commands.collect(),
        };
        self.message(&frame.encode_to_vec());
    }

    fn message(&mut self, bytes: &[u8]) {
        if self.stream == Stream::Open {
            self.worker.handle_message(self.now, bytes);
        }
    }

    fn request(&mut self, dice: &mut Dice<'_>) {
        let map = request_headers(dice, token());
        let end = dice.one_in(16);
        self.last_context += 1;
        let context = self.last_context;
        let host = Host::new(*dice);
        let headed = self
            .worker
            .handle_request_headers(self.now, context, Headers::new(&map), end, &host);
        *dice = host.dice();
        match headed {
            HeadersAction::Pass(edits) => proper(&edits),
            HeadersAction::Unroutable(answer) => whole(&answer),
            HeadersAction::Pause(sequence, edits) => {
                proper(&edits);
                self.contexts.insert(context, (sequence, Http::Body(Vec::new())));
            }
            HeadersAction::Reply(sequence, answer) => {
                whole(&answer);
                self.contexts.insert(context, (sequence, Http::Answered));
            }
        }
    }

    /// One of the open HTTP streams.
    fn one(&self, dice: &mut Dice<'_>) -> Option<(u32, u64, Http)> {
        let at = usize::from(dice.byte()) % self.contexts.len().max(1);
        self.contexts
            .iter()
            .nth(at)
            .map(|(context, (sequence, http))| (*context, *sequence, http.clone()))
    }

    fn body(&mut self, dice: &mut Dice<'_>) {
        let Some((context, sequence, Http::Body(mut there))) = self.one(dice) else {
            return;
        };
        let usual: [&[u8]; 5] = [
            br#"{"model":"m","user":"u","max_tokens":3,"messages":[{"content":"hi"}]}"#,
            br#"{"model":"m-large","stream":true}"#,
            br#"{"model":"nobody's"}"#,
            br#"{"model":"#,
            br#""m"}"#,
        ];
        let piece = if dice.one_in(4) {
            dice.bytes()
        } else {
            dice.of(&usual)
        };
        there.extend_from_slice(piece);
        let read = |start: usize, length: usize| there.get(start..start + length).map(<[u8]>::to_vec);
        let (end, by_trailers) = (!dice.one_in(4), dice.one_in(8));
        let ends_now = end && !by_trailers;
        let mut bodied = self
            .worker
            .handle_request_body(self.now, sequence, there.len(), ends_now, read);
        if bodied == BodyAction::Pause && by_trailers {
            bodied = self.worker.handle_request_end(self.now, sequence, read);
        }
        let http = match bodied {
            BodyAction::Reply(answer) => {
                whole(&answer);
                Http::Answered
            }
            BodyAction::Continue(edits) => {
                assert!(end || by_trailers, "it goes before its end");
                proper(&edits);
                Http::Resumed
            }
            BodyAction::Pause if end || by_trailers => Http::Paused,
            BodyAction::Pause => Http::Body(there),
        };
        self.contexts.insert(context, (sequence, http));
    }

    fn response(&mut self, dice: &mut Dice<'_>) {
        let one = self.one(dice).filter(|(_, _, http)| *http == Http::Resumed);
        let passes = dice.one_in(8);
        if one.is_none() && !passes {
            return;
        }
        let sequence = one.map(|(_, sequence, _)| sequence);
        let map = response_headers(dice);
        let end = dice.one_in(8);
        let host = Host::new(*dice);
        let responded =
            self.worker
                .handle_response_headers(self.now, sequence, Headers::new(&map), end, &host);
        *dice = host.dice();
        proper(&responded.edits);
        if let Some(body) = responded.body {
            assert!(serde_json::from_slice::<Value>(&body).is_ok());
        }
    }

    fn response_body(&mut self, dice: &mut Dice<'_>) {
        let Some((_, sequence, Http::Resumed)) = self.one(dice) else {
            return;
        };
        let piece = dice.bytes();
        let read = |start: usize, length: usize| piece.get(start..start + length).map(<[u8]>::to_vec);
        let end = dice.one_in(4);
        self.worker
            .handle_response_body(self.now, sequence, piece.len(), end, read);
        if dice.one_in(8) {
            self.worker.handle_response_end(sequence);
        }
    }

    fn log(&mut self, dice: &mut Dice<'_>) {
        if let Some((context, sequence, _)) = self.one(dice) {
            self.contexts.remove(&context);
            let host = Host::new(*dice);
            self.worker.handle_log(self.now, sequence, &host);
            *dice = host.dice();
        }
    }

    /// Does what the worker asks for. Returns what the parts of a Hello named, if there was one.
    fn effects(&mut self) -> Option<usize> {
        let mut named = None;
        for count in 0.. {
            assert!(count < EFFECTS, "effects without end");
            match self.worker.poll_effect() {
                None => return named,
                Some(Effect::Session(SessionEffect::OpenStream)) => {
                    assert!(self.stream == Stream::None, "opened twice");
                    self.stream = Stream::Ordered;
                }
                Some(Effect::Session(SessionEffect::ResetStream)) => self.stream = Stream::None,
                Some(Effect::Session(SessionEffect::LogWarning(text) | SessionEffect::LogInfo(text))) => {
                    assert!(!text.is_empty())
                }
                Some(Effect::Session(SessionEffect::Send(message))) => {
                    let frame = self.sent(&message);
                    if let Some(Said::Hello(hello)) = frame.event {
                        *named.get_or_insert(0) += hello.waiting.len() + hello.running.len();
                    }
                }
                Some(Effect::Resume {
                    context,
                    edits,
                    rewrite,
                }) => {
                    proper(&edits);
                    if let Some(rewrite) = rewrite {
                        assert!(
                            rewrite.range.start < rewrite.range.end && rewrite.range.end <= rewrite.length,
                            "{rewrite:?}"
                        );
                    }
                    self.moves(context, Http::Resumed);
                }
                Some(Effect::Reply { context, reply }) => {
                    whole(&reply);
                    self.moves(context, Http::Answered);
                }
            }
        }
        named
    }

    fn moves(&mut self, context: u32, to: Http) {
        let (_, http) = self.contexts.get_mut(&context).expect("a stream that is open");
        assert_eq!(*http, Http::Paused, "{context} becomes {to:?}");
        *http = to;
    }

    fn sent(&mut self, message: &[u8]) -> wire::FilterFrame {
        assert!(self.stream == Stream::Open, "said without a stream");
        assert!(message.len() <= wire::limits::MESSAGE_BYTES_MAX);
        let frame = wire::FilterFrame::decode(message).expect("a frame");
        self.said += 1;
        assert_eq!(frame.seq, self.said, "a gap");
        frame
    }

    /// All HTTP streams end; the next Hello names nothing.
    fn leave(mut self) {
        let host = Host::new(Dice::new(&[]));
        for (_, (sequence, _)) in core::mem::take(&mut self.contexts) {
            self.worker.handle_log(self.now, sequence, &host);
        }
        self.effects();
        if self.stream == Stream::Open {
            self.stream = Stream::None;
            self.worker.handle_closed(self.now);
        }
        for _ in 0..100 {
            self.effects();
            if self.stream == Stream::Ordered {
                self.opened();
                assert_eq!(self.effects(), Some(0), "requests leaked, or no Hello");
                return self.worker.handle_shutdown();
            }
            self.now = self.now.after(wire::limits::VERSION_RETRY);
            self.worker.handle_tick(self.now);
        }
        panic!("it never opens a stream again");
    }
}
