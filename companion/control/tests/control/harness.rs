//! The harness: a control, its filters' frame numbers, and a clock that the test moves. Every event is audited.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_control::{
    ConnId, Control, Decided, Door, Dropped, EndpointSettings, Event, Kept, Observation, Output, PoolNews,
    PoolSettings, Refused, RequestNews, SessionNews, Settings,
};
use penstock_engine::effect::BudgetReport;
use penstock_engine::input::{PastUsage, RunningUsage};
use penstock_engine::policy::{Gate, Policy, Queue};
use penstock_engine::units::Decimal;
use penstock_engine::{HealthState, Instant, Outcome};
use penstock_wire as wire;
use wire::command::Kind;
use wire::filter_frame::Event as Message;

pub(crate) const SERVER: &str = "127.0.0.1:8001";
pub(crate) const SECOND: &str = "127.0.0.1:8002";
pub(crate) const THIRD: &str = "127.0.0.1:8003";
/// The gateway's own listener, where a requeued request comes in.
pub(crate) const AGAIN: &str = "127.0.0.1:9999";

pub(crate) fn policy() -> Policy {
    Policy {
        queue: Queue { total_capacity: 10, total_bytes: 1 << 20, flow_capacity: 10, ..Queue::default() },
        gate: Gate::requests(Decimal::whole(1)),
        ..Policy::default()
    }
}

/// One pool of one server, which takes one request at a time.
pub(crate) fn settings() -> Settings {
    settings_of(&[SERVER])
}

/// One pool of these servers, each of which takes one request at a time.
pub(crate) fn settings_of(servers: &[&str]) -> Settings {
    let endpoint =
        |address: &&str| EndpointSettings { address: (*address).into(), ..EndpointSettings::default() };
    Settings {
        pools: vec![PoolSettings {
            name: "chat".into(),
            models: vec!["llama-*".into()],
            endpoints: servers.iter().map(endpoint).collect(),
            policy: policy(),
            requeues: Some(3),
            reported: true,
            shared: true,
            ..PoolSettings::default()
        }],
        policy: wire::Policy { digest: "d1".into(), ..Default::default() },
        sessions_expected: Some(1),
        startup_wait: Duration::from_secs(2),
        flows_shown: 10,
        term: 7,
        seed: 1,
        ..Settings::default()
    }
}

/// The fields of a Hello that tests vary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    pub(crate) epoch: u64,
    pub(crate) stream: u32,
    pub(crate) envoy: u64,
    pub(crate) can_requeue: bool,
}

/// A filter on its first stream, of the Envoy that all filters have by default.
pub(crate) const fn filter(epoch: u64) -> Filter {
    Filter { epoch, stream: 1, envoy: 77, can_requeue: true }
}

