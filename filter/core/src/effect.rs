//! Decisions as data: what a worker asks of its host.

use penstock_wire::{Api, names::code};

use crate::{
    answer::{Answer, Failure},
    hygiene::Edit,
    rewrite::Rewrite,
    session::Order,
};

/// What the host shall do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Something for the session's stream.
    Session(Order),
    /// Apply these to the request headers of this HTTP stream, then resume it.
    Resume {
        /// The host's number of the HTTP stream.
        context: u32,
        /// The changes.
        edits: Vec<Edit>,
        /// A change to the body that is held; if that can't be done, the stream is to be answered `effect::unwritten`.
        rewrite: Option<Rewrite>,
    },
    /// Answer this HTTP stream.
    Answer {
        /// The host's number of the HTTP stream.
        context: u32,
        /// With what.
        answer: Answer,
    },
}

/// What becomes of a request whose headers are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Headed {
    /// It passes through; the worker keeps nothing of it.
    Pass(Vec<Edit>),
    /// It passes through, but there is nowhere to go.
    Nowhere(Answer),
    /// It is held, and its body read, under this number.
    Held(u64, Vec<Edit>),
    /// It is answered at once; its number is still asked for until its log entry.
    Answered(u64, Answer),
}

/// What becomes of a request of whose body there is more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bodied {
    /// It is held.
    Held,
    /// It is answered.
    Answered(Answer),
    /// It goes on at once, with these changes to its headers.
    Goes(Vec<Edit>),
}

/// What becomes of an answer whose headers are in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Responded {
    /// Changes to the response headers.
    pub edits: Vec<Edit>,
    /// The body to send instead of what comes.
    pub body: Option<Vec<u8>>,
}

/// What is answered where a host refuses to change a body: it can't be sent as it stands.
#[must_use]
pub fn unwritten() -> Answer {
    let message = "The gateway couldn't put the model's real name into the body.";
    Failure::new(500, code::INTERNAL, message).answer(Api::Unspecified, None)
}
