//! Sessions, resync and admission: connects the filters' sessions with the pools' engines.
//!
//! Pure: its owner hands in events with the time, and takes out frames, closures and observations. This crate has no socket,
//! no clock and no runtime. One task owns a [`Control`], so nothing in it is shared or locked.
//!
//! A [`Control`] routes: it owns the sessions and knows the pool of each request. A pool owns its engine, its autopilot, its
//! endpoints and its requests. Where each pool has a leader of its own, each has a control of its own; [`Controls`] holds all
//! controls of a companion. Messages of the protocol are parsed in `wire_in` and built in `wire_out`.

mod aliases;
mod answer;
mod audit;
mod budgets;
mod completion;
mod control;
mod controls;
mod cost_trace;
mod counting;
mod deadlines;
mod ended_requests;
mod envoys;
mod event;
mod failed_attempt;
mod filter_answer;
mod host_clocks;
mod ids;
mod labels;
mod leadership;
mod limits;
mod observation;
mod pool;
mod pools;
mod rate_limit;
mod registration;
mod rejection;
mod request_index;
mod request_status;
mod root_context;
mod session;
mod settings;
mod spent_frames;
mod status;
mod timers;
mod trust;
mod wire_in;
mod wire_out;

pub use penstock_autopilot::{
    AutopilotStatus, Desired, DesiredSource, GateSource, GateStatus, Kept, PendingServers, Scraped, Totals,
    VariantStatus,
};
pub use penstock_election::{KnownEnvoy, RoleChange};
pub use penstock_engine::policy::{MaxPriority, Rewrite};

pub use self::answer::code_of;
pub use self::audit::AuditError;
pub use self::budgets::{BudgetChange, FlowBudget, NoBudget, PoolBudgets};
pub use self::control::Control;
pub use self::controls::{Controls, Scope};
pub use self::cost_trace::{CostEvent, CostEventKind};
pub use self::counting::EstimateReason;
pub use self::event::{Event, Output, PoolEvent};
pub use self::ids::{ConnId, Door};
pub use self::labels::{EstimatedTokens, Labels};
pub use self::observation::{
    Completed, Decided, Dropped, Observation, PoolNews, Refused, RequestNews, SessionNews,
};
pub use self::request_status::{RequestState, RequestStatus};
pub use self::settings::{CreditSettings, EndpointSettings, PoolSettings, Settings};
pub use self::status::{ModelStatus, PoolStatus, ServerStatus, SessionStatus, Status};
