//! Exact outputs: given this event at that time, these frames and observations, and nothing more.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_control::{
    ConnId, Control, EndpointSettings, Event, FlowKey, Observation, Output, PoolSettings, Settings,
};
use penstock_engine::policy::{Gate, Policy, Queue, StockUnit};
use penstock_engine::units::Decimal;
use penstock_engine::{Instant, Outcome};
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Said;

const SERVER: &str = "127.0.0.1:8001";

fn policy() -> Policy {
    Policy {
        queue: Queue {
            total_capacity: 10,
            total_bytes: 1 << 20,
            flow_capacity: 10,
            ..Queue::default()
        },
        gate: Gate::Bounded {
            unit: StockUnit::Requests,
            lower: Decimal::whole(1),
            upper: Decimal::whole(1),
            watermark: Decimal::whole(1),
        },
        ..Policy::default()
    }
}

fn settings() -> Settings {
    Settings {
        pools: vec![PoolSettings {
            name: "chat".into(),
            models: vec!["llama-*".into()],
            endpoints: vec![EndpointSettings {
                address: SERVER.into(),
                weight: Decimal::whole(1),
                ready: true,
            }],
            policy: policy(),
            flow_key: vec![FlowKey::FairnessId],
            class_globs: Vec::new(),
            capacity_status: 503,
            requeues: 3,
        }],
        policy: wire::Policy {
            digest: "d1".into(),
            ..Default::default()
        },
        objectives: Vec::new(),
        sessions_expected: Some(1),
        startup_wait: Duration::from_secs(2),
        flows_shown: 10,
        term: 7,
        seed: 1,
    }
}

/// A control, the filters' frame numbers, and a clock that the test moves.
struct World {
    control: Control,
    now: Instant,
    seq: BTreeMap<u64, u64>,
}

impl World {
    fn new() -> Self {
        Self {
            control: Control::new(settings(), Instant::ZERO),
            now: Instant::ZERO,
            seq: BTreeMap::new(),
        }
    }

    fn open(&mut self, conn: u64) {
        self.control.handle(self.now, Event::Opened(ConnId(conn)));
    }

    fn say(&mut self, conn: u64, said: Said) {
        let seq = self.seq.entry(conn).or_default();
        *seq += 1;
        let frame = wire::FilterFrame {
            seq: *seq,
            ack: 0,
            event: Some(said),
        };
        self.control
            .handle(self.now, Event::Frame(ConnId(conn), Box::new(frame)));
    }

    fn hello(&mut self, conn: u64, stream: u32, waiting: Vec<wire::Register>, running: Vec<wire::Running>) {
        self.open(conn);
        self.say(conn, hello(stream, waiting, running));
    }

    /// Lets time pass, with all timers on the way.
    fn pass(&mut self, by: Duration) {
        let until = self.now.after(by);
        while let Some(due) = self.control.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.control.handle_timeout(self.now);
        }
        self.now = until;
    }

    /// Everything that came out: commands by stream, and the rest.
    fn take(&mut self) -> Taken {
        let mut taken = Taken::default();
        while let Some(output) = self.control.poll_output() {
            match output {
                Output::Send(conn, frame) => taken.commands.extend(
                    frame
                        .commands
                        .into_iter()
                        .filter_map(|it| it.kind)
                        .map(|kind| (conn.0, kind)),
                ),
                Output::Close(conn, _) => taken.closed.push(conn.0),
                Output::Observe(Observation::Decided { outcome, .. }) => taken.outcomes.push(outcome),
                Output::Observe(Observation::Arrived(_)) => taken.arrived += 1,
                Output::Observe(Observation::BadDeadline(_)) => taken.bad_deadlines += 1,
                Output::Observe(Observation::Refused { outcome, .. }) => taken.refused.push(outcome),
                Output::Observe(_) => {}
            }
        }
        taken
    }

    /// Established, greeted, and nothing left to take.
    fn established() -> Self {
        let mut world = Self::new();
        world.hello(1, 1, Vec::new(), Vec::new());
        world.take();
        world
    }

    fn stock(&self) -> u64 {
        self.control.status(self.now).pools[0].snapshot.stock
    }

    fn waiting(&self) -> u64 {
        self.control.status(self.now).pools[0].snapshot.waiting
    }
}

