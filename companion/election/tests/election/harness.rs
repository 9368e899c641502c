//! One candidate whose inputs a test makes by hand.

use std::time::Duration;

use penstock_election::{
    Answer, Candidate, Holder, Input, KnownEnvoy, Output, Pickers, Record, Report, Request, RoleChange,
    Settings, View,
};
use penstock_engine::Instant;

/// The candidate's address.
pub(crate) const OWN: &str = "10.0.0.1:9190";
/// Another companion's address.
pub(crate) const OTHER: &str = "10.0.0.2:9190";
/// The lease's duration.
pub(crate) const DURATION: Duration = Duration::from_millis(3_000);
/// The wall clock at the start.
pub(crate) const UNIX_MS: u64 = 1_000_000;

pub(crate) struct Bench {
    pub(crate) candidate: Candidate,
    now: Instant,
    version: u64,
}

pub(crate) fn envoys(ids: &[u64]) -> Vec<KnownEnvoy> {
    let known = ids.iter().map(|&envoy| KnownEnvoy { envoy, contexts: 2, digest: 7 });
    known.collect()
}

/// The record of another leader with Envoys.
pub(crate) fn others_record(term: u64) -> Record {
    Record { term, leader: OTHER.into(), envoys: envoys(&[7, 8]), ..Record::default() }
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(None)
    }

    /// A candidate for the leader of one pool.
    pub(crate) fn of_pool(pool: &str) -> Self {
        Self::with(Some(pool.into()))
    }

    fn with(pool: Option<String>) -> Self {
        let settings = Settings { address: OWN.into(), duration: DURATION, pool };
        let now = Instant::ZERO;
        Self { candidate: Candidate::new(settings, now, UNIX_MS), now, version: 0 }
    }

    /// A leader whose lease was free.
    pub(crate) fn leader() -> (Self, u64) {
        let mut bench = Self::new();
        bench.observe(Holder::None, None);
        let record = bench.acquisition();
        bench.done();
        let lead = bench.roles();
        assert!(matches!(lead[0], RoleChange::Lead { .. }), "{lead:?}");
        (bench, record.term)
    }

    /// A leader of one pool, whose lease was free.
    pub(crate) fn leader_of_pool(pool: &str) -> (Self, u64) {
        let mut bench = Self::of_pool(pool);
        bench.observe(Holder::None, None);
        bench.pass(DURATION / 30);
        let record = bench.acquisition();
        bench.done();
        bench.outputs();
        (bench, record.term)
    }

    pub(crate) fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    /// A leader that completed its takeover and has these Envoys.
    pub(crate) fn leader_of(ids: &[u64]) -> (Self, u64) {
        let (mut bench, term) = Self::leader();
        bench.handle(Report::Known { term, envoys: envoys(ids), pickers: Pickers::default() });
        assert_eq!(bench.written().envoys, envoys(ids));
        bench.done();
        (bench, term)
    }

    /// A leader whose takeover from another one isn't complete.
    pub(crate) fn takeover() -> (Self, Record) {
        let mut bench = Self::new();
        bench.observe(Holder::None, Some(others_record(UNIX_MS + 50)));
        bench.handle(Report::Wanted);
        let record = bench.acquisition();
        bench.done();
        assert!(matches!(bench.roles()[..], [RoleChange::Lead { .. }]));
        (bench, record)
    }

    pub(crate) fn now(&self) -> Instant {
        self.now
    }

    pub(crate) fn handle(&mut self, input: impl Into<Input>) {
        self.candidate.handle(self.now, input.into());
    }

    /// A state that is newer than all before.
    pub(crate) fn observe(&mut self, holder: Holder, record: Option<Record>) {
        self.version += 1;
        let version = self.version;
        self.handle(Input::Observed(View { holder, record, version }));
    }

    pub(crate) fn done(&mut self) {
        self.version += 1;
        let version = self.version;
        self.handle(Input::Answered(Answer::Done { version }));
    }

    /// Passes time, with the candidate's timers.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while let Some(due) = self.candidate.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.candidate.handle_timeout(self.now);
        }
        self.now = end;
    }

    /// Passes time in which the process doesn't run.
    pub(crate) fn suspend(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.pass(Duration::ZERO);
    }

    pub(crate) fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.candidate.poll_output()).collect()
    }

    /// All outputs, which are changes of the role.
    pub(crate) fn roles(&mut self) -> Vec<RoleChange> {
        let roles = self.outputs().into_iter().map(|output| match output {
            Output::Role(change) => change,
            Output::Request(_) | Output::Claim { .. } => panic!("not a role: {output:?}"),
        });
        roles.collect()
    }

    /// The only output, which is a request.
    pub(crate) fn request(&mut self) -> Request {
        let mut outputs = self.outputs();
        match (outputs.pop(), outputs.is_empty()) {
            (Some(Output::Request(request)), true) => request,
            other => panic!("no single request: {other:?} after {outputs:?}"),
        }
    }

    /// The last of all outputs, which is an acquisition.
    pub(crate) fn acquisition(&mut self) -> Record {
        match self.outputs().pop() {
            Some(Output::Request(Request::Acquire { record, .. })) => record,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn written(&mut self) -> Record {
        match self.request() {
            Request::Write { record, .. } => record,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn released(&mut self) -> Record {
        match self.request() {
            Request::Release { record, .. } => record,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn stand_by(leader: Option<&str>, term: u64) -> RoleChange {
    RoleChange::StandBy { leader: leader.map(Into::into), term }
}
