//! One of several companions: it stands by, takes over, leads, and steps down.

use std::time::Duration;

use penstock_control::{Event, Settings};
use penstock_election::{KnownEnvoy, Pickers, Report, Role, RoleChange, RoleStatus};
use penstock_engine::Instant;
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

use crate::harness::*;

const SECOND_LONG: Duration = Duration::from_secs(1);
/// The address of the other companion.
const OTHER: &str = "10.0.0.2:9190";
/// The Envoy of the harness's filters.
const ENVOY: u64 = 77;

fn replicated() -> World {
    World::with(Settings { is_replicated: true, ..settings() })
}

impl World {
    fn probe(&mut self, conn: u64, filter: Filter) {
        self.open(conn);
        let probe = wire::Hello { probe: true, last: false, ..hello(filter, Vec::new(), Vec::new()) };
        self.send(conn, Message::Hello(probe));
    }

    fn hello(
        &mut self,
        conn: u64,
        filter: Filter,
        waiting: Vec<wire::Register>,
        running: Vec<wire::Running>,
    ) {
        self.send(conn, Message::Hello(hello(filter, waiting, running)));
    }

    fn change(&mut self, change: RoleChange) {
        self.handle(Event::Leadership(change));
    }

    fn lead(&mut self, term: u64, known: &[(u64, u32)]) {
        self.lead_after(term, known, false);
    }

    fn lead_after(&mut self, term: u64, known: &[(u64, u32)], is_last_leader_gone: bool) {
        self.lead_with_pickers(term, known, &[], is_last_leader_gone);
    }

    fn lead_with_pickers(
        &mut self,
        term: u64,
        known: &[(u64, u32)],
        pickers: &[KnownEnvoy],
        is_last_leader_gone: bool,
    ) {
        let (known, pickers) = (known_envoys(known), pickers.to_vec());
        let grants_until = self.now.after(60 * SECOND_LONG);
        self.change(RoleChange::Lead { term, known, pickers, is_last_leader_gone, grants_until });
    }

    fn lose_store(&mut self, recorded: &[(u64, u32)]) {
        let recorded = known_envoys(recorded);
        self.change(RoleChange::StoreUnreachable { recorded });
    }

    fn renew(&mut self, grants_until: Instant) {
        self.change(RoleChange::Renewed { term: 9, grants_until });
    }

    fn stand_by(&mut self, leader: Option<&str>, term: u64) {
        self.change(RoleChange::StandBy { leader: leader.map(Into::into), term });
    }

    /// A leader with one session, on stream 1, whose lease lasts for a minute.
    fn leading() -> Self {
        let mut world = replicated();
        world.probe(1, filter(1));
        world.lead(9, &[(ENVOY, 1)]);
        world.hello(1, filter(1), Vec::new(), Vec::new());
        world.take();
        world
    }
}

/// Envoys with so many root contexts each, which have the first epochs.
fn known_envoys(known: &[(u64, u32)]) -> Vec<KnownEnvoy> {
    let known = known.iter().map(|&(envoy, contexts)| KnownEnvoy {
        envoy,
        contexts,
        digest: (1..=u64::from(contexts)).map(context_digest).sum(),
    });
    known.collect()
}

/// The number of the harness's root context with this epoch in [`KnownEnvoy::digest`].
const fn context_digest(epoch: u64) -> u64 {
    1 ^ epoch
}

fn here(term: u64) -> wire::Role {
    wire::Role { term, leader: String::new(), here: true }
}

fn elsewhere(leader: &str, term: u64) -> wire::Role {
    wire::Role { term, leader: leader.into(), here: false }
}

fn heartbeat() -> Message {
    Message::Heartbeat(wire::Heartbeat::default())
}

#[test]
fn companion_without_others_answers_a_probe() {
    let mut world = World::new();
    world.probe(1, filter(1));
    assert_eq!(world.take().roles(), [(1, &here(7))]);
    world.hello(1, filter(1), vec![register(1)], Vec::new());
    let taken = world.take();
    assert_eq!(taken.commands[0].1, Kind::HelloAck(wire::HelloAck { version: 1, term: 7 }));
    assert_eq!(taken.granted(), [1]);
}

