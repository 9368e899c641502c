//! What goes into a candidate and what comes out of it.

use penstock_engine::Instant;

use crate::record::{KnownEnvoy, Pickers, Record};

/// The holder of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The lease is free: it was released, or it expired.
    None,
    /// This process.
    Me,
    /// Another process.
    Other,
}

/// The lease and the record at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The holder of the lease.
    pub holder: Holder,
    /// The record; `None` if there is none.
    pub record: Option<Record>,
    /// The store's number of this state. It rises with every change of the lease or the record.
    pub version: u64,
}

/// The store's answer to the outstanding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request succeeded. `version`: the store's number of the new state.
    Done {
        /// As in [`View::version`].
        version: u64,
    },
    /// The lease or the record was not as in the version that the request named, and nothing changed. A view follows.
    Refused,
    /// The store could not be reached, did not answer in time, or reported a failure.
    Failed,
}

/// An input of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// From the store: the present state, after connecting and after each change.
    Observed(View),
    /// From the store: the answer to the last request. Answers to earlier requests must be dropped.
    Answered(Answer),
    /// From the control.
    Reported(Report),
    /// From another companion: it asks for the pool. A leader steps down if [`Candidate::yields_to`](crate::Candidate::yields_to)
    /// that companion.
    Yield {
        /// Where the other companion listens for filters.
        to: String,
    },
    /// From the process: give the lease up and never take it again.
    Resign,
    /// From the process: as [`Input::Resign`], and this companion's endpoint picker follows the next leader, which waits for it.
    Leave,
    /// From the process: send no more requests. The lease expires by itself.
    Stop,
}

impl From<Report> for Input {
    fn from(report: Report) -> Self {
        Self::Reported(report)
    }
}

/// A report of the control to its candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// A filter asks this standby, and there is no leader that the filter can reach.
    Wanted,
    /// A filter follows a leader with this term, which is higher than the one here.
    Superseded {
        /// The term that the filter named.
        term: u64,
    },
    /// This companion has the lease, but the filters stay with the last leader.
    Unfollowed {
        /// The term of the control.
        term: u64,
    },
    /// The Envoys with sessions at this leader. The first one after [`RoleChange::Lead`] says that the takeover is complete, later
    /// ones that the Envoys changed.
    Known {
        /// The term of the control.
        term: u64,
        /// The Envoys with sessions here.
        envoys: Vec<KnownEnvoy>,
        /// The endpoint pickers with sessions here.
        pickers: Pickers,
    },
}

/// A request to the store. The candidate waits for the answer before it sends the next request. If the answer is late, it
/// counts as failed; the caller drops the request and its answer when the next request comes.
///
/// `version` is that of the last state that the candidate has seen. The store must refuse the request if the state is a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Take the free lease, and write the record.
    Acquire {
        /// As in [`View::version`].
        version: u64,
        /// The new record.
        record: Record,
    },
    /// Extend the lease, which this process holds.
    Renew {
        /// As in [`View::version`].
        version: u64,
    },
    /// Replace the record while this process holds the lease.
    Write {
        /// As in [`View::version`].
        version: u64,
        /// The new record.
        record: Record,
    },
    /// Give the lease up, and write the record.
    Release {
        /// As in [`View::version`].
        version: u64,
        /// The new record.
        record: Record,
    },
}

/// A decision of the election, for the control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleChange {
    /// This companion has the lease. It leads when the filters of the last leader ask here.
    Lead {
        /// Higher than any before.
        term: u64,
        /// The Envoys of the last leader. Their requests must be counted before the first grant.
        known: Vec<KnownEnvoy>,
        /// The endpoint pickers that outlive the last leader, or follow it. Their requests must be counted, too.
        pickers: Vec<KnownEnvoy>,
        /// The last leader grants nothing any more: it released the lease, had no Envoys, or had this companion's address.
        is_last_leader_gone: bool,
        /// When granting must stop, unless the lease is renewed.
        grants_until: Instant,
    },
    /// The leader holds the lease for longer.
    Renewed {
        /// The term in the store, which is higher than before if the lease had ended meanwhile.
        term: u64,
        /// When granting must stop, unless the lease is renewed again.
        grants_until: Instant,
    },
    /// The leader can't reach the store, whose record names exactly its Envoys: no other companion takes over before one of their filters
    /// has left it. Sent once, until the next renewal.
    StoreUnreachable {
        /// The Envoys that the record names.
        recorded: Vec<KnownEnvoy>,
    },
    /// This companion doesn't lead, and grants nothing. A leader gives up its sessions and requests.
    StandBy {
        /// Where the leader listens for filters; `None` if no other leader is known.
        leader: Option<String>,
        /// The highest known term.
        term: u64,
    },
}

/// An output of a candidate, to be carried out in order: the control must have applied a change before a later request is
/// sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A request to the store.
    Request(Request),
    /// A change for the control.
    Role(RoleChange),
    /// The pool prefers this companion: if it could serve the pool, ask the leader at this address to leave the pool to it, once. The
    /// leader may refuse or not answer; the candidate asks again.
    Claim {
        /// Where the leader listens for filters.
        leader: String,
    },
}

/// What a companion is at present. A candidate, which knows only the lease, is a leader or a standby.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The companion leads, because there is no other one.
    Alone,
    /// Another companion leads, or none.
    #[default]
    Standby,
    /// The companion has the lease, and waits for the filters of the last leader.
    TakingOver,
    /// The companion leads: it grants.
    Leader,
}

/// The role of a companion, and the leader that it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleStatus {
    /// The companion's role.
    pub role: Role,
    /// The companion's term; of a standby, the highest term that it knows; 0 if it knows none.
    pub term: u64,
    /// Where the leader listens for filters; `None` if no leader is known. A control doesn't know where its own companion listens.
    pub leader: Option<String>,
}

impl RoleStatus {
    /// The companion leads. Until the filters follow it, it doesn't.
    #[must_use]
    pub const fn is_leader(&self) -> bool {
        matches!(self.role, Role::Alone | Role::Leader)
    }
}