pub(crate) struct World {
    pub(crate) control: Control,
    pub(crate) now: Instant,
    seq: BTreeMap<u64, u64>,
    acks: BTreeMap<u64, u64>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(settings())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self {
            control: Control::new(settings, Instant::ZERO),
            now: Instant::ZERO,
            seq: BTreeMap::new(),
            acks: BTreeMap::new(),
        }
    }

    /// A world with an open session on stream 1 and no outputs.
    pub(crate) fn established() -> Self {
        let mut world = Self::new();
        world.open_session(1, 1, Vec::new(), Vec::new());
        world.take();
        world
    }

    pub(crate) fn handle(&mut self, event: Event) {
        self.control.handle(self.now, event);
        self.audit();
    }

    pub(crate) fn audit(&self) {
        if let Err(error) = self.control.audit() {
            panic!("{error}");
        }
    }

    pub(crate) fn open(&mut self, conn: u64) {
        self.handle(Event::Opened(ConnId(conn), Door::Filter));
    }

    /// The stream of a session of the companion's own endpoint picker.
    pub(crate) fn open_for_picker(&mut self, conn: u64) {
        self.handle(Event::Opened(ConnId(conn), Door::Picker));
    }

    pub(crate) fn close(&mut self, conn: u64) {
        self.handle(Event::Closed(ConnId(conn)));
    }

    /// The next frame on this stream, which acknowledges all that was taken from it.
    pub(crate) fn send(&mut self, conn: u64, message: Message) {
        self.send_frame(conn, Vec::new(), Some(message));
    }

    /// The next frame on this stream, with the report of a request that was admitted by credit.
    pub(crate) fn report(&mut self, conn: u64, report: wire::Admitted) {
        self.send_frame(conn, vec![report], None);
    }

    pub(crate) fn send_frame(&mut self, conn: u64, admitted: Vec<wire::Admitted>, event: Option<Message>) {
        let seq = self.seq.entry(conn).or_default();
        *seq += 1;
        let frame = wire::FilterFrame {
            seq: *seq,
            ack: self.acks.get(&conn).copied().unwrap_or_default(),
            admitted,
            event,
        };
        self.handle(Event::Frame(ConnId(conn), Box::new(frame)));
    }

    pub(crate) fn open_session(
        &mut self,
        conn: u64,
        stream: u32,
        waiting: Vec<wire::Register>,
        running: Vec<wire::Running>,
    ) {
        let filter = Filter { stream, envoy: 0, ..filter(2) };
        self.greet(conn, filter, waiting, running);
    }

    pub(crate) fn greet(
        &mut self,
        conn: u64,
        filter: Filter,
        waiting: Vec<wire::Register>,
        running: Vec<wire::Running>,
    ) {
        self.open(conn);
        self.send(conn, Message::Hello(hello(filter, waiting, running)));
    }

    /// Lets time pass, with all timers on the way.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let until = self.now.after(duration);
        while let Some(due) = self.control.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.control.handle_timeout(self.now);
            self.audit();
        }
        self.now = until;
    }

    /// Lets time pass while these streams beat.
    pub(crate) fn pass_beating(&mut self, seconds: u64, conns: &[u64]) {
        for _ in 0..seconds {
            self.pass(Duration::from_secs(1));
            for conn in conns {
                self.send(*conn, Message::Heartbeat(wire::Heartbeat::default()));
            }
        }
    }

    /// All outputs: commands by stream, and the rest.
    pub(crate) fn take(&mut self) -> Taken {
        let mut taken = Taken::default();
        while let Some(output) = self.control.poll_output() {
            match output {
                Output::Send(conn, frame) => {
                    self.acks.insert(conn.0, frame.seq);
                    let kinds = frame.commands.into_iter().filter_map(|command| command.kind);
                    taken.commands.extend(kinds.map(|kind| (conn.0, kind)));
                }
                Output::Close(conn, _) => taken.closed.push(conn.0),
                Output::Observe(observation) => taken.observe(observation),
                Output::Election(report) => taken.reports.push(report),
            }
        }
        taken
    }

    pub(crate) fn stock(&self) -> u64 {
        self.control.status(self.now).pools[0].snapshot.stock
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.control.status(self.now).pools[0].snapshot.waiting
    }
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Taken {
    pub(crate) commands: Vec<(u64, Kind)>,
    pub(crate) closed: Vec<u64>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) arrived: usize,
    pub(crate) refused: Vec<Box<str>>,
    /// Second outcomes of requests that had been granted, by name, and how often these were requeued.
    pub(crate) second: Vec<(Box<str>, u32)>,
    pub(crate) bad_deadlines: usize,
    pub(crate) lowered: usize,
    pub(crate) requeued: usize,
    pub(crate) misrouted: usize,
    pub(crate) out_of_files: usize,
    /// Filters that got no session because they don't check API keys.
    /// Requests that wait and run, of sessions that were lost.
    pub(crate) orphaned: Vec<(usize, usize)>,
    /// Settled costs that count in a window, by pool.
    pub(crate) used: Vec<(Arc<str>, PastUsage)>,
    /// What flows run, in order, by pool.
    pub(crate) running: Vec<(Arc<str>, RunningUsage)>,
    /// What has happened to budgets, in order, by pool.
    pub(crate) budgets: Vec<(Arc<str>, BudgetReport)>,
    /// Parameters to be stored, by pool and variant.
    pub(crate) learned: Vec<(Arc<str>, String, Kept)>,
    /// Endpoints that refused a request, with the status.
    pub(crate) pushed_back: Vec<(Arc<str>, u16)>,
    /// For the election of the leader.
    pub(crate) reports: Vec<penstock_election::Report>,
    /// Endpoints that were marked down (`true`), or are tried again.
    pub(crate) marked: Vec<(Box<str>, bool)>,
    pub(crate) client_retries: Vec<u32>,
}