#[test]
fn standby_names_the_leader_and_discards_the_hello() {
    let mut world = replicated();
    world.stand_by(Some(OTHER), 8);
    world.open(1);
    world.hello(1, filter(1), vec![register(1)], vec![runs(2)]);
    world.send(1, Message::Register(register(3)));
    let taken = world.take();
    assert_eq!(taken.roles(), [(1, &elsewhere(OTHER, 8))]);
    assert_eq!((taken.commands.len(), taken.arrived, taken.reports.len()), (1, 0, 0));
    assert!(world.control.is_idle());
}

#[test]
fn standby_without_a_leader_asks_for_an_election_and_passes_its_result_on() {
    let mut world = replicated();
    world.probe(1, filter(1));
    let taken = world.take();
    assert_eq!(taken.roles(), [(1, &elsewhere("", 0))]);
    assert_eq!(taken.reports, [Report::Wanted]);
    world.send(1, heartbeat());
    world.stand_by(Some(OTHER), 8);
    assert_eq!(world.take().roles(), [(1, &elsewhere(OTHER, 8))]);
}

#[test]
fn filter_that_cannot_reach_the_leader_waits_for_the_next_one() {
    let mut world = replicated();
    world.stand_by(Some(OTHER), 8);
    world.open(1);
    let probe = wire::Hello {
        probe: true,
        last: false,
        unreachable_term: 8,
        ..hello(filter(1), Vec::new(), Vec::new())
    };
    world.send(1, Message::Hello(probe.clone()));
    let taken = world.take();
    assert_eq!(taken.roles(), [(1, &elsewhere("", 0))]);
    assert_eq!(taken.reports, [Report::Wanted]);
    // The filter couldn't reach an earlier leader.
    world.open(2);
    let probe = wire::Hello { unreachable_term: 7, ..probe };
    world.send(2, Message::Hello(probe));
    assert_eq!(world.take().roles(), [(2, &elsewhere(OTHER, 8))]);
    world.close(2);
    world.lead(9, &[(ENVOY, 1)]);
    assert_eq!(world.take().roles(), [(1, &here(9))]);
}

#[test]
fn new_leader_grants_when_all_filters_of_the_last_one_have_listed_their_requests() {
    let mut world = replicated();
    world.probe(1, filter(1));
    world.take();
    world.lead(9, &[(ENVOY, 2)]);
    assert_eq!(world.control.role().role, Role::TakingOver);
    let roles = world.take();
    assert_eq!(roles.roles(), [(1, &elsewhere("", 9))], "the second filter is missing");
    world.probe(2, filter(2));
    let taken = world.take();
    let called = (taken.roles().contains(&(1, &here(9))), taken.roles().contains(&(2, &here(9))));
    assert_eq!(called, (true, true), "{taken:?}");
    assert_eq!(world.control.role().role, Role::Leader);
    world.hello(1, filter(1), vec![register(1)], Vec::new());
    assert_eq!(world.take().granted(), [] as [u64; 0], "the other filter may run a request");
    world.hello(2, filter(2), Vec::new(), vec![runs(1)]);
    assert_eq!(world.take().granted(), [] as [u64; 0], "the only place is taken");
    world.send(2, completed(1));
    assert_eq!(world.take().granted(), [1]);
    // The election learns of the Envoys when their requests are counted.
    let digest = context_digest(1) + context_digest(2);
    let envoys = vec![KnownEnvoy { envoy: ENVOY, contexts: 2, digest }];
    assert_eq!(
        world.control.take_known_envoys(),
        Some(Report::Known { term: 9, envoys, pickers: Pickers::default() })
    );
    assert_eq!(world.control.take_known_envoys(), None);
}

#[test]
fn takeover_waits_for_missing_filters_until_the_last_leader_must_have_stopped() {
    let mut world = replicated();
    world.lead(9, &[(ENVOY, 2)]);
    world.pass(SECOND_LONG);
    world.probe(1, filter(1));
    world.take();
    world.pass_beating(5, &[1]);
    assert_eq!(world.take().roles(), []);
    world.pass_beating(1, &[1]);
    assert_eq!(world.take().roles(), [(1, &here(9))]);
}

