//! A worker without a host: the test provides the clock, the gRPC stream and the HTTP streams.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use penstock_filter_core::config::Config;
use penstock_filter_core::effect::{
    BodyAction, Effect, HeadersAction, ResponseBodyAction, ResponseHeadersAction, SessionId, StreamAction,
};
use penstock_filter_core::failed_attempts::FailedAttempts;
use penstock_filter_core::header_sanitizer::HeaderEdit;
use penstock_filter_core::headers::{Headers, serialize};
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::process_identity::RandomBits;
use penstock_filter_core::properties::Properties;
use penstock_filter_core::rewrite::Rewrite;
use penstock_filter_core::session::{Epoch, SessionEffect};
use penstock_filter_core::shared_data::{SetIf, SharedData};
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::limits::VERSION_MAX;
use penstock_wire::source::From;
use penstock_wire::{
    Admitted, Api, Command, CompanionFrame, Completed, FilterFrame, Grant, HelloAck, Identity, ModelRule,
    ModelTable, Network, Policy, Pool, Register, Role, Route, Source, Trust,
};
use prost::Message;

/// Envoy's properties by path, joined with dots.
#[derive(Default)]
pub(crate) struct Host(pub(crate) BTreeMap<&'static str, Vec<u8>>);

impl Properties for Host {
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.0.get(path.join(".").as_str()).cloned()
    }

    fn can_restart(&self, _: u64) -> bool {
        self.0.contains_key(CAN_RESTART)
    }
}

/// The property of a host that can restart streams.
pub(crate) const CAN_RESTART: &str = "restart";

/// An effect of the worker, with decoded messages.
#[expect(clippy::large_enum_variant, reason = "written and compared, never stored")]
#[derive(Debug, PartialEq)]
pub(crate) enum Output {
    OpenStream,
    /// To this companion.
    OpenStreamTo(String),
    ResetStream,
    /// An event, with the number of its frame.
    Sent(u64, Event),
    /// A report of a request that was admitted by credit, with the number of its frame.
    Reported(u64, Admitted),
    Warning(String),
    Info(String),
    Resume(u32, String),
    Rewritten(u32, String, Rewrite),
    Reply(u32, LocalReply),
    ResumeResponse(u32),
    /// Of the stream with this id.
    EndSilentResponse(u32),
    /// Of the stream with this id.
    Evict(u32, LocalReply),
    /// Of the request with this number.
    CountReceived(u64),
    Error(String),
}

pub(crate) struct Rig {
    pub(crate) worker: Worker,
    pub(crate) host: Host,
    pub(crate) now: Instant,
    /// Frames that the companion has sent on this stream.
    companion_frames: u64,
    /// Frames of the stream before those of which [`Output`] and [`Self::command`] count the first as 1.
    probes: u64,
    pub(crate) contexts: u32,
    /// The host's clock in the last Hello. Outputs leave it out, because most tests are about other fields.
    pub(crate) hello_clock_us: u64,
    /// Of the last `Completed`. Outputs leave them out, because most tests are about other fields.
    pub(crate) ended: Ended,
}

/// What a `Completed` says of the body and of the exchange's length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) text_bytes: Option<u64>,
    pub(crate) body_bytes: u64,
    pub(crate) ended_us: u64,
}

impl Ended {
    fn take(completed: &mut Completed) -> Self {
        Self {
            text_bytes: completed.text_bytes.take(),
            body_bytes: std::mem::take(&mut completed.body_bytes),
            ended_us: std::mem::take(&mut completed.ended_us),
        }
    }
}

/// The shared data of one Envoy, and the last version that was given to a value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Rc<RefCell<Map>>, Rc<Cell<u32>>);

type Map = BTreeMap<String, (Vec<u8>, u32)>;

impl SharedData for Shared {
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)> {
        self.0.borrow().get(key).cloned()
    }

    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool {
        let mut map = self.0.borrow_mut();
        let holds = condition.holds(map.get(key).map(|(_, version)| *version));
        if holds {
            self.1.set(self.1.get() + 1);
            map.insert(key.to_owned(), (value.to_vec(), self.1.get()));
        }
        holds
    }
}

/// A host without shared data.
#[derive(Debug)]
pub(crate) struct NoSharedData;

impl SharedData for NoSharedData {
    fn get(&self, _: &str) -> Option<(Vec<u8>, u32)> {
        None
    }

    fn set(&self, _: &str, _: &[u8], _: SetIf) -> bool {
        false
    }
}