impl Taken {
    fn observe(&mut self, observation: Observation) {
        match observation {
            Observation::Pool(pool, PoolNews::Used(used)) => self.used.push((pool, used)),
            Observation::Pool(pool, PoolNews::Running(running)) => self.running.push((pool, running)),
            Observation::Pool(pool, PoolNews::Budget(report)) => self.budgets.push((pool, report)),
            Observation::Pool(pool, PoolNews::Learned { variant, kept }) => {
                self.learned.push((pool, variant, kept))
            }
            Observation::Request(_, RequestNews::Decided(Decided { outcome, .. })) => {
                self.outcomes.push(outcome)
            }
            Observation::Request(_, RequestNews::Arrived(_)) => self.arrived += 1,
            Observation::Request(_, RequestNews::ClientRetry(retries)) => self.client_retries.push(retries),
            Observation::Request(_, RequestNews::BadDeadline) => self.bad_deadlines += 1,
            Observation::Request(_, RequestNews::PriorityLowered) => self.lowered += 1,
            Observation::Request(_, RequestNews::Requeued) => self.requeued += 1,
            Observation::Request(_, RequestNews::Misrouted(_)) => self.misrouted += 1,
            Observation::Request(
                _,
                RequestNews::Refused(Refused { outcome, was_granted: true, requeues, .. }),
            ) => self.second.push((outcome, requeues)),
            Observation::Request(_, RequestNews::Refused(Refused { outcome, .. })) => {
                self.refused.push(outcome)
            }
            Observation::Request(
                _,
                RequestNews::Dropped(Dropped {
                    outcome: Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched,
                    ..
                }),
            ) => {}
            Observation::Request(_, RequestNews::Dropped(Dropped { outcome, requeues, .. })) => {
                self.second.push((outcome.as_str().into(), requeues));
            }
            Observation::Session(_, SessionNews::Orphaned { waiting, running, .. }) => {
                self.orphaned.push((waiting, running))
            }
            Observation::Pool(_, PoolNews::PushedBack { endpoint, status, .. }) => {
                self.pushed_back.push((endpoint, status))
            }
            // `counting` has tests of its own.
            Observation::Pool(_, PoolNews::Estimated(_)) => {}
            Observation::Pool(_, PoolNews::OutOfFiles) => self.out_of_files += 1,
            Observation::Pool(_, PoolNews::Health { endpoint, before, state, .. }) => {
                let is_out = |state| matches!(state, HealthState::Down | HealthState::Failing);
                if is_out(before) != is_out(state) {
                    self.marked.push(((*endpoint).into(), is_out(state)));
                }
            }
            // The end-to-end tests of clients that leave have it.
            Observation::Pool(_, PoolNews::Abandoned { .. })
            | Observation::Alive(_)
            | Observation::Session(_, SessionNews::Opened { .. })
            | Observation::Session(_, SessionNews::Closed(_))
            | Observation::Request(_, RequestNews::Completed(_)) => {}
        }
    }

