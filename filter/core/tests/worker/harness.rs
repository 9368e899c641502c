//! A worker without a host: its clock, its stream and its HTTP streams are the test's.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
    time::Duration,
};

use penstock_filter_core::{
    config::Config,
    effect::{BodyAction, Effect, HeadersAction, ResponseHeadersAction},
    headers::{Headers, serialize},
    identity::Properties,
    local_reply::LocalReply,
    process_identity::RandomBits,
    rewrite::Rewrite,
    session::{Epoch, SessionEffect},
    shared_data::SharedData,
    time::Instant,
    worker::Worker,
};
use penstock_wire::{
    Command, CompanionFrame, FilterFrame, Grant, HelloAck, Register, command::Kind, filter_frame::Event,
};
use prost::Message;

/// Envoy's properties, by their path joined with dots.
#[derive(Default)]
pub(crate) struct Host(pub(crate) BTreeMap<&'static str, Vec<u8>>);

impl Properties for Host {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.0.get(path.join(".").as_str()).cloned()
    }
}

/// What came out of the worker, the session's messages decoded.
#[expect(clippy::large_enum_variant, reason = "written and compared, never stored")]
#[derive(Debug, PartialEq)]
pub(crate) enum Out {
    Open,
    Cut,
    Said(u64, Event),
    Log(String),
    Note(String),
    Resume(u32, String),
    Rewritten(u32, String, Rewrite),
    LocalReply(u32, LocalReply),
}

pub(crate) const CONFIG: &str = r#"{"companion": "c", "node": "n", "policy": {
    "digest": "d0", "body_bytes_max": 1000,
    "routes": [{"path": "/v1/chat/completions", "api": "chat_completions"}, {"path": "/v1/messages", "api": "messages"}],
    "identity": {"fairness_id": [{"header": "x-tenant"}, {"metadata": "jwt/sub"}, {"body": "user"}],
                 "user": [{"body": "user"}], "priority": [{"header": "x-priority"}, {"model": {"g*": "critical"}}],
                 "strict": [{"header": "x-strict"}],
                 "jump": [{"header": "x-jump"}], "class": [{"header": "x-class"}]},
    "pools": [{"name": "chat", "models": ["m*", "g*"], "hold_ms": 5000, "then": "closed", "ttl_ms": 30000,
               "no_endpoint_ttl_ms": 60000, "capacity_status": 429},
              {"name": "patient", "models": ["p*"], "hold_ms": 100000, "then": "closed", "ttl_ms": 30000,
               "no_endpoint_ttl_ms": 60000, "capacity_status": 503}]}}"#;

pub(crate) struct Rig {
    pub(crate) worker: Worker,
    pub(crate) host: Host,
    pub(crate) now: Instant,
    said: u64,
    contexts: u32,
}

/// What the workers of one Envoy share: a map, as Envoy keeps it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Rc<RefCell<Map>>, Rc<Cell<u32>>);

type Map = BTreeMap<String, (Vec<u8>, u32)>;

impl SharedData for Shared {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.0.borrow().get(key).cloned()
    }

    fn set(&self, key: &str, value: &[u8], replaces: Option<u32>) -> bool {
        let mut map = self.0.borrow_mut();
        let number = map.get(key).map_or(0, |(_, number)| *number);
        if replaces.is_some_and(|replaces| replaces != number) {
            return false;
        }
        self.1.set(self.1.get() + 1);
        map.insert(key.to_owned(), (value.to_vec(), self.1.get()));
        true
    }
}

/// A host without shared data.
#[derive(Debug)]
pub(crate) struct Nothing;

impl SharedData for Nothing {
    fn get(&self, _: &str) -> Option<(Vec<u8>, u32)> {
        None
    }

    fn set(&self, _: &str, _: &[u8], _: Option<u32>) -> bool {
        false
    }
}

/// Of the first root context; `lo` of the epoch counts the others.
pub(crate) fn draw(lo: u64) -> RandomBits {
    RandomBits {
        epoch: Epoch { hi: 1, lo },
        envoy: 70 + lo,
        key: [7; 16],
    }
}

/// `CONFIG` with one key's value, or several keys, replaced.
pub(crate) fn config(from: &str, to: &str) -> Config {
    assert!(CONFIG.contains(from), "{from}");
    Config::parse(CONFIG.replace(from, to).as_bytes()).expect("the configuration is right")
}

impl Rig {
    /// A worker that was just configured.
    pub(crate) fn new() -> Self {
        Self::with(2, &config("", ""), &Shared::default())
    }

    /// The same in an Envoy that has others.
    pub(crate) fn with(epoch_lo: u64, config: &Config, shared: &Shared) -> Self {
        Self::on(epoch_lo, config, Box::new(shared.clone()))
    }

