//! Decisions as data: what a worker asks of its host.

use penstock_wire::{Api, names::code};

use crate::{
    header_sanitizer::HeaderEdit,
    local_reply::{Failure, LocalReply},
    rewrite::Rewrite,
    session::SessionEffect,
};

/// What the host shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Something for the session's stream.
    Session(SessionEffect),
    /// Apply these to the request headers of this HTTP stream, then resume it.
    Resume {
        /// The host's number of the HTTP stream.
        context: u32,
        /// The changes.
        edits: Vec<HeaderEdit>,
        /// A change to the body that is held; if that can't be done, the stream is to be answered `effect::unwritten`.
        rewrite: Option<Rewrite>,
    },
    /// LocalReply this HTTP stream.
    Reply {
        /// The host's number of the HTTP stream.
        context: u32,
        /// With what.
        answer: LocalReply,
    },
}

/// What becomes of a request whose headers are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadersAction {
    /// It passes through; the worker keeps nothing of it.
    Pass(Vec<HeaderEdit>),
    /// It passes through, but there is nowhere to go.
    Unroutable(LocalReply),
    /// It is held, and its body read, under this number.
    Pause(u64, Vec<HeaderEdit>),
    /// It is answered at once; its number is still asked for until its log entry.
    Reply(u64, LocalReply),
}

/// What becomes of a request of whose body there is more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyAction {
    /// It is held.
    Pause,
    /// It is answered.
    Reply(LocalReply),
    /// It goes on at once, with these changes to its headers.
    Continue(Vec<HeaderEdit>),
}

/// What becomes of an answer whose headers are in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHeadersAction {
    /// Changes to the response headers.
    pub edits: Vec<HeaderEdit>,
    /// The body to send instead of what comes.
    pub body: Option<Vec<u8>>,
}

/// What is answered where a host refuses to change a body: it can't be sent as it stands.
#[must_use]
pub fn unwritten() -> LocalReply {
    let message = "The gateway couldn't put the model's real name into the body.";
    Failure::new(500, code::INTERNAL, message).answer(Api::Unspecified, None)
}
