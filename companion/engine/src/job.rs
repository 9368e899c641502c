//! A request from its arrival to its end.

use alloc::boxed::Box;

use crate::cost::{Charge, Tally};
use crate::effect::Outcome;
use crate::expiry::ReadyTime;
use crate::input::{Band, ClassKey, RequestId, Usage};
use crate::load::Load;
use crate::scores::Ask;
use crate::time::Instant;
use crate::tree::{OrderKey, Queued, Receipts};

#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: RequestId,
    pub(crate) band: Band,
    /// The class set of its model, and what it asked for of it.
    pub(crate) class_set: u16,
    pub(crate) class_key: ClassKey,
    pub(crate) queued: Queued,
    /// What decides its place in its flow.
    pub(crate) claim: OrderKey,
    pub(crate) starts: ReadyTime,
    /// As estimated when it came.
    pub(crate) tally: Tally,
    /// Of the prompt; 0 where it came counted.
    pub(crate) prompt_bytes: u64,
    pub(crate) model: Box<str>,
    /// The beginnings of its prompt.
    pub(crate) prefix: Box<[u64]>,
    pub(crate) state: State,
}

#[derive(Clone, Debug)]
pub(crate) enum State {
    Waiting,
    /// Apart, because most that are here wait.
    Running(Box<Running>),
}

/// Granted and not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    /// Where, by its number.
    pub(crate) endpoint: u32,
    pub(crate) load: Load,
    pub(crate) charge: Charge,
    pub(crate) receipts: Receipts,
    pub(crate) outcome: Outcome,
    /// What it cost, known before it has ended; 0: nothing.
    pub(crate) settled: Option<u64>,
}

impl Job {
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.state, State::Waiting)
    }

    /// As it runs.
    pub(crate) fn running(&self) -> Option<Running> {
        match &self.state {
            State::Waiting => None,
            State::Running(running) => Some(**running),
        }
    }

    /// What of it says which endpoint is the best for it.
    pub(crate) fn ask(&self) -> Ask<'_> {
        Ask {
            model: &self.model,
            prefix: &self.prefix,
            prompt_bytes: self.prompt_bytes,
        }
    }

    pub(crate) const fn deadline(&self) -> Option<Instant> {
        self.claim.deadline
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
