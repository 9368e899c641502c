//! A request from its arrival to its end.

use alloc::boxed::Box;

use crate::cost::{Charge, Tally};
use crate::effect::Outcome;
use crate::endpoint::Load;
use crate::expiry::ReadyTime;
use crate::input::{Band, RequestId, Usage};
use crate::time::Instant;
use crate::tree::Queued;

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: RequestId,
    pub(crate) band: Band,
    pub(crate) queued: Queued,
    pub(crate) starts: ReadyTime,
    pub(crate) deadline: Option<Instant>,
    /// As estimated when it came.
    pub(crate) tally: Tally,
    /// Of the prompt; 0 where it came counted.
    pub(crate) prompt_bytes: u64,
    pub(crate) model: Box<str>,
    pub(crate) state: State,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    Waiting,
    /// Granted and not ended, at this endpoint by its number.
    Running {
        endpoint: u32,
        load: Load,
        charge: Charge,
        outcome: Outcome,
    },
}

impl Job {
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// What it took: what the server said, and the estimate where it said nothing.
    pub(crate) fn used(&self, usage: Usage) -> Tally {
        Tally {
            prompt: usage.prompt.map_or(self.tally.prompt, |tokens| tokens.0),
            cached: usage.cached.map_or(self.tally.cached, |tokens| tokens.0),
            output: usage.output.map_or(self.tally.output, |tokens| tokens.0),
        }
    }
}