#[test]
fn filter_that_knows_the_endpoints_is_not_sent_them() {
    let greeted = |digest, is_taken_over: bool| {
        let mut world = if is_taken_over { replicated() } else { World::new() };
        world.probe(1, filter(1));
        if is_taken_over {
            world.lead(9, &[(ENVOY, 1)]);
        }
        let hello = wire::Hello { endpoints_digest: digest, ..hello(filter(1), Vec::new(), Vec::new()) };
        world.send(1, Message::Hello(hello));
        world.take().endpoints().len()
    };
    let known = wire::endpoints_digest("chat", [SERVER].into_iter(), Some(1));
    for is_taken_over in [false, true] {
        assert_eq!(greeted(known, is_taken_over), 0, "{is_taken_over}");
        assert_eq!(greeted(known + 1, is_taken_over), 1, "{is_taken_over}");
    }
}

#[test]
fn new_bound_is_sent_without_the_endpoints() {
    let mut world = World::with(settings_of(&[SERVER, SECOND]));
    world.greet(1, filter(1), Vec::new(), Vec::new());
    world.greet(2, filter(2), Vec::new(), Vec::new());
    world.take();
    let other = Filter { envoy: ENVOY + 1, ..filter(3) };
    world.greet(3, other, Vec::new(), Vec::new());
    let taken = world.take();
    let mut sent: Vec<_> = taken
        .endpoints()
        .iter()
        .map(|(conn, sent)| (*conn, sent.keep_ready, sent.ready.len(), sent.fallback_bound))
        .collect();
    sent.sort_unstable();
    // Only the newcomer gets the whole list.
    assert_eq!(sent, [(1, true, 0, Some(1)), (2, true, 0, Some(1)), (3, false, 2, Some(1))]);
}

#[test]
fn another_root_context_of_the_envoy_does_not_stand_in_for_a_missing_one() {
    let mut world = replicated();
    world.lead(9, &[(ENVOY, 2)]);
    world.probe(1, filter(1));
    world.probe(3, filter(3));
    assert_eq!(world.control.role().role, Role::TakingOver, "the second one may run requests");
    world.close(3);
    world.probe(2, filter(2));
    assert_eq!(world.control.role().role, Role::Leader);
}

#[test]
fn lease_is_given_back_if_the_filters_stay_with_the_last_leader() {
    let mut world = replicated();
    world.stand_by(Some(OTHER), 8);
    world.lead(9, &[(ENVOY, 1)]);
    world.pass(6 * SECOND_LONG);
    assert_eq!(world.take().reports, [Report::Unfollowed { term: 9 }]);
    world.stand_by(Some(OTHER), 8);
    assert_eq!(
        *world.control.role(),
        RoleStatus { role: Role::Standby, term: 8, leader: Some(OTHER.into()) }
    );
}

#[test]
fn unknown_filters_are_sent_to_the_last_leader_before_they_are_served() {
    let mut world = replicated();
    world.stand_by(Some(OTHER), 8);
    world.lead(9, &[(5, 1)]);
    world.probe(1, filter(1));
    world.take();
    world.pass_beating(6, &[1]);
    let taken = world.take();
    assert_eq!(taken.roles(), [(1, &elsewhere(OTHER, 8))]);
    assert_eq!(taken.reports, []);
    // The last leader doesn't answer, and the filter is back.
    world.close(1);
    world.probe(2, filter(1));
    world.pass_beating(24, &[2]);
    assert_eq!(world.take().roles().last(), Some(&(2, &here(9))));
}

#[test]
fn unknown_filter_that_has_found_the_last_leader_makes_no_second_one() {
    let mut world = replicated();
    world.stand_by(Some(OTHER), 8);
    world.lead(9, &[(5, 1)]);
    world.probe(1, filter(1));
    world.pass_beating(6, &[1]);
    assert_eq!(world.take().roles().last(), Some(&(1, &elsewhere(OTHER, 8))));
    // The last leader can't reach the store, and holds the filter.
    world.close(1);
    world.pass(24 * SECOND_LONG);
    assert_eq!(world.take().reports, [Report::Unfollowed { term: 9 }]);
    assert_eq!(world.control.role().role, Role::TakingOver);
}

