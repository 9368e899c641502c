//! Each pool with a leader of its own: one control for each pool, and one for what belongs to no pool.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_control::{
    ConnId, Controls, Decided, Door, Event, Observation, Output, PoolSettings, RequestNews, Scope, Settings,
};
use penstock_election::{Role, RoleChange};
use penstock_engine::Instant;
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

use crate::harness::*;

/// Pools with one server each, which takes one request at a time. A model's name begins with that of its pool.
fn settings_of_pools(pools: &[&str]) -> Settings {
    let alone = settings();
    let pool = |(index, name): (usize, &&str)| PoolSettings {
        name: (*name).into(),
        models: vec![format!("{name}-*")],
        endpoints: settings_of(&[&format!("127.0.0.1:{}", 8001 + index)]).pools.remove(0).endpoints,
        ..alone.pools[0].clone()
    };
    let pools: Vec<PoolSettings> = pools.iter().enumerate().map(pool).collect();
    let policy = wire::Policy {
        digest: format!("of {} pools", pools.len()),
        session_per_pool: true,
        pools: pools
            .iter()
            .map(|pool| wire::Pool {
                name: pool.name.clone(),
                models: pool.models.clone(),
                is_default: pool.is_default,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    };
    Settings { pools, policy, is_replicated: true, ..alone }
}

fn scope(pool: &str) -> Scope {
    Scope::Pool(pool.into())
}

#[derive(Debug, Default)]
struct Outputs {
    commands: Vec<(u64, Kind)>,
    closed: Vec<u64>,
    /// Code of each decision.
    decided: Vec<&'static str>,
    elections: Vec<Scope>,
}

impl Outputs {
    fn granted(&self) -> Vec<(u64, u64)> {
        let grants = self.commands.iter().filter_map(|(conn, kind)| match kind {
            Kind::Grant(grant) => Some((*conn, grant.sequence)),
            _ => None,
        });
        grants.collect()
    }

    fn acknowledged(&self) -> Vec<(u64, u64)> {
        let acks = self.commands.iter().filter_map(|(conn, kind)| match kind {
            Kind::HelloAck(ack) => Some((*conn, ack.term)),
            _ => None,
        });
        acks.collect()
    }
}

struct Companion {
    controls: Controls,
    now: Instant,
    seq: BTreeMap<u64, u64>,
}

impl Companion {
    fn new(pools: &[&str]) -> Self {
        Self {
            controls: Controls::new(settings_of_pools(pools), Instant::ZERO),
            now: Instant::ZERO,
            seq: BTreeMap::new(),
        }
    }

    fn handle(&mut self, event: Event) {
        self.controls.handle(self.now, event);
        self.audit();
    }

    fn audit(&self) {
        for (scope, control) in self.controls.iter() {
            control.audit().unwrap_or_else(|error| panic!("{scope:?}: {error}"));
        }
    }

    fn send(&mut self, conn: u64, message: Message) {
        let seq = self.seq.entry(conn).or_default();
        *seq += 1;
        let frame = wire::FilterFrame { seq: *seq, ack: 0, admitted: Vec::new(), event: Some(message) };
        self.handle(Event::Frame(ConnId(conn), Box::new(frame)));
    }

    /// Opens a session; of the whole gateway without a pool.
    fn open(&mut self, conn: u64, pool: &str, waiting: Vec<wire::Register>, running: Vec<wire::Running>) {
        self.handle(Event::Opened(ConnId(conn), Door::Filter));
        let filter = Filter { stream: u32::try_from(conn).expect("a small number"), ..filter(2) };
        let hello = wire::Hello { pool: pool.into(), ..hello(filter, waiting, running) };
        self.send(conn, Message::Hello(hello));
    }

    fn lead(&mut self, pool: &str, term: u64) {
        let change = RoleChange::Lead {
            term,
            known: Vec::new(),
            pickers: Vec::new(),
            is_last_leader_gone: true,
            grants_until: self.now.after(Duration::from_secs(60)),
        };
        self.controls.change_leadership(self.now, &scope(pool), change);
        self.audit();
    }

    fn take(&mut self) -> Outputs {
        let mut outputs = Outputs::default();
        while let Some((scope, output)) = self.controls.poll_output() {
            match output {
                Output::Send(conn, frame) => {
                    let kinds = frame.commands.into_iter().filter_map(|command| command.kind);
                    outputs.commands.extend(kinds.map(|kind| (conn.0, kind)));
                }
                Output::Close(conn, _) => outputs.closed.push(conn.0),
                Output::Observe(Observation::Request(_, RequestNews::Decided(Decided { code, .. }))) => {
                    outputs.decided.push(code.map_or("", |code| code.as_str()))
                }
                Output::Observe(_) => {}
                Output::Election(_) => outputs.elections.push(scope),
            }
        }
        outputs
    }

    fn pass(&mut self, duration: Duration) {
        let until = self.now.after(duration);
        while let Some(due) = self.controls.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.controls.handle_timeout(self.now);
            self.audit();
        }
        self.now = until;
    }

    fn role(&self, pool: &str) -> Role {
        let control = self.controls.control(&scope(pool)).expect("the pool exists");
        control.role().role
    }
}

fn of(pool: &str, sequence: u64) -> wire::Register {
    wire::Register { model: format!("{pool}-8b"), ..register(sequence) }
}

#[test]
fn a_companion_leads_one_pool_and_stands_by_for_another() {
    let mut companion = Companion::new(&["a", "b"]);
    companion.lead("a", 9);
    companion.open(1, "a", vec![of("a", 1)], Vec::new());
    companion.open(2, "b", vec![of("b", 2)], Vec::new());
    let outputs = companion.take();
    assert_eq!(outputs.acknowledged(), [(1, 9)]);
    assert_eq!(outputs.granted(), [(1, 1)]);
    assert!(outputs.closed.is_empty(), "the filter waits for the leader of b");
    assert_eq!(outputs.elections, [scope("b")], "it asks for one");
    assert_eq!(companion.controls.leads(&scope("a")), Some(true));
    assert_eq!(companion.controls.leads(&scope("b")), Some(false));

    companion.lead("b", 12);
    let outputs = companion.take();
    let called = outputs
        .commands
        .iter()
        .any(|(conn, kind)| matches!(kind, Kind::Role(role) if *conn == 2 && role.here && role.term == 12));
    assert!(called, "{outputs:?}");
}

#[test]
fn a_pool_that_changes_its_leader_leaves_the_other_pools_alone() {
    let mut companion = Companion::new(&["a", "b"]);
    companion.lead("a", 9);
    companion.lead("b", 9);
    companion.open(1, "a", vec![of("a", 1)], Vec::new());
    companion.open(2, "b", vec![of("b", 2), of("b", 3)], Vec::new());
    assert_eq!(companion.take().granted(), [(1, 1), (2, 2)]);

    let change = RoleChange::StandBy { leader: Some("10.0.0.2:9190".into()), term: 10 };
    companion.controls.change_leadership(companion.now, &scope("a"), change);
    let outputs = companion.take();
    assert_eq!(outputs.closed, [1]);
    assert!(companion.role("a") == Role::Standby);
    assert_eq!(companion.role("b"), Role::Leader);
    companion.send(2, Message::Completed(wire::Completed { sequence: 2, status: 200, ..Default::default() }));
    assert_eq!(companion.take().granted(), [(2, 3)], "b goes on");
    let status = companion.controls.status(companion.now);
    assert_eq!(status.requests, 1);
    assert!(status.started, "of the pools that it leads");
}

#[test]
fn the_session_without_a_pool_has_no_term_and_leaves_pools_requests_to_their_sessions() {
    let mut companion = Companion::new(&["a"]);
    companion.open(1, "", vec![of("a", 1), of("z", 2)], vec![]);
    let outputs = companion.take();
    assert_eq!(outputs.acknowledged(), [(1, 0)]);
    let sent_policy = |kind: &Kind| matches!(kind, Kind::Policy(policy) if policy.session_per_pool);
    assert!(outputs.commands.iter().any(|(_, kind)| sent_policy(kind)));
    assert_eq!(outputs.decided, ["model_not_found"], "no pool has the second");
    assert!(companion.controls.is_idle(), "the first is listed in its pool's session");
}

#[test]
fn requests_of_a_pool_that_no_longer_serves_their_model_are_answered_and_counted() {
    let mut companion = Companion::new(&["a", "b"]);
    companion.lead("a", 9);
    // The filter has applied an earlier policy, in which pool a served the models of pool b.
    let moved = |sequence| of("b", sequence);
    let runs =
        wire::Running { register: Some(moved(1)), endpoint: "127.0.0.1:8001".into(), ..Default::default() };
    companion.open(1, "a", vec![moved(2)], vec![runs]);
    let outputs = companion.take();
    assert_eq!(outputs.decided, ["", "model_not_found"], "the running one was granted");
    companion.send(1, Message::Register(of("a", 3)));
    companion.send(1, Message::Register(moved(4)));
    let outputs = companion.take();
    assert_eq!(outputs.granted(), [], "the running one takes the only place");
    assert_eq!(outputs.decided, ["model_not_found"]);
    companion.send(1, Message::Completed(wire::Completed { sequence: 1, status: 200, ..Default::default() }));
    assert_eq!(companion.take().granted(), [(1, 3)]);
}

#[test]
fn a_companion_with_one_leader_for_all_pools_closes_the_sessions_of_pools() {
    let mut settings = settings_of_pools(&["a"]);
    settings.policy.session_per_pool = false;
    settings.is_replicated = false;
    let mut companion =
        Companion { controls: Controls::new(settings, Instant::ZERO), ..Companion::new(&["a"]) };
    companion.open(1, "a", vec![of("a", 1)], Vec::new());
    let outputs = companion.take();
    assert_eq!(outputs.closed, [1]);
    assert!(outputs.commands.is_empty());
    companion.open(2, "", vec![of("a", 1)], Vec::new());
    assert_eq!(companion.take().granted(), [(2, 1)], "all are in the main session");
}

#[test]
fn a_stream_for_an_unknown_pool_is_closed() {
    let mut companion = Companion::new(&["a"]);
    companion.open(1, "z", Vec::new(), Vec::new());
    assert_eq!(companion.take().closed, [1]);
    companion.send(1, Message::Heartbeat(wire::Heartbeat::default()));
    companion.handle(Event::Closed(ConnId(1)));
    assert!(companion.take().commands.is_empty());
}

#[test]
fn a_removed_pool_is_forgotten_when_its_last_request_has_ended() {
    let mut companion = Companion::new(&["a", "b"]);
    companion.lead("b", 9);
    companion.open(1, "b", vec![of("b", 1), of("b", 2)], Vec::new());
    assert_eq!(companion.take().granted(), [(1, 1)]);

    companion.handle(Event::Settings(Box::new(settings_of_pools(&["a"]))));
    let outputs = companion.take();
    assert_eq!(outputs.decided, ["model_not_found"], "the request that waited");
    let status = companion.controls.status(companion.now);
    let pools: Vec<_> = status.pools.iter().map(|pool| (&*pool.name, pool.retired)).collect();
    assert_eq!(pools, [("a", false), ("b", true)]);

    companion.send(1, Message::Completed(wire::Completed { sequence: 1, status: 200, ..Default::default() }));
    assert_eq!(companion.take().closed, [1]);
    assert_eq!(companion.controls.leads(&scope("b")), None);

    companion.handle(Event::Settings(Box::new(settings_of_pools(&["c", "a"]))));
    companion.lead("c", 11);
    companion.open(3, "c", vec![of("c", 5)], Vec::new());
    assert_eq!(companion.take().granted(), [(3, 5)]);
    let status = companion.controls.status(companion.now);
    let pools: Vec<_> = status.pools.iter().map(|pool| &*pool.name).collect();
    assert_eq!(pools, ["c", "a"], "in the order of the configuration");
}

#[test]
fn a_removed_pool_that_comes_back_goes_on() {
    let mut companion = Companion::new(&["a", "b"]);
    companion.lead("b", 9);
    companion.open(1, "b", vec![of("b", 1)], Vec::new());
    companion.handle(Event::Settings(Box::new(settings_of_pools(&["a"]))));
    companion.handle(Event::Settings(Box::new(settings_of_pools(&["a", "b"]))));
    companion.take();
    companion.send(1, Message::Register(of("b", 2)));
    companion.send(1, Message::Completed(wire::Completed { sequence: 1, status: 200, ..Default::default() }));
    let outputs = companion.take();
    assert_eq!(outputs.granted(), [(1, 2)]);
    assert!(outputs.closed.is_empty());
}

#[test]
fn drain_and_hand_over_reach_every_pool() {
    let mut companion = Companion::new(&["a", "b"]);
    companion.lead("a", 9);
    companion.lead("b", 9);
    companion.open(1, "a", Vec::new(), Vec::new());
    companion.open(2, "b", Vec::new(), Vec::new());
    companion.open(3, "", Vec::new(), Vec::new());
    companion.take();
    companion.handle(Event::Drain(true));
    companion.send(1, Message::Register(of("a", 1)));
    companion.send(2, Message::Register(of("b", 2)));
    assert_eq!(companion.take().decided, ["shutting_down", "shutting_down"]);
    companion.handle(Event::HandOver);
    let mut closed = companion.take().closed;
    closed.sort_unstable();
    assert_eq!(closed, [1, 2, 3]);
    companion.open(4, "a", Vec::new(), Vec::new());
    assert_eq!(companion.take().closed, [4]);
}

#[test]
fn timers_of_every_pool_are_kept() {
    let mut companion = Companion::new(&["a", "b"]);
    companion.handle(Event::Opened(ConnId(1), Door::Filter));
    companion.open(2, "b", Vec::new(), Vec::new());
    companion.take();
    companion.pass(Duration::from_secs(11));
    let mut closed = companion.take().closed;
    closed.sort_unstable();
    assert_eq!(closed, [1, 2], "silent streams, with and without a pool");
}