#[derive(Debug, Default, PartialEq)]
struct Taken {
    commands: Vec<(u64, Kind)>,
    closed: Vec<u64>,
    outcomes: Vec<Outcome>,
    arrived: usize,
    refused: Vec<Box<str>>,
    bad_deadlines: usize,
}

impl Taken {
    /// Arrivals, outcomes of ours, and outcomes of the filter's own.
    fn counts(&self) -> (usize, usize, usize) {
        (self.arrived, self.outcomes.len(), self.refused.len())
    }

    fn granted(&self) -> Vec<u64> {
        self.commands
            .iter()
            .filter_map(|(_, kind)| match kind {
                Kind::Grant(grant) => Some(grant.sequence),
                Kind::HelloAck(_) | Kind::Policy(_) | Kind::Reject(_) | Kind::Endpoints(_) | Kind::Bye(_) => {
                    None
                }
            })
            .collect()
    }

    fn rejected(&self) -> Vec<(u64, &str, u32)> {
        self.commands
            .iter()
            .filter_map(|(_, kind)| match kind {
                Kind::Reject(reject) => Some((reject.sequence, reject.code.as_str(), reject.status)),
                Kind::HelloAck(_) | Kind::Policy(_) | Kind::Grant(_) | Kind::Endpoints(_) | Kind::Bye(_) => {
                    None
                }
            })
            .collect()
    }
}

fn hello(stream: u32, waiting: Vec<wire::Register>, running: Vec<wire::Running>) -> Said {
    Said::Hello(wire::Hello {
        epoch_hi: 1,
        epoch_lo: 2,
        stream,
        version_min: 1,
        version_max: 2,
        node: "envoy".into(),
        last: true,
        waiting,
        running,
        ..Default::default()
    })
}

fn register(sequence: u64) -> wire::Register {
    wire::Register {
        sequence,
        model: "llama-8b".into(),
        prompt_bytes: 400,
        fairness_id: "acme".into(),
        ..Default::default()
    }
}

fn runs(sequence: u64) -> wire::Running {
    wire::Running {
        register: Some(register(sequence)),
        pool: "chat".into(),
        endpoint: SERVER.into(),
        age_us: 5,
        started: true,
    }
}

fn completed(sequence: u64) -> Said {
    Said::Completed(wire::Completed {
        sequence,
        endpoint: SERVER.into(),
        status: 200,
        end: wire::End::Served.into(),
        prompt_tokens: Some(100),
        output_tokens: Some(10),
        ..Default::default()
    })
}

fn refused(sequence: u64, registered: bool) -> Said {
    Said::Refused(wire::Refused {
        sequence,
        code: "gateway_unavailable".into(),
        outcome: "gateway_unavailable".into(),
        status: 503,
        model: "llama-8b".into(),
        registered,
        ..Default::default()
    })
}

#[test]
fn a_hello_is_answered_with_all_a_filter_needs() {
    let mut world = World::new();
    world.hello(1, 1, Vec::new(), Vec::new());
    let taken = world.take();
    assert_eq!(
        taken.commands,
        [
            (1, Kind::HelloAck(wire::HelloAck { version: 2, term: 7 })),
            (1, Kind::Policy(settings().policy)),
            (
                1,
                Kind::Endpoints(wire::Endpoints {
                    pool: "chat".into(),
                    ready: vec![SERVER.into()],
                    open_bound: None,
                })
            ),
        ]
    );
}

#[test]
fn one_goes_the_next_waits_until_it_has_ended() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    world.say(1, Said::Register(register(2)));
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.outcomes, [Outcome::Bypassed]);
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    world.say(1, completed(1));
    let taken = world.take();
    assert_eq!(taken.granted(), [2]);
    assert_eq!(taken.outcomes, [Outcome::Dispatched]);
    world.say(1, completed(2));
    assert!(world.control.is_idle());
    assert_eq!((world.stock(), world.waiting()), (0, 0));
}

#[test]
fn a_deadline_that_is_no_time_is_counted_and_the_request_goes() {
    let mut world = World::established();
    let bad = wire::Register {
        bad_deadline: true,
        // Of no meaning in a pool that doesn't order by it.
        bad_slo_ttft: true,
        ..register(1)
    };
    world.say(1, Said::Register(bad));
    let taken = world.take();
    assert_eq!(taken.outcomes, [Outcome::Bypassed]);
    assert_eq!(taken.bad_deadlines, 1);
}