#[test]
fn last_leader_that_is_gone_is_not_waited_for() {
    // Its filters are, for the time that they may need, also where a start waits for less: there may have been none.
    for startup_wait in [1, 2_000].map(Duration::from_millis) {
        let mut world = World::with(Settings { is_replicated: true, startup_wait, ..settings() });
        world.lead_after(9, &[(ENVOY, 2)], true);
        world.probe(1, filter(1));
        world.take();
        world.pass(Duration::from_millis(1_999));
        assert_eq!(world.take().roles(), []);
        world.pass(Duration::from_millis(1));
        assert_eq!(world.take().roles(), [(1, &here(9))]);
    }
}

#[test]
fn hellos_on_their_way_are_waited_for() {
    let mut world = replicated();
    world.probe(1, filter(1));
    world.probe(2, filter(2));
    world.lead(9, &[(ENVOY, 2)]);
    world.hello(1, filter(1), vec![register(1)], Vec::new());
    world.take();
    let startup_wait = settings().startup_wait;
    world.pass(startup_wait);
    world.send(1, heartbeat());
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    world.close(2);
    world.pass(startup_wait);
    assert_eq!(world.take().granted(), [1], "the second filter isn't here any more");
}

#[test]
fn lapsed_lease_stops_grants_until_it_is_renewed() {
    let mut world = World::leading();
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    world.pass(2 * SECOND_LONG);
    // A timer may be late: the register is the first event after the lapse.
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    assert_eq!(world.waiting(), 1);
    world.probe(2, filter(2));
    assert_eq!(world.take().roles(), [(2, &elsewhere("", 0))]);
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.roles(), [(2, &here(9))]);
}

