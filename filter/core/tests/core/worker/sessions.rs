//! A session for each pool, where each pool has a leader of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_filter_core::effect::{Effect, SessionId, StreamAction};
use penstock_filter_core::limits::REPORT_HOLD;
use penstock_filter_core::local_reply::LocalReply;
use penstock_filter_core::session::SessionEffect;
use penstock_wire::command::Kind;
use penstock_wire::filter_frame::Event;
use penstock_wire::limits::VERSION_MAX;
use penstock_wire::{
    self as wire, Admitted, Command, CompanionFrame, Completed, Endpoints, FilterFrame, Hello, HelloAck, Role,
};
use prost::Message;

use crate::worker::credits::{A, BODY, arrive, credit};
use crate::worker::harness::*;

/// Longer than a session waits before it opens the next stream.
const LATER: Duration = Duration::from_secs(1);

/// A worker whose sessions' effects are collected by session.
struct Split {
    rig: Rig,
    /// What each session asked of its stream and sent on it, since it was last taken.
    sent: BTreeMap<SessionId, Vec<Event>>,
    reported: BTreeMap<SessionId, Vec<Admitted>>,
    opened: Vec<SessionId>,
    reset: Vec<SessionId>,
    resumed: Vec<u32>,
    replies: Vec<LocalReply>,
    frames: BTreeMap<SessionId, u64>,
    /// By pool, empty for the main session.
    ids: BTreeMap<String, SessionId>,
}

impl Split {
    /// A worker whose policy gives the pools `chat` and `patient` sessions of their own, if `is_split`.
    fn new(is_split: bool) -> Self {
        let config = config(|config| config.policy.session_per_pool = is_split);
        Self {
            rig: Rig::with(2, &config, &Shared::default()),
            sent: BTreeMap::new(),
            reported: BTreeMap::new(),
            opened: Vec::new(),
            reset: Vec::new(),
            resumed: Vec::new(),
            replies: Vec::new(),
            frames: BTreeMap::new(),
            ids: BTreeMap::new(),
        }
    }

    /// [`Self::new`] with established sessions.
    fn connected() -> Self {
        let mut split = Self::new(true);
        split.connect();
        split
    }

    /// Opens all streams that the worker asks for, answers their probes and Hellos, and forgets what was sent.
    fn connect(&mut self) {
        self.reconnect();
        self.sent.clear();
    }

    /// Opens all streams that the worker asks for, and answers their probes and Hellos.
    fn reconnect(&mut self) {
        self.rig.advance(LATER);
        self.tick();
        for id in core::mem::take(&mut self.opened) {
            self.establish(id);
        }
    }

    fn establish(&mut self, id: SessionId) {
        self.open(id);
        let last = self.sent.get(&id).and_then(|events| events.last());
        if matches!(last, Some(Event::Hello(hello)) if hello.probe) {
            self.command(id, Kind::Role(Role { here: true, term: 7, ..Role::default() }));
        }
        self.acknowledge(id, 7);
    }

    fn open(&mut self, id: SessionId) {
        self.frames.insert(id, 0);
        self.rig.worker.handle_opened(self.rig.now, id);
        self.collect();
    }

    fn acknowledge(&mut self, id: SessionId, term: u64) {
        self.command(id, Kind::HelloAck(HelloAck { version: VERSION_MAX, term }));
    }

    fn tick(&mut self) {
        self.rig.worker.handle_tick(self.rig.now);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(effect) = self.rig.worker.poll_effect() {
            match effect {
                Effect::Session(id, SessionEffect::Send(message)) => {
                    let frame = FilterFrame::decode(message.as_slice()).expect("a frame");
                    self.reported.entry(id).or_default().extend(frame.admitted);
                    let Some(event) = frame.event else {
                        continue;
                    };
                    if let Event::Hello(hello) = &event {
                        self.ids.insert(hello.pool.clone(), id);
                    }
                    self.sent.entry(id).or_default().push(event);
                }
                Effect::Session(id, SessionEffect::OpenStream { .. }) => self.opened.push(id),
                Effect::Session(id, SessionEffect::ResetStream) => self.reset.push(id),
                Effect::Session(_, SessionEffect::LogInfo(_) | SessionEffect::LogWarning(_)) => {}
                Effect::Stream { context, action } => match action {
                    StreamAction::Resume { .. } => self.resumed.push(context),
                    StreamAction::Reply(reply) => self.replies.push(reply),
                    StreamAction::ResumeResponse { .. } | StreamAction::EndSilentResponse { .. } => {}
                    StreamAction::Evict { .. } | StreamAction::CountReceived { .. } => panic!("{action:?}"),
                },
                Effect::LogError(text) => panic!("{text}"),
            }
        }
    }