    /// Arrivals, outcomes by the companion, and outcomes by the filter.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.arrived, self.outcomes.len(), self.refused.len())
    }

    pub(crate) fn grants(&self) -> Vec<(u64, &wire::Grant)> {
        let grants = self.commands.iter().filter_map(|(conn, kind)| match kind {
            Kind::Grant(grant) => Some((*conn, grant)),
            Kind::HelloAck(_)
            | Kind::Policy(_)
            | Kind::Reject(_)
            | Kind::Endpoints(_)
            | Kind::Bye(_)
            | Kind::Role(_)
            | Kind::Credit(_)
            | Kind::ModelList(_)
            | Kind::Evict(_)
            | Kind::Recall(_) => None,
        });
        grants.collect()
    }

    pub(crate) fn roles(&self) -> Vec<(u64, &wire::Role)> {
        let roles = self.commands.iter().filter_map(|(conn, kind)| match kind {
            Kind::Role(role) => Some((*conn, role)),
            _ => None,
        });
        roles.collect()
    }

    /// How often places were given.
    pub(crate) fn given(&self) -> usize {
        let given = self.commands.iter().filter(|(_, kind)| match kind {
            Kind::Credit(credit) => !credit.endpoints.is_empty(),
            _ => false,
        });
        given.count()
    }

    pub(crate) fn granted(&self) -> Vec<u64> {
        self.grants().iter().map(|(_, grant)| grant.sequence).collect()
    }

    pub(crate) fn endpoints(&self) -> Vec<(u64, &wire::Endpoints)> {
        let endpoints = self.commands.iter().filter_map(|(conn, kind)| match kind {
            Kind::Endpoints(endpoints) => Some((*conn, endpoints)),
            Kind::HelloAck(_)
            | Kind::Policy(_)
            | Kind::Reject(_)
            | Kind::Grant(_)
            | Kind::Bye(_)
            | Kind::Role(_)
            | Kind::Credit(_)
            | Kind::ModelList(_)
            | Kind::Evict(_)
            | Kind::Recall(_) => None,
        });
        endpoints.collect()
    }

    pub(crate) fn rejects(&self) -> Vec<&wire::Reject> {
        let rejects = self.commands.iter().filter_map(|(_, kind)| match kind {
            Kind::Reject(reject) => Some(reject),
            Kind::HelloAck(_)
            | Kind::Policy(_)
            | Kind::Grant(_)
            | Kind::Endpoints(_)
            | Kind::Bye(_)
            | Kind::Role(_)
            | Kind::Credit(_)
            | Kind::ModelList(_)
            | Kind::Evict(_)
            | Kind::Recall(_) => None,
        });
        rejects.collect()
    }

    pub(crate) fn rejected(&self) -> Vec<(u64, &str, u32)> {
        let rejects = self.rejects().into_iter();
        rejects.map(|reject| (reject.sequence, reject.code.as_str(), reject.status)).collect()
    }
}

pub(crate) fn hello(
    filter: Filter,
    waiting: Vec<wire::Register>,
    running: Vec<wire::Running>,
) -> wire::Hello {
    wire::Hello {
        epoch_hi: 1,
        epoch_lo: filter.epoch,
        stream: filter.stream,
        version_min: wire::limits::VERSION_MIN,
        version_max: wire::limits::VERSION_MAX,
        node: "envoy".into(),
        last: true,
        waiting,
        running,
        envoy: filter.envoy,
        no_requeue: !filter.can_requeue,
        ..Default::default()
    }
}

pub(crate) fn register(sequence: u64) -> wire::Register {
    wire::Register {
        sequence,
        model: "llama-8b".into(),
        prompt_bytes: 400,
        fairness_id: "acme".into(),
        ..Default::default()
    }
}

/// A requeued request that had this sequence number at that filter.
pub(crate) fn again(sequence: u64, epoch: u64, before: u64) -> wire::Register {
    wire::Register {
        requeues: 1,
        requeued_from: Some(wire::RequestKey { epoch_hi: 1, epoch_lo: epoch, sequence: before }),
        ..register(sequence)
    }
}

pub(crate) fn runs(sequence: u64) -> wire::Running {
    runs_as(register(sequence), SERVER)
}

pub(crate) fn runs_as(register: wire::Register, endpoint: &str) -> wire::Running {
    wire::Running {
        register: Some(register),
        pool: "chat".into(),
        endpoint: endpoint.into(),
        age_us: 5,
        started: true,
        first_token: false,
        prefill_endpoint: String::new(),
    }
}

pub(crate) fn completed(sequence: u64) -> Message {
    completed_at(sequence, SERVER)
}

pub(crate) fn completed_at(sequence: u64, endpoint: &str) -> Message {
    Message::Completed(wire::Completed {
        sequence,
        endpoint: endpoint.into(),
        status: 200,
        end: wire::EndReason::Served.into(),
        prompt_tokens: Some(100),
        output_tokens: Some(10),
        ..Default::default()
    })
}

pub(crate) fn started(sequence: u64, endpoint: &str, attempts: u32) -> Message {
    Message::Started(wire::Started {
        sequence,
        endpoint: endpoint.into(),
        status: 200,
        attempts,
        after_us: 1,
        first_token: false,
    })
}

pub(crate) fn refused(sequence: u64, registered: bool) -> Message {
    Message::Refused(wire::Refused {
        sequence,
        code: "gateway_unavailable".into(),
        outcome: "gateway_unavailable".into(),
        status: 503,
        model: "llama-8b".into(),
        registered,
        ..Default::default()
    })
}
