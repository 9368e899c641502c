//! Decisions of a worker, as data that its host carries out.

use penstock_wire::Api;
use penstock_wire::Code;

use crate::header_sanitizer::HeaderEdit;
use crate::local_reply::{Failure, LocalReply};
use crate::rewrite::Rewrite;
use crate::session::SessionEffect;

/// A session of a worker. An id is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub(crate) u32);

impl SessionId {
    /// The session that every worker has.
    pub const MAIN: Self = Self(0);
}

/// An action that the host carries out outside of a stream's own callback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// An action on a session's gRPC stream.
    Session(SessionId, SessionEffect),
    /// An action on an HTTP stream.
    Stream {
        /// The host's id of the stream.
        context: u32,
        /// The action.
        action: StreamAction,
    },
    /// Write a line with the level `error` into Envoy's log.
    LogError(String),
}

/// An action on an HTTP stream. `sequence` is the worker's number of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamAction {
    /// Edit the headers of a paused request, and let it go on.
    Resume {
        /// The header edits.
        edits: Vec<HeaderEdit>,
        /// A rewrite of the buffered body, without which the request must not go on.
        rewrite: Option<Rewrite>,
    },
    /// Answer a paused request.
    Reply(LocalReply),
    /// Answer a request that is at its server, if the server hasn't begun to respond by then.
    Evict {
        /// The request.
        sequence: u64,
        /// The answer.
        reply: LocalReply,
    },
    /// Let a held response go on to the client, if it is held still.
    ResumeResponse {
        /// The request.
        sequence: u64,
    },
    /// End the response of a server that is silent, if it is silent still.
    EndSilentResponse {
        /// The request.
        sequence: u64,
    },
    /// Count what has arrived of a paused request's body, of which the filter gets nothing.
    CountReceived {
        /// The request.
        sequence: u64,
    },
}

/// The host's action on a request after its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadersAction {
    /// Pass the request through with these edits. The worker doesn't track it.
    Pass(Vec<HeaderEdit>),
    /// The request would pass through, but has no endpoint, or the filter knows the answer: send this reply. The worker doesn't track it.
    Answer(LocalReply),
    /// Edit the headers, buffer the body and pause. The worker tracks the request by this sequence number.
    Pause(u64, Vec<HeaderEdit>),
    /// Send this reply. The worker tracks the request by this sequence number until its log entry.
    Reply(u64, LocalReply),
}

/// The host's action on a request after more of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyAction {
    /// Keep the stream paused.
    Pause,
    /// Send this reply.
    Reply(LocalReply),
    /// Edit the request headers and continue.
    Continue(Vec<HeaderEdit>),
}

/// The host's action on a response after its headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHeadersAction {
    /// Edits of the response headers.
    pub edits: Vec<HeaderEdit>,
    /// A body to send in place of the response's body.
    pub body: Option<Vec<u8>>,
    /// Hold the headers, and the body that follows them.
    pub is_held: bool,
    /// Restart the stream instead: drop the response, and send the request in again as a new stream, whose headers go to
    /// `Worker::handle_restarted_headers`. Only for a host whose [`crate::properties::Properties::can_restart`] has agreed.
    pub is_restarted: bool,
}

/// The host's action on a response after more of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseBodyAction {
    /// Pass everything on that has arrived.
    Pass,
    /// Hold everything that has arrived, headers included.
    Hold,
    /// Put these bytes in the place of everything that has arrived and not gone on, then pass it on, or hold it.
    Edit {
        /// The bytes.
        bytes: Vec<u8>,
        /// Hold them.
        is_held: bool,
    },
    /// Send this reply in place of the response, of which the client has received nothing.
    Replace(LocalReply),
}

/// The reply to a request that comes in a second time while it is queued.
#[must_use]
pub(crate) fn returned_twice() -> LocalReply {
    let message = "The gateway has this request in its queue already.";
    Failure::new(503, Code::UpstreamUnavailable, message).reply(Api::Unspecified, None)
}

/// The reply if the host fails to rewrite a body, which can't be sent as it is.
#[must_use]
pub(crate) fn rewrite_failed() -> LocalReply {
    let message = "The gateway couldn't put the model's real name into the body.";
    Failure::new(500, Code::Internal, message).reply(Api::Unspecified, None)
}
