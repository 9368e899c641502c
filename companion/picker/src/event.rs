//! What reaches a worker.

use std::sync::Arc;

use bytes::Bytes;
use penstock_filter_core::effect::SessionId;

use crate::generated::ProcessingRequest;
use crate::outbox::Outbox;

/// What a worker learns of.
pub(crate) enum Event {
    /// A stream of the gateway has begun, at the port of this pool.
    StreamOpened(u32, Outbox, Option<Arc<str>>),
    /// A message has arrived on a stream.
    Message(u32, Box<ProcessingRequest>),
    /// A stream has ended.
    StreamClosed(u32),
    /// A frame of the companion has arrived on a session, the one with this number.
    Frame(SessionId, u64, Bytes),
    /// The companion has closed a session.
    SessionClosed(SessionId, u64),
}
