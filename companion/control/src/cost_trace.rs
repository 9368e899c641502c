//! What happens to the costs of requests, in the order of the engines' decisions: for a simulated world that keeps accounts of its own.

use std::sync::Arc;

use penstock_engine::input::{RequestId, Service, Usage};
use penstock_engine::{BudgetReport, Outcome};

use crate::labels::Labels;

/// An event in a pool.
#[derive(Clone, Debug)]
pub struct CostEvent {
    /// The pool's name.
    pub pool: Arc<str>,
    /// The event.
    pub kind: CostEventKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum CostEventKind {
    /// The pool was made, with an engine that has counted nothing.
    PoolMade,
    /// A request came in.
    Arrived {
        /// The request.
        id: RequestId,
        /// The request's labels.
        labels: Arc<Labels>,
    },
    /// A request runs from now on.
    Started {
        /// The request.
        id: RequestId,
        /// The fairness identity that is charged.
        flow: Box<str>,
        /// The engine granted it. Otherwise another companion or its filter did.
        is_granted: bool,
        /// The request runs in the demoted band.
        is_demoted: bool,
        /// The tokens that are charged.
        estimate: Usage,
    },
    /// A granted request waits again.
    Requeued(RequestId),
    /// A granted request has ended.
    Ended {
        /// The request.
        id: RequestId,
        /// What it got.
        service: Service,
    },
    /// A waiting request was rejected, or its client left (`None`).
    Left {
        /// The request.
        id: RequestId,
        /// Why it was rejected.
        outcome: Option<Outcome>,
    },
    /// The engine reports to other gateways.
    Reported(BudgetReport),
}