/// The random bits of a root context; `lo` of the epoch numbers the root contexts.
pub(crate) fn random_bits(lo: u64) -> RandomBits {
    RandomBits { epoch: Epoch { hi: 1, lo }, envoy: 70 + lo, key: [7; 16] }
}

/// A configuration of two pools that fail closed, with a change.
pub(crate) fn config(change: impl FnOnce(&mut Config)) -> Config {
    let pool = |name: &str, globs: &[&str], hold_ms, capacity_status| Pool {
        name: name.into(),
        models: globs.iter().map(ToString::to_string).collect(),
        hold_ms,
        ttl_ms: 30_000,
        no_endpoint_ttl_ms: 60_000,
        capacity_status,
        ..Pool::default()
    };
    let route = |path: &str, api: Api| Route { path: path.into(), api: api.into(), ..Route::default() };
    let source = |from| Source { from: Some(from) };
    let critical = ModelRule { glob: "g*".into(), value: "critical".into() };
    let mut config = Config {
        companion: "c".into(),
        node: "n".into(),
        requeue_listener: None,
        is_requeue_listener: false,
        routes_report_endpoint: false,
        logs_attempts: false,
        routes_requeue: false,
        restarts: false,
        keeps_alive: false,
        is_picker: false,
        policy: Policy {
            digest: "d0".into(),
            body_bytes_max: 1_000,
            routes: vec![
                route("/v1/chat/completions", Api::ChatCompletions),
                route("/v1/messages", Api::Messages),
            ],
            identity: Some(Identity {
                fairness_id: vec![
                    header("x-tenant"),
                    source(From::Metadata("jwt/sub".into())),
                    source(From::Body("user".into())),
                ],
                user: vec![source(From::Body("user".into()))],
                priority: vec![
                    header("x-priority"),
                    source(From::Model(ModelTable { rules: vec![critical] })),
                ],
                strict: vec![header("x-strict")],
                jump: vec![header("x-jump")],
                class: vec![header("x-class")],
                ..Identity::default()
            }),
            others_pass: true,
            pools: vec![pool("chat", &["m*", "g*"], 5_000, 429), pool("patient", &["p*"], 100_000, 503)],
            ..Policy::default()
        },
    };
    change(&mut config);
    config
}

pub(crate) fn header(name: &str) -> Source {
    Source { from: Some(From::Header(name.into())) }
}

/// Where `config` reads identities.
pub(crate) fn identity(config: &mut Config) -> &mut Identity {
    config.policy.identity.get_or_insert_default()
}