#[test]
fn said_twice_changes_nothing() {
    let mut world = World::established();
    for _ in 0..2 {
        world.say(1, Said::Register(register(1)));
    }
    assert_eq!(world.take().granted(), [1]);
    for _ in 0..2 {
        world.say(1, completed(1));
        world.say(1, Said::Cancel(wire::Cancel { sequence: 9 }));
    }
    assert_eq!(world.stock(), 0);
    assert_eq!(world.take(), Taken::default());
}

#[test]
fn a_model_that_no_pool_serves_is_not_found() {
    let mut world = World::established();
    world.say(
        1,
        Said::Register(wire::Register {
            model: "gpt-9".into(),
            ..register(1)
        }),
    );
    let taken = world.take();
    assert_eq!(taken.rejected(), [(1, "model_not_found", 404)]);
    assert_eq!(taken.outcomes, [Outcome::RejectedInvalid]);
}

#[test]
fn a_cancelled_request_never_goes_and_one_that_crossed_its_grant_is_refunded() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    world.say(1, Said::Register(register(2)));
    world.say(1, Said::Cancel(wire::Cancel { sequence: 2 }));
    world.say(1, Said::Cancel(wire::Cancel { sequence: 1 }));
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.outcomes, [Outcome::Bypassed, Outcome::Cancelled]);
    assert_eq!((world.stock(), world.waiting()), (0, 0));
    assert!(world.control.is_idle());
}

#[test]
fn a_lost_grant_is_said_again() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    assert_eq!(world.take().granted(), [1]);
    world.control.handle(world.now, Event::Closed(ConnId(1)));
    world.hello(2, 2, vec![register(1)], Vec::new());
    let taken = world.take();
    assert_eq!(taken.granted(), [1]);
    assert_eq!(taken.outcomes, [], "its outcome was counted before");
    assert_eq!(world.stock(), 1);
}

#[test]
fn what_runs_is_adopted_above_the_bound_and_what_waits_is_queued_behind_it() {
    let mut world = World::new();
    world.hello(1, 1, vec![register(3)], vec![runs(1), runs(2)]);
    let taken = world.take();
    assert_eq!(taken.granted(), [] as [u64; 0]);
    assert_eq!(taken.outcomes, [Outcome::Dispatched, Outcome::Dispatched]);
    assert_eq!((world.stock(), world.waiting()), (2, 1));
    world.say(1, completed(1));
    assert_eq!(world.take().granted(), [] as [u64; 0], "still at the bound");
    world.say(1, completed(2));
    assert_eq!(world.take().granted(), [3]);
}

#[test]
fn what_runs_elsewhere_is_not_counted() {
    let mut world = World::new();
    let elsewhere = wire::Running {
        endpoint: "127.0.0.9:1".into(),
        ..runs(1)
    };
    world.hello(1, 1, Vec::new(), vec![elsewhere]);
    assert_eq!(world.take().outcomes, []);
    assert!(world.control.is_idle());
    assert_eq!(
        world.control.status(world.now).pools[0]
            .snapshot
            .counters
            .arrivals,
        0
    );
}

#[test]
fn what_a_hello_does_not_name_is_cancelled_or_settled_by_its_repeated_end() {
    let mut world = World::established();
    for sequence in 1..=3 {
        world.say(1, Said::Register(register(sequence)));
    }
    world.take();
    world.control.handle(world.now, Event::Closed(ConnId(1)));
    world.hello(2, 2, vec![register(3)], Vec::new());
    assert_eq!(
        world.take().outcomes,
        [Outcome::Cancelled],
        "the second, which waited"
    );
    world.say(2, completed(1));
    assert_eq!(world.take().granted(), [3], "the repeated end frees the place");
    world.control.handle(world.now, Event::Closed(ConnId(2)));
    world.hello(3, 3, Vec::new(), Vec::new());
    assert_eq!(world.stock(), 1);
    world.say(3, Said::Beat(wire::Beat {}));
    assert_eq!(
        world.stock(),
        0,
        "no end was repeated: released with the first beat"
    );
}