    fn command(&mut self, id: SessionId, kind: Kind) {
        let seq = self.frames.entry(id).or_default();
        *seq += 1;
        let frame = CompanionFrame { seq: *seq, ack: 0, commands: vec![Command { kind: Some(kind) }] };
        let message = frame.encode_to_vec();
        self.rig.worker.handle_message(self.rig.now, id, &message);
        self.collect();
    }

    fn id(&self, pool: &str) -> SessionId {
        *self.ids.get(pool).expect("the session exists")
    }

    /// Sends a request that must wait. Returns its sequence number.
    fn request(&mut self, model: &str) -> u64 {
        let sequence = self.rig.paused(&[]);
        let body = format!(r#"{{"model":"{model}"}}"#);
        assert_eq!(self.rig.body(sequence, &body, true), None);
        self.collect();
        sequence
    }

    fn taken(&mut self, pool: &str) -> Vec<Event> {
        let id = self.id(pool);
        self.sent.remove(&id).unwrap_or_default()
    }

    /// The reports of requests that were admitted by credit, held ones included.
    fn reports(&mut self, pool: &str) -> Vec<Admitted> {
        self.rig.advance(REPORT_HOLD);
        self.tick();
        let id = self.id(pool);
        self.reported.remove(&id).unwrap_or_default()
    }

    fn hello(&mut self, pool: &str) -> Hello {
        let mut events = self.taken(pool).into_iter().rev();
        let last = events.find_map(|event| match event {
            Event::Hello(hello) => Some(hello),
            _ => None,
        });
        last.expect("a Hello")
    }

    fn policy(digest: &str, session_per_pool: bool, ttls: &[(&str, &str, u64)]) -> wire::Policy {
        wire::Policy {
            digest: digest.into(),
            session_per_pool,
            body_bytes_max: 1000,
            routes: vec![wire::Route {
                path: "/v1/chat/completions".into(),
                api: wire::Api::ChatCompletions.into(),
                ..wire::Route::default()
            }],
            pools: ttls
                .iter()
                .map(|&(name, models, hold_ms)| wire::Pool {
                    name: name.into(),
                    models: vec![models.into()],
                    hold_ms,
                    ttl_ms: 30_000,
                    no_endpoint_ttl_ms: 30_000,
                    capacity_status: 503,
                    ..wire::Pool::default()
                })
                .collect(),
            ..wire::Policy::default()
        }
    }
}

fn sequences(registers: &[wire::Register]) -> Vec<u64> {
    registers.iter().map(|register| register.sequence).collect()
}

fn running(hello: &Hello) -> Vec<u64> {
    let registers = hello.running.iter().filter_map(|running| running.register.as_ref());
    registers.map(|register| register.sequence).collect()
}

#[test]
fn each_pool_has_a_session_and_its_requests_go_there() {
    let mut split = Split::connected();
    let pools: Vec<&str> = split.ids.keys().map(String::as_str).collect();
    assert_eq!(pools, ["", "chat", "patient"]);
    let chat = split.request("m1");
    let patient = split.request("p1");
    for (pool, expected) in [("chat", chat), ("patient", patient)] {
        let events = split.taken(pool);
        assert!(
            matches!(&events[..], [Event::Register(register)] if register.sequence == expected),
            "{pool}: {events:?}"
        );
    }
    assert_eq!(split.taken(""), []);
    let refused = split.rig.paused(&[]);
    assert!(split.rig.body(refused, r#"{"model":"unknown"}"#, true).is_some());
    split.collect();
    assert!(matches!(&split.taken("")[..], [Event::Refused(_)]));
}

#[test]
fn the_end_of_a_request_is_reported_in_its_session() {
    let mut split = Split::connected();
    let sequence = split.request("p1");
    split.taken("patient");
    let id = split.id("patient");
    split.command(id, Kind::Grant(wire::Grant { pool: "patient".into(), ..grant(sequence) }));
    assert_eq!(split.resumed.len(), 1);
    split.rig.worker.handle_log(split.rig.now, sequence, &split.rig.host);
    split.collect();
    assert!(
        matches!(&split.taken("patient")[..], [Event::Completed(Completed { sequence: ended, .. })] if *ended == sequence)
    );
    // It is repeated there until it is acknowledged, and nowhere else.
    split.rig.worker.handle_closed(split.rig.now, id);
    split.rig.worker.handle_closed(split.rig.now, SessionId::MAIN);
    split.reconnect();
    let events = split.taken("patient");
    assert!(events.iter().any(|event| matches!(event, Event::Completed(_))), "{events:?}");
    let events = split.taken("");
    assert!(events.iter().all(|event| matches!(event, Event::Hello(_) | Event::Heartbeat(_))), "{events:?}");
}

#[test]
fn another_sessions_companion_decides_nothing_about_a_request() {
    let mut split = Split::connected();
    let sequence = split.request("p1");
    for pool in ["", "chat"] {
        let id = split.id(pool);
        split.command(id, Kind::Grant(grant(sequence)));
        split.command(id, Kind::Reject(wire::Reject { sequence, status: 503, ..wire::Reject::default() }));
        assert!(split.resumed.is_empty() && split.replies.is_empty(), "{pool}");
        assert!(
            matches!(&split.taken(pool)[..], [Event::Cancel(cancel)] if cancel.sequence == sequence),
            "the companion frees the place that it has given"
        );
    }
    let id = split.id("patient");
    split.command(id, Kind::Grant(grant(sequence)));
    assert_eq!(split.resumed.len(), 1);
}

#[test]
fn a_pool_without_its_leader_holds_its_requests_while_the_others_go_on() {
    let mut split = Split::connected();
    let chat = split.id("chat");
    split.rig.worker.handle_closed(split.rig.now, chat);
    split.collect();
    split.request("m1");
    let patient = split.request("p1");
    let id = split.id("patient");
    split.command(id, Kind::Grant(grant(patient)));
    assert_eq!(split.resumed.len(), 1);
    // `hold` of chat is 5 s.
    split.rig.advance(Duration::from_secs(4));
    split.tick();
    assert!(split.replies.is_empty());
    split.rig.advance(Duration::from_secs(2));
    split.tick();
    let [reply] = &split.replies[..] else { panic!("{:?}", split.replies) };
    assert_eq!(reply.status, 503);
    assert!(!split.taken("").iter().any(|event| matches!(event, Event::Refused(_))));
}

#[test]
fn endpoints_of_a_pool_count_in_its_session_alone() {
    let mut split = Split::connected();
    let endpoints = |pool: &str| {
        Kind::Endpoints(Endpoints {
            pool: pool.into(),
            ready: vec!["127.0.0.1:1".into()],
            fallback_bound: None,
            keep_ready: false,
        })
    };
    let (chat, patient) = (split.id("chat"), split.id("patient"));
    split.command(patient, endpoints("chat"));
    split.command(chat, endpoints("chat"));
    for id in [chat, patient, SessionId::MAIN] {
        split.rig.worker.handle_closed(split.rig.now, id);
    }
    split.reconnect();
    assert_ne!(split.hello("chat").endpoints_digest, 0);
    assert_eq!(split.hello("patient").endpoints_digest, 0);
    assert_eq!(split.hello("").endpoints_digest, 0);
}

#[test]
fn sessions_that_the_policy_introduces_list_the_requests_that_the_main_session_had() {
    let mut split = Split::new(false);
    split.connect();
    let waits = split.request("m1");
    let runs = split.request("m2");
    split.command(SessionId::MAIN, Kind::Grant(wire::Grant { pool: "chat".into(), ..grant(runs) }));
    let policy = Split::policy("d2", true, &[("chat", "m*", 5_000), ("patient", "p*", 5_000)]);
    split.command(SessionId::MAIN, Kind::Policy(policy));
    assert!(split.reset.is_empty(), "the main session goes on");
    split.reconnect();
    let hello = split.hello("chat");
    assert_eq!((sequences(&hello.waiting), running(&hello)), (vec![waits], vec![runs]));
    assert_eq!(hello.policy_digest, "d2");
    let hello = split.hello("patient");
    assert!(hello.waiting.is_empty() && hello.running.is_empty());
    let chat = split.id("chat");
    split.command(chat, Kind::Grant(grant(waits)));
    assert_eq!(split.resumed.len(), 2);
}

#[test]
fn a_request_whose_pool_the_policy_lacks_is_listed_in_the_session_of_the_pool_that_serves_it() {
    let mut split = Split::new(false);
    split.connect();
    let waits = split.request("m1");
    let runs = split.request("m2");
    let granted = wire::Grant { pool: "chat".into(), ..grant(runs) };
    split.command(SessionId::MAIN, Kind::Grant(granted));
    let policy = Split::policy("d2", true, &[("talk", "m*", 5_000), ("patient", "p*", 5_000)]);
    split.command(SessionId::MAIN, Kind::Policy(policy));
    split.reconnect();
    let hello = split.hello("talk");
    assert_eq!((sequences(&hello.waiting), running(&hello)), (vec![waits], vec![runs]));
}

#[test]
fn a_main_session_that_takes_over_lists_all_requests() {
    let mut split = Split::connected();
    let waits = split.request("m1");
    let policy = Split::policy("d2", false, &[("chat", "m*", 5_000), ("patient", "p*", 5_000)]);
    split.command(SessionId::MAIN, Kind::Policy(policy));
    split.tick();
    let mut reset = core::mem::take(&mut split.reset);
    reset.sort_unstable();
    assert_eq!(reset, [SessionId::MAIN, split.id("chat"), split.id("patient")]);
    assert!(matches!(split.taken("patient").last(), Some(Event::Bye(_))));
    split.reconnect();
    assert_eq!(sequences(&split.hello("").waiting), [waits]);
    split.command(SessionId::MAIN, Kind::Grant(grant(waits)));
    assert_eq!(split.resumed.len(), 1);
}

#[test]
fn the_session_of_a_removed_pool_ends_with_its_last_request() {
    let mut split = Split::connected();
    let sequence = split.request("p1");
    let patient = split.id("patient");
    split.command(patient, Kind::Grant(wire::Grant { pool: "patient".into(), ..grant(sequence) }));
    let policy = Split::policy("d2", true, &[("chat", "m*", 5_000)]);
    split.command(SessionId::MAIN, Kind::Policy(policy));
    split.tick();
    assert!(split.reset.is_empty(), "its request runs");
    split.rig.worker.handle_log(split.rig.now, sequence, &split.rig.host);
    split.collect();
    split.tick();
    assert!(split.reset.is_empty(), "its end isn't acknowledged");
    let seq = split.frames.get_mut(&patient).expect("frames");
    *seq += 1;
    let frame = CompanionFrame { seq: *seq, ack: 3, commands: Vec::new() };
    let message = frame.encode_to_vec();
    split.rig.worker.handle_message(split.rig.now, patient, &message);
    split.tick();
    assert_eq!(split.reset, [patient]);
    assert!(matches!(split.taken("patient").last(), Some(Event::Bye(_))));
    // A later pool of the same name gets another session.
    let policy = Split::policy("d3", true, &[("chat", "m*", 5_000), ("patient", "p*", 5_000)]);
    split.command(SessionId::MAIN, Kind::Policy(policy));
    split.connect();
    assert_ne!(split.id("patient"), patient);
}

#[test]
fn the_session_of_a_removed_pool_that_nobody_leads_ends_when_its_reports_are_given_up() {
    let mut split = Split::connected();
    let sequence = split.request("p1");
    let patient = split.id("patient");
    let granted = wire::Grant { pool: "patient".into(), ..grant(sequence) };
    split.command(patient, Kind::Grant(granted));
    let policy = Split::policy("d2", true, &[("chat", "m*", 5_000)]);
    split.command(SessionId::MAIN, Kind::Policy(policy));
    split.rig.worker.handle_log(split.rig.now, sequence, &split.rig.host);
    split.rig.worker.handle_closed(split.rig.now, patient);
    split.tick();
    assert!(split.reset.is_empty(), "its leader may come back");
    split.rig.advance(Duration::from_secs(5));
    split.tick();
    assert_eq!(split.reset, [patient]);
    assert_eq!(split.rig.worker.unacknowledged(), 0);
}

#[test]
fn a_pools_entry_in_the_policy_is_that_of_its_own_session() {
    let mut split = Split::connected();
    let chat = split.id("chat");
    let policy = Split::policy("d2", true, &[("chat", "m*", 1_000), ("patient", "p*", 1_000)]);
    split.command(chat, Kind::Policy(policy));
    for id in [chat, split.id("patient")] {
        split.rig.worker.handle_closed(split.rig.now, id);
    }
    split.collect();
    split.request("m1");
    split.request("p1");
    split.rig.advance(Duration::from_secs(2));
    split.tick();
    assert_eq!(split.replies.len(), 1, "chat's hold is 1 s now, patient's 100 s as before");
    split.reconnect();
    assert_eq!(split.hello("chat").policy_digest, "d2");
    assert_eq!(split.hello("patient").policy_digest, "d0");
}

#[test]
fn a_companion_without_a_term_is_accepted_after_one_with_a_term() {
    let mut split = Split::new(true);
    split.connect();
    split.rig.worker.handle_closed(split.rig.now, SessionId::MAIN);
    split.rig.advance(LATER);
    split.tick();
    split.opened.clear();
    split.open(SessionId::MAIN);
    split.command(SessionId::MAIN, Kind::Role(Role { here: true, term: 0, ..Role::default() }));
    split.acknowledge(SessionId::MAIN, 0);
    split.tick();
    assert!(split.reset.is_empty());
    let refused = split.rig.paused(&[]);
    assert!(split.rig.body(refused, r#"{"model":"unknown"}"#, true).is_some());
    split.collect();
    assert!(split.taken("").iter().any(|event| matches!(event, Event::Refused(_))));
}

/// The admission of a request that arrives.
fn is_admitted(split: &mut Split) -> (u64, bool) {
    let (sequence, edits) = arrive(&mut split.rig, &[], BODY);
    split.collect();
    (sequence, edits.is_some())
}

#[test]
fn a_credit_counts_for_the_pool_of_its_session_and_its_requests_are_reported_there() {
    let mut split = Split::connected();
    let chat = split.id("chat");
    split.command(chat, Kind::Credit(credit(1, &[(A, 1)])));
    let (sequence, admitted) = is_admitted(&mut split);
    assert!(admitted);
    split.rig.worker.handle_log(split.rig.now, sequence, &split.rig.host);
    split.collect();
    assert_eq!(split.reports("chat").len(), 1);
    assert_eq!((split.reports(""), split.reports("patient")), (vec![], vec![]));
}

#[test]
fn a_credit_over_another_session_than_that_of_its_pool_is_returned_at_once() {
    let mut split = Split::connected();
    split.command(SessionId::MAIN, Kind::Credit(credit(1, &[(A, 1)])));
    let events = split.taken("");
    assert!(
        matches!(&events[..], [Event::CreditReturned(returned)] if (&*returned.pool, returned.credit) == ("chat", 1)),
        "{events:?}"
    );
    assert!(!is_admitted(&mut split).1);
}

#[test]
fn a_credit_is_returned_when_its_pool_gets_another_session() {
    let mut split = Split::new(false);
    split.connect();
    split.command(SessionId::MAIN, Kind::Credit(credit(1, &[(A, 2)])));
    let (sequence, admitted) = is_admitted(&mut split);
    assert!(admitted);
    let policy = Split::policy("d1", true, &[("chat", "m*", 5_000)]);
    split.command(SessionId::MAIN, Kind::Policy(policy));
    let (events, reports) = (split.taken(""), split.reports(""));
    assert!(matches!(&events[..], [Event::CreditReturned(_)]), "{events:?}");
    assert!(matches!(&reports[..], [Admitted { completed: None, .. }]), "{reports:?}");
    assert!(!is_admitted(&mut split).1);
    // The pool's session lists the request, and reports its end.
    split.reconnect();
    assert!(running(&split.hello("chat")).contains(&sequence));
    split.rig.worker.handle_log(split.rig.now, sequence, &split.rig.host);
    split.collect();
    let events = split.taken("chat");
    assert!(matches!(&events[..], [Event::Completed(_)]), "{events:?}");
}

#[test]
fn a_credit_overtakes_no_waiting_request_that_a_policy_has_moved_into_its_pool() {
    let mut split = Split::new(false);
    split.connect();
    let moved = split.request("p1");
    let policy = Split::policy("d1", true, &[("chat", "*", 5_000)]);
    split.command(SessionId::MAIN, Kind::Policy(policy));
    split.reconnect();
    assert_eq!(sequences(&split.hello("chat").waiting), [moved]);
    let chat = split.id("chat");
    split.command(chat, Kind::Credit(credit(1, &[(A, 1)])));
    assert!(!is_admitted(&mut split).1);
}