#[test]
fn leader_goes_on_without_the_store_while_its_filters_follow() {
    let mut world = World::leading();
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    world.lose_store(&[(ENVOY, 1)]);
    for _ in 0..60 {
        world.pass_beating(1, &[1]);
        world.take();
    }
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [1]);
    world.send(1, completed(1));
    // The filter leaves, perhaps to another leader.
    world.close(1);
    world.probe(2, filter(2));
    world.hello(2, filter(2), Vec::new(), Vec::new());
    world.take();
    world.pass_beating(6, &[2]);
    world.send(2, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn leader_without_the_store_stops_when_a_filter_says_bye() {
    let mut world = World::leading();
    world.probe(2, filter(2));
    world.hello(2, filter(2), Vec::new(), Vec::new());
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    world.lose_store(&[(ENVOY, 2)]);
    world.take();
    for _ in 0..4 {
        world.pass_beating(1, &[1, 2]);
        world.take();
    }
    // Its successor in that Envoy may ask another companion, which then leads after six seconds.
    world.send(2, Message::Bye(wire::Bye {}));
    for _ in 0..5 {
        world.pass_beating(1, &[1]);
        world.take();
    }
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn leader_without_the_store_takes_no_envoy_that_the_record_does_not_name() {
    let stranger = Filter { envoy: ENVOY + 1, ..filter(2) };
    let mut world = World::leading();
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    // Its Hello is on its way when the store fails.
    let part = |part, last| {
        let whole = hello(stranger, Vec::new(), Vec::new());
        Message::Hello(wire::Hello { part, last, ..whole })
    };
    world.open(4);
    world.send(4, part(0, false));
    world.lose_store(&[(ENVOY, 1)]);
    world.send(4, part(1, true));
    assert_eq!(world.take().closed, [4]);
    world.open(2);
    world.send(2, Message::Hello(hello(stranger, Vec::new(), Vec::new())));
    assert_eq!(world.take().roles(), [(2, &elsewhere("", 9))], "it stays");
    for _ in 0..4 {
        world.pass_beating(1, &[1]);
        world.take();
    }
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [1], "the known Envoy's filters go on");
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    assert_eq!(world.take().roles(), [(2, &here(9))]);
}

#[test]
fn leader_whose_filters_are_not_those_of_the_record_stops_with_its_lease() {
    // An Envoy has come, and another filter of this Envoy was expected and hasn't.
    for recorded in [&[(ENVOY + 1, 1)][..], &[(ENVOY, 2)]] {
        assert_stops_without_the_store(recorded);
    }
}

fn assert_stops_without_the_store(recorded: &[(u64, u32)]) {
    let mut world = World::leading();
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    world.lose_store(recorded);
    for _ in 0..3 {
        world.pass_beating(1, &[1]);
        world.take();
    }
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
}

#[test]
fn leader_that_learns_late_of_its_lost_store_goes_on() {
    let mut world = World::leading();
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    for _ in 0..3 {
        world.pass_beating(1, &[1]);
        world.take();
    }
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    world.lose_store(&[(ENVOY, 1)]);
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn frames_that_waited_in_a_frozen_process_prove_nothing() {
    let mut world = World::leading();
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    world.lose_store(&[(ENVOY, 1)]);
    world.pass_beating(1, &[1]);
    world.take();
    // The process freezes, and then reads what its filters sent meanwhile, in answer to frames before.
    world.now = world.now.after(8 * SECOND_LONG);
    world.send(1, heartbeat());
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
}

#[test]
fn filter_of_a_later_leader_ends_the_grants_of_an_earlier_one() {
    let mut world = World::leading();
    world.open(2);
    let later = wire::Hello { term: 10, ..hello(filter(2), Vec::new(), Vec::new()) };
    world.send(2, Message::Hello(later));
    let taken = world.take();
    assert_eq!(taken.reports, [Report::Superseded { term: 10 }]);
    assert_eq!(taken.roles(), [(2, &elsewhere("", 0))]);
    world.send(1, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
}

#[test]
fn leader_that_steps_down_forgets_its_requests_and_names_the_next_one() {
    let mut world = World::leading();
    world.send(1, Message::Register(register(1)));
    world.send(1, Message::Register(register(2)));
    assert_eq!(world.take().granted(), [1]);
    world.stand_by(Some(OTHER), 10);
    let taken = world.take();
    assert_eq!(taken.roles(), [(1, &elsewhere(OTHER, 10))]);
    assert_eq!((taken.closed, taken.outcomes), (vec![1], vec![]));
    assert_eq!((world.stock(), world.waiting()), (0, 0));
    assert!(world.control.is_idle());
    // It leads again, and the same filter comes back.
    world.probe(2, Filter { stream: 2, ..filter(1) });
    world.lead(11, &[(ENVOY, 1)]);
    let filter = Filter { stream: 2, ..filter(1) };
    world.hello(2, filter, vec![register(2)], vec![runs(1)]);
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    world.send(2, completed(1));
    assert_eq!(world.take().granted(), [2]);
}

#[test]
fn stream_in_the_middle_of_its_hello_is_closed_when_the_leader_steps_down() {
    let mut world = World::leading();
    world.open(2);
    let first_part = wire::Hello { last: false, ..hello(filter(2), Vec::new(), Vec::new()) };
    world.send(2, Message::Hello(first_part));
    world.stand_by(Some(OTHER), 10);
    assert_eq!(world.take().closed, [1, 2]);
    assert_eq!(world.control.status(world.now).sessions.len(), 0);
}

#[test]
fn pool_that_is_added_while_the_lease_has_lapsed_grants_nothing() {
    let mut world = World::leading();
    let lapses = world.now.after(SECOND_LONG);
    world.renew(lapses);
    world.pass(SECOND_LONG);
    let mut more = settings();
    let mut other = more.pools[0].clone();
    other.name = "other".into();
    other.models = vec!["other".into()];
    more.pools.insert(0, other);
    world.handle(Event::Settings(Box::new(more)));
    let registered = wire::Register { model: "other".into(), ..register(1) };
    world.send(1, Message::Register(registered));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    let lapses = world.now.after(SECOND_LONG);
    world.renew(lapses);
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn leader_that_resigns_says_goodbye() {
    let mut world = World::leading();
    world.stand_by(None, 0);
    let taken = world.take();
    assert_eq!(taken.commands, [(1, Kind::Bye(wire::Bye {}))]);
    assert_eq!(taken.closed, [1]);
    // A stream that opens now belongs to a filter that waits for the next leader.
    world.probe(2, filter(1));
    assert_eq!(world.take().roles(), [(2, &elsewhere("", 0))]);
}

/// A worker of the companion's own endpoint picker, an Envoy for itself.
fn picker(epoch: u64) -> Filter {
    Filter { envoy: 1_000 + epoch, ..filter(epoch) }
}

/// The worker of the endpoint picker on stream 5.
const KNOWN_PICKER: KnownEnvoy = KnownEnvoy { envoy: 1_005, contexts: 1, digest: context_digest(5) };

impl World {
    /// The picker of an earlier leader, on stream 5, asks for the leader.
    fn probe_of_earlier_picker(&mut self) {
        self.open(5);
        let hello = hello(picker(5), Vec::new(), Vec::new());
        let probe = wire::Hello { picker: true, probe: true, last: false, ..hello };
        self.send(5, Message::Hello(probe));
    }

    fn open_picker_session(&mut self, conn: u64) {
        self.open_for_picker(conn);
        self.hello(conn, picker(conn), Vec::new(), Vec::new());
    }
}

#[test]
fn own_picker_is_in_the_record_for_a_successor_that_it_follows() {
    let mut world = World::leading();
    world.open_picker_session(5);
    let report = |own: &[KnownEnvoy]| {
        let pickers = Pickers { own: own.to_vec(), earlier: Vec::new() };
        Some(Report::Known { term: 9, envoys: known_envoys(&[(ENVOY, 1)]), pickers })
    };
    assert_eq!(world.control.take_known_envoys(), report(&[KNOWN_PICKER]));
    world.close(5);
    world.pass_beating(6, &[1]);
    assert_eq!(world.control.take_known_envoys(), report(&[]));
}

#[test]
fn another_companion_s_picker_holds_no_leader_and_follows_the_next() {
    let mut world = World::leading();
    world.open(5);
    let theirs = wire::Hello { picker: true, ..hello(picker(5), Vec::new(), vec![runs(9)]) };
    world.send(5, Message::Hello(theirs));
    assert_eq!(world.stock(), 1);
    let Some(Report::Known { envoys, pickers, .. }) = world.control.take_known_envoys() else {
        panic!("the leader reports its Envoys");
    };
    let earlier = Pickers { own: Vec::new(), earlier: vec![KNOWN_PICKER] };
    assert_eq!((envoys, pickers), (known_envoys(&[(ENVOY, 1)]), earlier));
    // Its end doesn't stop a leader that is without the store of leases.
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    world.lose_store(&[(ENVOY, 1)]);
    world.send(5, Message::Bye(wire::Bye {}));
    for _ in 0..10 {
        world.pass_beating(1, &[1]);
        world.take();
    }
    assert!(world.control.leads());
}

#[test]
fn leader_with_a_picker_alone_stops_with_its_lease() {
    let mut world = replicated();
    world.lead_after(9, &[], true);
    world.open_picker_session(5);
    world.pass(SECOND_LONG);
    world.take();
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    world.lose_store(&[]);
    for _ in 0..3 {
        world.pass_beating(1, &[5]);
        world.take();
    }
    assert!(!world.control.leads(), "another companion may lead: nothing holds it back");
    world.send(5, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    assert!(world.control.leads());
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn leader_without_the_store_takes_its_own_picker_while_its_filters_follow() {
    let mut world = World::leading();
    let lapses = world.now.after(2 * SECOND_LONG);
    world.renew(lapses);
    world.lose_store(&[(ENVOY, 1)]);
    world.open_picker_session(5);
    // It proves nothing, and its silence and its end prove nothing either.
    for _ in 0..10 {
        world.pass_beating(1, &[1]);
        world.take();
    }
    world.open_picker_session(6);
    world.send(6, Message::Register(register(1)));
    assert_eq!(world.take().granted(), [1]);
    // Without a filter that follows, the picker doesn't hold the lease.
    for _ in 0..6 {
        world.pass_beating(1, &[6]);
        world.take();
    }
    world.send(6, Message::Register(register(2)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
}

#[test]
fn own_picker_takes_the_place_of_missing_filters_only_after_a_long_time() {
    let mut world = replicated();
    world.open_for_picker(5);
    let probe = wire::Hello { probe: true, last: false, ..hello(picker(5), Vec::new(), Vec::new()) };
    world.send(5, Message::Hello(probe));
    world.lead(9, &[(ENVOY, 1)]);
    world.take();
    let renewed = |world: &mut World| {
        let lapses = world.now.after(10 * SECOND_LONG);
        world.renew(lapses);
        world.pass_beating(5, &[5]);
    };
    for _ in 0..23 {
        renewed(&mut world);
        assert!(!world.control.leads() && world.take().reports.is_empty(), "{:?}", world.now);
    }
    // The filters that the record names are gone for ever.
    for _ in 0..2 {
        renewed(&mut world);
    }
    assert!(world.control.leads());
    assert_eq!(world.take().roles(), [(5, &here(9))]);
}

#[test]
fn filters_that_come_to_a_companion_with_a_picker_make_it_lead_at_once() {
    let mut world = replicated();
    world.open_for_picker(5);
    let probe = wire::Hello { probe: true, last: false, ..hello(picker(5), Vec::new(), Vec::new()) };
    world.send(5, Message::Hello(probe));
    world.lead(9, &[(ENVOY, 1)]);
    for _ in 0..6 {
        let lapses = world.now.after(10 * SECOND_LONG);
        world.renew(lapses);
        world.pass_beating(5, &[5]);
    }
    world.take();
    assert!(!world.control.leads());
    world.probe(1, filter(1));
    assert!(world.control.leads());
}

#[test]
fn next_leader_counts_what_an_earlier_leader_s_picker_runs_before_it_grants() {
    // The last leader had filters, or none.
    for known in [&[(ENVOY, 1)][..], &[]] {
        let mut world = replicated();
        world.probe(1, filter(1));
        world.lead_with_pickers(9, known, &[KNOWN_PICKER], known.is_empty());
        assert_eq!(world.control.role().role, Role::TakingOver, "the picker is missing");
        world.probe_of_earlier_picker();
        assert_eq!(world.control.role().role, Role::Leader);
        world.hello(1, filter(1), vec![register(1)], Vec::new());
        assert_eq!(world.take().granted(), [] as [u64; 0], "the picker may run a request");
        let theirs = wire::Hello { picker: true, ..hello(picker(5), Vec::new(), vec![runs(9)]) };
        world.send(5, Message::Hello(theirs));
        assert_eq!(world.take().granted(), [] as [u64; 0], "the only place is taken");
        world.send(5, completed(9));
        assert_eq!(world.take().granted(), [1]);
    }
}

#[test]
fn picker_of_an_earlier_leader_that_is_gone_is_waited_for_as_a_filter_is() {
    let mut world = replicated();
    world.probe(1, filter(1));
    world.lead_with_pickers(9, &[(ENVOY, 1)], &[KNOWN_PICKER], false);
    world.take();
    world.pass_beating(5, &[1]);
    assert_eq!(world.take().roles(), []);
    world.pass_beating(1, &[1]);
    assert_eq!(world.take().roles(), [(1, &here(9))]);
}

#[test]
fn picker_of_an_earlier_leader_does_not_prove_that_the_last_one_is_gone() {
    // The last leader is cut off from the store of leases, and its filters stay with it.
    let mut world = replicated();
    world.lead_with_pickers(9, &[(ENVOY, 1)], &[KNOWN_PICKER], false);
    world.probe_of_earlier_picker();
    for _ in 0..23 {
        let lapses = world.now.after(10 * SECOND_LONG);
        world.renew(lapses);
        world.pass_beating(5, &[5]);
        assert!(!world.control.leads(), "{:?}", world.now);
    }
}