#[test]
fn an_orphaned_session_keeps_its_stock_for_the_grace() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    world.say(1, Said::Register(register(2)));
    world.take();
    world.control.handle(world.now, Event::Closed(ConnId(1)));
    world.pass(Duration::from_millis(4_999));
    assert_eq!((world.stock(), world.waiting()), (1, 1));
    world.pass(Duration::from_millis(1));
    assert_eq!((world.stock(), world.waiting()), (0, 0));
    assert!(world.control.is_idle());
    assert!(world.control.status(world.now).sessions.is_empty());
}

#[test]
fn bye_releases_at_once() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    world.say(1, Said::Bye(wire::Bye {}));
    assert_eq!(world.stock(), 0);
    assert_eq!(world.take().closed, [1]);
}

#[test]
fn silence_ends_a_session_and_beats_keep_it() {
    let mut world = World::established();
    for _ in 0..12 {
        world.pass(Duration::from_secs(1));
        world.say(1, Said::Beat(wire::Beat {}));
    }
    assert_eq!(world.take().closed, [] as [u64; 0]);
    world.pass(Duration::from_secs(11));
    assert_eq!(world.take().closed, [1]);
}

#[test]
fn a_later_stream_ends_the_older_and_an_older_one_is_not_heard() {
    let mut world = World::established();
    world.hello(2, 3, Vec::new(), Vec::new());
    assert_eq!(world.take().closed, [1]);
    world.hello(3, 2, Vec::new(), Vec::new());
    assert_eq!(world.take().closed, [3]);
    world.say(2, Said::Register(register(1)));
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn without_a_common_version_the_companion_says_so_and_closes() {
    let mut world = World::new();
    world.open(1);
    let Said::Hello(mut hello) = hello(1, Vec::new(), Vec::new()) else {
        panic!("a Hello")
    };
    (hello.version_min, hello.version_max) = (9, 9);
    world.say(1, Said::Hello(hello));
    let taken = world.take();
    assert_eq!(
        taken.commands,
        [(1, Kind::HelloAck(wire::HelloAck { version: 0, term: 7 }))]
    );
    assert_eq!(taken.closed, [1]);
}

#[test]
fn what_the_protocol_does_not_have_closes_the_stream() {
    let mut world = World::new();
    world.open(1);
    world.say(1, Said::Beat(wire::Beat {}));
    world.open(2);
    let gap = wire::FilterFrame {
        seq: 2,
        ack: 0,
        event: Some(hello(1, Vec::new(), Vec::new())),
    };
    world
        .control
        .handle(world.now, Event::Frame(ConnId(2), Box::new(gap)));
    world.open(3);
    world.control.handle(
        world.now,
        Event::Frame(
            ConnId(3),
            Box::new(wire::FilterFrame {
                seq: 1,
                ack: 0,
                event: None,
            }),
        ),
    );
    assert_eq!(world.take().closed, [1, 2, 3]);
}

#[test]
fn a_drain_answers_what_waits_and_lets_what_runs_finish() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    world.say(1, Said::Register(register(2)));
    world.take();
    world.control.handle(world.now, Event::Drain(true));
    assert_eq!(world.take().rejected(), [(2, "shutting_down", 503)]);
    world.say(1, Said::Register(register(3)));
    assert_eq!(world.take().rejected(), [(3, "shutting_down", 503)]);
    assert!(!world.control.is_idle());
    world.say(1, completed(1));
    assert!(world.control.is_idle());
}

#[test]
fn dispatch_begins_with_the_expected_sessions_or_after_the_wait() {
    let settings = Settings {
        sessions_expected: Some(2),
        ..settings()
    };
    let mut world = World {
        control: Control::new(settings, Instant::ZERO),
        ..World::new()
    };
    world.hello(1, 1, Vec::new(), Vec::new());
    world.take();
    world.say(1, Said::Register(register(1)));
    assert_eq!(world.take().granted(), [] as [u64; 0]);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.take().granted(), [1]);
}

#[test]
fn a_time_out_is_answered_in_the_contracts_words() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    world.say(1, Said::Register(register(2)));
    world.take();
    for _ in 0..31 {
        world.pass(Duration::from_secs(1));
        world.say(1, Said::Beat(wire::Beat {}));
    }
    let taken = world.take();
    assert_eq!(taken.outcomes, [Outcome::ExpiredTtl]);
    let Some((_, Kind::Reject(reject))) = taken
        .commands
        .iter()
        .find(|(_, kind)| matches!(kind, Kind::Reject(_)))
    else {
        panic!("rejected")
    };
    assert_eq!(reject.message, "Request timed out after 30s in queue");
    assert_eq!((reject.status, reject.code.as_str()), (503, "queue_timeout"));
    assert!(
        reject
            .retry_after_ms
            .is_some_and(|wait| (1_000..=120_000).contains(&wait))
    );
}

