//! How a host carries out an action on an HTTP stream. It keeps the actions in the order of the worker's decisions, until it may act on the
//! stream.

use crate::effect::{self, StreamAction};
use crate::header_sanitizer::HeaderEdit;
use crate::local_reply::LocalReply;
use crate::rewrite::Rewrite;
use crate::time::Instant;
use crate::worker::{SilentEnd, Worker};

/// A stream as its host acts on it, outside of the stream's own callbacks.
pub trait ActedOn {
    /// Calls `f` with the stream's worker and the present time. `None`: the worker is gone.
    fn with_worker<T>(&mut self, f: impl FnOnce(&mut Worker, Instant) -> T) -> Option<T>;

    /// Rewrites the buffered body of the request. `false`: the host fails.
    fn rewrite(&mut self, rewrite: &Rewrite) -> bool;

    /// Edits the request's headers, and lets the request go on.
    fn resume_request(&mut self, edits: Vec<HeaderEdit>);

    /// Answers the request, which no server has answered.
    fn reply(&mut self, reply: LocalReply);

    /// Lets the response go on.
    fn resume_response(&mut self);

    /// Answers the request in place of its server, whose response has begun, and of which the client has received nothing.
    fn replace_response(&mut self, reply: LocalReply);

    /// Resets the stream, whose client has received a part of the response.
    fn reset(&mut self);

    /// Bytes of the request's body that the host has received, as far as it knows.
    fn received_bytes(&mut self) -> u64;
}

impl StreamAction {
    /// Carries the action out, if it still applies.
    pub fn carry_out(self, stream: &mut impl ActedOn) {
        match self {
            Self::Resume { edits, rewrite } => {
                if rewrite.is_none_or(|rewrite| stream.rewrite(&rewrite)) {
                    stream.resume_request(edits);
                } else {
                    stream.reply(effect::rewrite_failed());
                }
            }
            Self::Reply(reply) => stream.reply(reply),
            Self::Evict { sequence, reply } => {
                if stream.with_worker(|worker, now| worker.evict(now, sequence, reply.status)) == Some(true) {
                    stream.reply(reply);
                }
            }
            Self::ResumeResponse { sequence } => {
                if stream.with_worker(|worker, _| worker.resume_response(sequence)) == Some(true) {
                    stream.resume_response();
                }
            }
            Self::EndSilentResponse { sequence } => {
                let end = stream.with_worker(|worker, now| worker.end_silent_response(now, sequence));
                match end.flatten() {
                    Some(SilentEnd::Reply(reply)) => stream.replace_response(reply),
                    Some(SilentEnd::Reset) => stream.reset(),
                    None => {}
                }
            }
            Self::CountReceived { sequence } => {
                let bytes = stream.received_bytes();
                let reply = stream.with_worker(|worker, now| worker.handle_received(now, sequence, bytes));
                if let Some(reply) = reply.flatten() {
                    stream.reply(reply);
                }
            }
        }
    }
}
