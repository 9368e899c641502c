//! The events of a world: everything that can be scheduled for a time.

use penstock_election::{Answer, Request, View};

/// A scheduled event. Numbers without a name in the comment are the subject's id.
#[derive(Debug)]
pub(super) enum SimEvent {
    /// The next client sends its request.
    ClientArrives,
    /// The rest of a request's body reaches this HTTP stream.
    BodyArrives(u64),
    /// A client disconnects, whatever the state of its request.
    ClientLeaves(u64),
    /// The filter's local reply goes out on this HTTP stream.
    LocalReply(u64),
    /// Envoy tries the next host in a resumed HTTP stream's list.
    TryNextHost(u64),
    /// An HTTP stream's attempt at a host failed.
    AttemptFailed(u64, AttemptError),
    /// A server refused an HTTP stream's attempt by itself.
    AttemptPushedBack(u64),
    /// A job at a server starts or ends its response.
    JobStep(u64),
    /// Envoy's idle timeout for an HTTP stream.
    ClientGivesUp(u64),
    /// A root context's tick; the second number is the timer's, and a timer that was replaced is ignored.
    Tick(u64, u64),
    /// A message reaches the companion's end of a stream.
    AtCompanion(u64, ToCompanion),
    /// A message reaches the filter's end of a stream.
    AtFilter(u64, ToFilter),
    /// The companion of this generation processes its inbox.
    CompanionInbox(u64),
    /// The companion's timer: generation and timer number.
    CompanionTimer(u64, u64),
    /// The companion with this index starts.
    CompanionStarts(usize),
    /// A draining companion of this generation exits.
    CompanionExit(u64),
    /// A frozen companion of this generation continues.
    CompanionThaws(u64),
    /// The connections to the companion of this generation fail, if it is still frozen.
    KeepalivesFail(u64),
    /// A connection fails because of a partition: its stream.
    KeepaliveFails(u64),
    /// A request of the companion of this generation arrives at the store of the lease; the second number is the request's.
    AtStore(u64, u64, Request),
    /// The store's answer to such a request arrives.
    StoreAnswers(u64, u64, Answer),
    /// The store's state arrives at the companion of this generation.
    StoreView(u64, View),
    /// The companion of this generation is connected to the store again.
    StoreConnects(u64),
    /// A claim of the companion at this address arrives at the companion of this generation.
    Claim(u64, String),
    /// The lease may have expired.
    LeaseExpires,
    /// The store starts again.
    StoreStarts,
    /// The timer of a companion's candidate: generation and timer number.
    CandidateTimer(u64, u64),
    /// A candidate that continues after a freeze takes what has arrived.
    CandidateInbox(u64),
    /// The wall clock of the companion with this index is set ahead by so many seconds, or back.
    WallClockJumps(usize, i64),
    /// A worker's VM is loaded again: Envoy and worker.
    VmReloads(u64, usize),
    /// A killed Envoy starts again.
    EnvoyRestarts(u64),
    /// The listener of a root context's old plugin configuration has finished draining.
    RootRetires(u64),
    /// The next fault is injected.
    NextFault,
    /// A fault's effect ends.
    Repair(Repair),
}

/// A message to the companion's end of a stream.
#[derive(Debug)]
pub(super) enum ToCompanion {
    Open,
    Frame(Vec<u8>),
    End,
}

/// A message to the filter's end of a stream.
#[derive(Debug)]
pub(super) enum ToFilter {
    Frame(Vec<u8>),
    End,
}

/// Why an attempt at a host failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptError {
    /// The host refused the connection.
    Refused,
    /// The host accepted the request and closed the connection before a response.
    Reset,
}

/// What is put right when a fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    /// This server works normally again.
    ServerMode(usize),
    /// This server passes its health check again.
    EndpointReady(usize),
    /// This Envoy has the missing host in its cluster again.
    MissingHost(usize),
    /// A process with the newest term replaces the older one of the companion with this index.
    OlderCompanion(usize),
    /// This server is listed as an endpoint again.
    RemovedEndpoint(usize),
    /// This pool is configured again.
    RemovedPool(usize),
}