/// Trust in the clients of these networks, each `address/prefix`.
pub(crate) fn trust_in(networks: &[&str]) -> Option<Trust> {
    let network = |text: &&str| {
        let (address, prefix) = text.split_once('/').expect("address/prefix");
        let address = match address.parse().expect("an address") {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        Network { address, prefix: prefix.parse().expect("a number") }
    };
    Some(Trust { all: false, networks: networks.iter().map(network).collect() })
}

impl Rig {
    /// A worker directly after its configuration.
    pub(crate) fn new() -> Self {
        Self::with(2, &config(|_| {}), &Shared::default())
    }

    /// A worker of an Envoy with this shared data.
    pub(crate) fn with(epoch_lo: u64, config: &Config, shared: &Shared) -> Self {
        Self::with_shared_data(epoch_lo, config, Box::new(shared.clone()))
    }

    pub(crate) fn with_shared_data(epoch_lo: u64, config: &Config, shared_data: Box<dyn SharedData>) -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        let host = Host(BTreeMap::from([("source.address", b"10.0.0.9:555".to_vec())]));
        Self {
            worker: Worker::new(now, &random_bits(epoch_lo), config, shared_data),
            host,
            now,
            companion_frames: 0,
            probes: 0,
            contexts: 100,
            hello_clock_us: 0,
            ended: Ended::default(),
        }
    }

    /// The worker shares this with others of its module.
    pub(crate) fn sharing(self, failed_attempts: &FailedAttempts) -> Self {
        Self { worker: self.worker.sharing(failed_attempts.clone()), ..self }
    }

    /// A worker with an established session.
    pub(crate) fn connected() -> Self {
        let mut rig = Self::new();
        rig.open();
        rig.hello_ack(1);
        rig
    }

    pub(crate) fn advance(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    pub(crate) fn tick(&mut self) -> Vec<Output> {
        self.worker.handle_tick(self.now);
        self.outputs()
    }

    /// Opens the stream that the worker asks for, to a companion that leads. Returns the outputs from the Hello on.
    pub(crate) fn open(&mut self) -> Vec<Output> {
        assert_eq!(self.tick(), [Output::OpenStream]);
        self.open_requested()
    }

    /// Opens the stream that the worker has asked for, as [`Self::open`] does.
    pub(crate) fn open_requested(&mut self) -> Vec<Output> {
        let outputs = self.open_silently();
        match &outputs[..] {
            [Output::Sent(1, Event::Hello(hello))] if hello.probe => {
                self.probes = 1;
                self.command(0, [Kind::Role(Role { here: true, ..Role::default() })])
            }
            _ => outputs,
        }
    }

    /// The stream that the worker has asked for is open, and the companion hasn't sent anything. Returns the outputs on it.
    pub(crate) fn open_silently(&mut self) -> Vec<Output> {
        (self.companion_frames, self.probes) = (0, 0);
        self.worker.handle_opened(self.now, SessionId::MAIN);
        self.outputs()
    }

    pub(crate) fn hello_ack(&mut self, term: u64) -> Vec<Output> {
        self.command(0, [Kind::HelloAck(HelloAck { version: VERSION_MAX, term })])
    }

    /// The stream of the main session has ended.
    pub(crate) fn closed(&mut self) {
        self.worker.handle_closed(self.now, SessionId::MAIN);
    }

    /// The host can't open the stream of the main session.
    pub(crate) fn open_failed(&mut self) {
        self.worker.handle_open_failed(self.now, SessionId::MAIN);
    }

    /// A message of the main session's companion has arrived.
    pub(crate) fn receive(&mut self, message: &[u8]) {
        self.worker.handle_message(self.now, SessionId::MAIN, message);
    }

    /// Sends the next frame of the companion.
    pub(crate) fn command<const N: usize>(&mut self, ack: u64, kinds: [Kind; N]) -> Vec<Output> {
        self.companion_frames += 1;
        let commands = kinds.into_iter().map(|kind| Command { kind: Some(kind) }).collect();
        let frame = CompanionFrame { seq: self.companion_frames, ack: ack + self.probes, commands };
        self.worker.handle_message(self.now, SessionId::MAIN, &frame.encode_to_vec());
        self.outputs()
    }

    pub(crate) fn outputs(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        while let Some(effect) = self.worker.poll_effect() {
            let output = match effect {
                Effect::Session(_, SessionEffect::OpenStream { companion }) => {
                    companion.map_or(Output::OpenStream, Output::OpenStreamTo)
                }
                Effect::Session(_, SessionEffect::ResetStream) => Output::ResetStream,
                Effect::Session(_, SessionEffect::LogWarning(text)) => Output::Warning(text),
                Effect::Session(_, SessionEffect::LogInfo(text)) => Output::Info(text),
                Effect::Session(_, SessionEffect::Send(message)) => {
                    let frame = FilterFrame::decode(message.as_slice()).expect("a frame");
                    let seq = frame.seq - self.probes;
                    assert!(frame.event.is_some() || !frame.admitted.is_empty());
                    outputs.extend(frame.admitted.into_iter().map(|mut report| {
                        self.ended = report.completed.as_mut().map(Ended::take).unwrap_or_default();
                        Output::Reported(seq, report)
                    }));
                    let Some(mut event) = frame.event else {
                        continue;
                    };
                    if let Event::Hello(hello) = &mut event {
                        self.hello_clock_us = std::mem::take(&mut hello.clock_us);
                    }
                    if let Event::Completed(completed) = &mut event {
                        self.ended = Ended::take(completed);
                    }
                    Output::Sent(seq, event)
                }
                Effect::Stream { context, action } => output_of(context, action),
                Effect::LogError(text) => Output::Error(text),
            };
            outputs.push(output);
        }
        outputs
    }

    pub(crate) fn headers(&mut self, extra: &[(&str, &str)], end: bool) -> HeadersAction {
        let mut pairs =
            vec![(":method", "POST"), (":path", "/v1/chat/completions?x=1"), ("x-request-id", "id-1")];
        for (name, value) in extra {
            pairs.retain(|(known, _)| known != name);
            pairs.push((name, value));
        }
        let map = serialize(pairs);
        self.contexts += 1;
        self.worker.handle_request_headers(self.now, self.contexts, Headers::new(&map), end, &self.host)
    }

    /// Sends the headers of a request that must be paused. Returns its sequence number.
    pub(crate) fn paused(&mut self, extra: &[(&str, &str)]) -> u64 {
        match self.headers(extra, false) {
            HeadersAction::Pause(sequence, _) => sequence,
            other => panic!("not paused: {other:?}"),
        }
    }

    pub(crate) fn body(&mut self, sequence: u64, body: &str, end: bool) -> Option<LocalReply> {
        let read = |start, length| slice(body, start, length);
        match self.worker.handle_request_body(self.now, sequence, body.len(), end, read) {
            BodyAction::Pause => None,
            BodyAction::Reply(reply) => Some(reply),
            BodyAction::Continue(edits) => panic!("continues: {edits:?}"),
        }
    }

    /// Sends a request that must wait. Returns its sequence number and the outputs.
    pub(crate) fn waiting(&mut self, model: &str) -> (u64, Vec<Output>) {
        let sequence = self.paused(&[]);
        assert_eq!(self.body(sequence, &format!(r#"{{"model":"{model}"}}"#), true), None);
        (sequence, self.outputs())
    }

    /// Sends a request and grants it.
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
        self.worker.handle_response_headers(self.now, Some(sequence), Headers::new(&map), end, &self.host)
    }

    pub(crate) fn response_body(&mut self, sequence: u64, body: &str, end: bool) -> ResponseBodyAction {
        let read =
            |start: usize, length: usize| body.as_bytes().get(start..start + length).map(<[u8]>::to_vec);
        self.worker.handle_response_body(self.now, sequence, body.len(), end, read)
    }

    pub(crate) fn log(&mut self, sequence: u64) -> Vec<Output> {
        self.worker.handle_log(self.now, sequence, &self.host);
        self.outputs()
    }
}

fn is_kept_alive(edits: &[HeaderEdit]) -> bool {
    edits.iter().any(|edit| matches!(edit, HeaderEdit::Set("x-penstock-keep-alive", _)))
}

/// The edits of a granted request without those that tell Envoy when to send it again, which each has unless its stream may be restarted.
pub(crate) fn without_retry(mut edits: Vec<HeaderEdit>) -> Vec<HeaderEdit> {
    let before = edits.len();
    let mut retain_others = |names: &[&str]| {
        edits.retain(|edit| {
            let name: &str = match edit {
                HeaderEdit::Remove(name) => name,
                HeaderEdit::Add(name, _)
                | HeaderEdit::Set(name, _)
                | HeaderEdit::SetStatic(name, _)
                | HeaderEdit::SetProperty(name, _) => name,
            };
            !names.contains(&name)
        });
        edits.len()
    };
    let retained = retain_others(&["x-envoy-retry-on", "x-envoy-retriable-status-codes"]);
    assert!(retained + 2 == before || retained == before, "{edits:?}");
    retain_others(&["x-envoy-max-retries"]);
    edits
}

pub(crate) fn grant(sequence: u64) -> Grant {
    Grant {
        sequence,
        pool: "chat".into(),
        endpoints: vec!["1.1.1.1:1".into(), "2.2.2.2:2".into()],
        outcome: "dispatched".into(),
        queue_us: 12_345,
        saturation_milli: 420,
        ..Grant::default()
    }
}

/// The registration of a request for this model without further headers.
pub(crate) fn register(sequence: u64, model: &str) -> Register {
    Register {
        sequence,
        request_id: "id-1".into(),
        api: Api::ChatCompletions.into(),
        model: model.into(),
        body_bytes: model.len() as u64 + 12,
        ..Register::default()
    }
}

/// Fetches bytes of a body, as the host does.
pub(crate) fn slice(body: &str, start: usize, length: usize) -> Option<Vec<u8>> {
    body.as_bytes().get(start..start + length).map(<[u8]>::to_vec)
}

/// An event with a piece of text.
pub(crate) const TEXT_EVENT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n";
/// A whole answer.
pub(crate) const TEXT_DOCUMENT: &str = r#"{"choices":[{"message":{"content":"a"}}]}"#;

fn output_of(context: u32, action: StreamAction) -> Output {
    match action {
        // A request that isn't sent to a server.
        StreamAction::Resume { edits, rewrite: None } if is_kept_alive(&edits) => {
            Output::Resume(context, format!("{edits:?}"))
        }
        StreamAction::Resume { edits, rewrite: None } => {
            Output::Resume(context, format!("{:?}", without_retry(edits)))
        }
        StreamAction::Resume { edits, rewrite: Some(rewrite) } => {
            Output::Rewritten(context, format!("{:?}", without_retry(edits)), rewrite)
        }
        StreamAction::Reply(reply) => Output::Reply(context, reply),
        StreamAction::ResumeResponse { .. } => Output::ResumeResponse(context),
        StreamAction::EndSilentResponse { .. } => Output::EndSilentResponse(context),
        StreamAction::Evict { reply, .. } => Output::Evict(context, reply),
        StreamAction::CountReceived { sequence } => Output::CountReceived(sequence),
    }
}
