//! The inputs and outputs of a control.

use core::time::Duration;
use std::sync::Arc;

use penstock_autopilot::{PendingServers, Scraped};
use penstock_election::{Report, RoleChange};
use penstock_engine::input::{BudgetReset, BudgetRunning, BudgetUsage, PastUsage, RunningUsage};
use penstock_wire as wire;

use crate::budgets::BudgetChange;
use crate::ids::{ConnId, Door};
use crate::observation::Observation;
use crate::settings::{EndpointSettings, Settings};

/// Everything that can happen to a control.
#[derive(Clone, Debug)]
pub enum Event {
    /// A stream has opened, in this process by its endpoint picker, or from outside: by a filter, or by the picker of an earlier leader.
    Opened(ConnId, Door),
    /// A frame has arrived.
    Frame(ConnId, Box<wire::FilterFrame>),
    /// A stream has ended, for any reason.
    Closed(ConnId),
    /// Something concerns the pool with this name. An unknown name is ignored.
    Pool(Arc<str>, PoolEvent),
    /// Another configuration, whole, including discovered endpoints. A pool is identified
    /// by its name. A waiting request keeps its place, flow, band and target model. It is rejected with `rejected_invalid`
    /// if its pool is gone or no longer serves its model. Running requests go on. Term and seed stay as they were.
    Settings(Box<Settings>),
    /// The models that clients may name have changed.
    ModelList(Arc<wire::ModelList>),
    /// UTC now, as the time since 1970 began: at the start, and when the clock has jumped. Days and months of budgets begin by it.
    Utc(Duration),
    /// Filters can open sessions from now on.
    Serving,
    /// Reject new and waiting requests (`true`), or take requests again (`false`).
    Drain(bool),
    /// The election of the leader has decided. Only with several companions.
    Leadership(RoleChange),
    /// Another companion takes over: every session gets a Bye and is closed, and nothing is granted any more.
    HandOver,
}

/// Everything that can happen to one pool from outside of the sessions.
#[derive(Clone, Debug)]
pub enum PoolEvent {
    /// The health of an endpoint has changed.
    EndpointReady {
        /// `ip:port`. An unknown one is ignored.
        address: String,
        /// The endpoint passes its health check.
        ready: bool,
    },
    /// The metrics of a model server were read.
    Scraped {
        /// `ip:port`. An unknown one is ignored.
        address: String,
        /// The metrics; `None` if reading them has failed for too long.
        scraped: Option<Scraped>,
        /// Adapters in the server's memory, by the names of their models; `None` if the server doesn't report them.
        adapters: Option<Box<[Box<str>]>>,
    },
    /// Another list of the endpoints. An address that stays keeps its health and its running requests. A new address
    /// has the health that its settings give. Requests on an endpoint that is gone go on. A waiting request without
    /// an eligible endpoint is rejected with `no_endpoints`.
    Endpoints {
        /// All of them, in order.
        endpoints: Vec<EndpointSettings>,
        /// Servers that exist and are no endpoints yet, all of them.
        pending: Vec<PendingServers>,
    },
    /// Usage of flows from before this companion's start, or of another companion's grants. It counts in the windows of the pool's
    /// discipline, if that has windows.
    Usage {
        /// Flows, costs and ages.
        settled: Vec<PastUsage>,
        /// What flows run at other companions, where that has changed.
        running: Vec<RunningUsage>,
    },
    /// An operator changes a flow's budget. Ignored for a flow without a budget.
    ChangeBudget {
        /// The flow.
        flow: Box<str>,
        /// The change.
        change: BudgetChange,
    },
    /// Resets of budgets at other companions, or from before this companion's start. They come before what was used after them.
    BudgetResets(Vec<BudgetReset>),
    /// What flows had used of their budgets before this companion's start. All of some flows.
    BudgetHistory(Vec<BudgetUsage>),
    /// What flows have used of their budgets at other companions, and what they run there now.
    BudgetUsage {
        /// Settled usage, and top-ups.
        settled: Vec<BudgetUsage>,
        /// What flows run at other companions, where that has changed.
        running: Vec<BudgetRunning>,
    },
}

/// An output of a control.
#[derive(Clone, Debug)]
pub enum Output {
    /// Send this frame.
    Send(ConnId, Box<wire::CompanionFrame>),
    /// Close the stream, for this reason. Frames that were output before are still sent.
    Close(ConnId, &'static str),
    /// For metrics and logs.
    Observe(Observation),
    /// For the election of the leader. Only with several companions.
    Election(Report),
}