    pub(crate) fn on(epoch_lo: u64, config: &Config, shared_data: Box<dyn SharedData>) -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        let host = Host(BTreeMap::from([("source.address", b"10.0.0.9:555".to_vec())]));
        Self {
            worker: Worker::new(now, &draw(epoch_lo), config, shared_data),
            host,
            now,
            said: 0,
            contexts: 100,
        }
    }

    /// The same with a companion that has greeted.
    pub(crate) fn connected() -> Self {
        let mut rig = Self::new();
        rig.open();
        rig.greet(1);
        rig
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    pub(crate) fn tick(&mut self) -> Vec<Out> {
        self.worker.handle_tick(self.now);
        self.outs()
    }

    /// The stream is wanted and opens: what is said on it.
    pub(crate) fn open(&mut self) -> Vec<Out> {
        assert_eq!(self.tick(), [Out::Open]);
        self.said = 0;
        self.worker.handle_opened(self.now);
        self.outs()
    }

    pub(crate) fn greet(&mut self, term: u64) -> Vec<Out> {
        self.command(0, [Kind::HelloAck(HelloAck { version: 1, term })])
    }

    /// The companion's next frame.
    pub(crate) fn command<const N: usize>(&mut self, ack: u64, kinds: [Kind; N]) -> Vec<Out> {
        self.said += 1;
        let commands = kinds
            .into_iter()
            .map(|kind| Command { kind: Some(kind) })
            .collect();
        let frame = CompanionFrame {
            seq: self.said,
            ack,
            commands,
        };
        self.worker.handle_message(self.now, &frame.encode_to_vec());
        self.outs()
    }

    pub(crate) fn outs(&mut self) -> Vec<Out> {
        let mut outs = Vec::new();
        while let Some(effect) = self.worker.poll_effect() {
            outs.push(match effect {
                Effect::Session(SessionEffect::OpenStream) => Out::Open,
                Effect::Session(SessionEffect::ResetStream) => Out::Cut,
                Effect::Session(SessionEffect::LogWarning(text)) => Out::Log(text),
                Effect::Session(SessionEffect::LogInfo(text)) => Out::Note(text),
                Effect::Session(SessionEffect::Send(message)) => {
                    let frame = FilterFrame::decode(message.as_slice()).expect("a frame");
                    Out::Said(frame.seq, frame.event.expect("an event"))
                }
                Effect::Resume {
                    context,
                    edits,
                    rewrite: None,
                } => Out::Resume(context, format!("{edits:?}")),
                Effect::Resume {
                    context,
                    edits,
                    rewrite: Some(rewrite),
                } => Out::Rewritten(context, format!("{edits:?}"), rewrite),
                Effect::Reply { context, answer } => Out::LocalReply(context, answer),
            });
        }
        outs
    }

    pub(crate) fn headers(&mut self, extra: &[(&str, &str)], end: bool) -> HeadersAction {
        let mut pairs = vec![
            (":method", "POST"),
            (":path", "/v1/chat/completions?x=1"),
            ("x-request-id", "id-1"),
        ];
        for (name, value) in extra {
            pairs.retain(|(known, _)| known != name);
            pairs.push((name, value));
        }
        let map = serialize(pairs);
        self.contexts += 1;
        self.worker
            .handle_request_headers(self.now, self.contexts, Headers::new(&map), end, &self.host)
    }

    /// A held request: its number.
    pub(crate) fn held(&mut self, extra: &[(&str, &str)]) -> u64 {
        match self.headers(extra, false) {
            HeadersAction::Pause(sequence, _) => sequence,
            other => panic!("not held: {other:?}"),
        }
    }

    pub(crate) fn body(&mut self, sequence: u64, body: &str, end: bool) -> Option<LocalReply> {
        let read = |start, length| slice(body, start, length);
        match self
            .worker
            .handle_request_body(self.now, sequence, body.len(), end, read)
        {
            BodyAction::Pause => None,
            BodyAction::Reply(answer) => Some(answer),
            BodyAction::Continue(edits) => panic!("goes: {edits:?}"),
        }
    }

    /// A request that waits, and what that made the worker say.
    pub(crate) fn waiting(&mut self, model: &str) -> (u64, Vec<Out>) {
        let sequence = self.held(&[]);
        assert_eq!(
            self.body(sequence, &format!(r#"{{"model":"{model}"}}"#), true),
            None
        );
        (sequence, self.outs())
    }

    /// A request that runs.
    pub(crate) fn running(&mut self, model: &str) -> u64 {
        let (sequence, _) = self.waiting(model);
        self.command(0, [Kind::Grant(grant(sequence))]);
        sequence
    }

    pub(crate) fn response(
        &mut self,
        sequence: u64,
        pairs: &[(&str, &str)],
        end: bool,
    ) -> ResponseHeadersAction {
        let map = serialize(pairs.iter().copied());
        self.worker
            .handle_response_headers(self.now, Some(sequence), Headers::new(&map), end, &self.host)
    }

    pub(crate) fn response_body(&mut self, sequence: u64, body: &str, end: bool) {
        let read =
            |start: usize, length: usize| body.as_bytes().get(start..start + length).map(<[u8]>::to_vec);
        self.worker
            .handle_response_body(self.now, sequence, body.len(), end, read);
    }

    pub(crate) fn log(&mut self, sequence: u64) -> Vec<Out> {
        self.worker.handle_log(self.now, sequence, &self.host);
        self.outs()
    }
}

pub(crate) fn grant(sequence: u64) -> Grant {
    Grant {
        sequence,
        pool: "chat".into(),
        endpoints: vec!["1.1.1.1:1".into(), "2.2.2.2:2".into()],
        outcome: "dispatched".into(),
        queue_us: 12_345,
        saturation_milli: 420,
        target_model: String::new(),
        requeue: false,
    }
}

/// The Register of a bare request for this model, as the rig's headers make it.
pub(crate) fn register(sequence: u64, model: &str) -> Register {
    Register {
        sequence,
        request_id: "id-1".into(),
        api: penstock_wire::Api::ChatCompletions.into(),
        model: model.into(),
        body_bytes: model.len() as u64 + 12,
        ..Register::default()
    }
}

/// What the host gives of a body.
pub(crate) fn slice(body: &str, start: usize, length: usize) -> Option<Vec<u8>> {
    body.as_bytes().get(start..start + length).map(<[u8]>::to_vec)
}