#[test]
fn what_a_filter_refused_is_counted_once_however_often_it_says_so() {
    let mut world = World::established();
    for (stream, expected) in [(2, (1, 0, 1)), (3, (0, 0, 0)), (4, (0, 0, 0))] {
        world.say(u64::from(stream) - 1, refused(1, false));
        let taken = world.take();
        assert_eq!(taken.counts(), expected);
        // The acknowledgement is lost with its stream.
        world
            .control
            .handle(world.now, Event::Closed(ConnId(u64::from(stream) - 1)));
        world.hello(stream.into(), stream, Vec::new(), Vec::new());
        world.take();
    }
    world.say(4, refused(2, false));
    assert_eq!(
        world.take().refused,
        ["gateway_unavailable".into()],
        "another one"
    );
}

#[test]
fn a_registered_one_that_another_companion_knew_is_counted_here() {
    let mut world = World::established();
    for expected in [(1, 0, 1), (0, 0, 0)] {
        world.say(1, refused(7, true));
        assert_eq!(world.take().counts(), expected);
    }
}

#[test]
fn one_that_waited_here_is_counted_as_cancelled_and_not_again() {
    let mut world = World::established();
    for sequence in 1..=3 {
        world.say(1, Said::Register(register(sequence)));
    }
    assert_eq!(world.take().counts(), (3, 1, 0), "the first goes");
    // The second is refused while the stream is up, the third while it is down.
    world.say(1, refused(2, true));
    assert_eq!(world.take().outcomes, [Outcome::Cancelled]);
    world.control.handle(world.now, Event::Closed(ConnId(1)));
    world.hello(2, 2, Vec::new(), vec![runs(1)]);
    assert_eq!(world.take().outcomes, [Outcome::Cancelled], "no longer named");
    for sequence in [2, 3] {
        world.say(2, refused(sequence, true));
        assert_eq!(world.take().counts(), (0, 0, 0));
    }
    assert_eq!((world.stock(), world.waiting()), (1, 0));
}

#[test]
fn one_whose_grant_was_lost_keeps_its_outcome() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.control.handle(world.now, Event::Closed(ConnId(1)));
    world.hello(2, 2, Vec::new(), Vec::new());
    world.take();
    for _ in 0..2 {
        world.say(2, refused(1, true));
        assert_eq!(world.take().counts(), (0, 0, 0));
        assert_eq!(world.stock(), 0, "its place is free");
    }
    // The same, if the refusal comes only after it was released.
    world.say(2, Said::Register(register(2)));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.control.handle(world.now, Event::Closed(ConnId(2)));
    world.hello(3, 3, Vec::new(), Vec::new());
    world.say(3, Said::Beat(wire::Beat {}));
    world.say(3, refused(2, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
}

#[test]
fn one_that_both_sides_refused_is_counted_as_what_was_decided_here() {
    let mut world = World::established();
    world.say(1, Said::Register(register(1)));
    world.say(1, Said::Register(register(2)));
    world.take();
    world.control.handle(world.now, Event::Closed(ConnId(1)));
    world.control.handle(world.now, Event::Drain(true));
    assert_eq!(world.take().outcomes, [Outcome::ShuttingDown]);
    world.hello(2, 2, Vec::new(), vec![runs(1)]);
    world.say(2, refused(2, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
}

#[test]
fn a_lost_answer_to_an_unknown_model_is_said_again_and_counted_once() {
    let mut world = World::established();
    let unknown = wire::Register {
        model: "gpt-9".into(),
        ..register(1)
    };
    world.say(1, Said::Register(unknown.clone()));
    assert_eq!(world.take().counts(), (1, 1, 0));
    world.control.handle(world.now, Event::Closed(ConnId(1)));
    world.hello(2, 2, vec![unknown], Vec::new());
    let taken = world.take();
    assert_eq!(taken.rejected(), [(1, "model_not_found", 404)]);
    assert_eq!(taken.counts(), (0, 0, 0));
    world.say(2, refused(1, true));
    assert_eq!(world.take().counts(), (0, 0, 0));
}
