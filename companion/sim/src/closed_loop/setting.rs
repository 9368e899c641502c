//! A closed loop before it runs: servers, gate, traffic, and when it ends.

use std::time::Duration;

use penstock_autopilot::Kept;
use penstock_model::slo::Policy as SloPolicy;
use penstock_model_server::Hardware;

use super::traffic::Arrivals;

/// One server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSetting {
    /// Servers of one variant share what is learned of them.
    pub variant: &'static str,
    /// What it is.
    pub hardware: Hardware,
    /// See [`crate::Server::with_request_noise`].
    pub request_noise: f64,
}

/// Who says how much the servers take at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateBy {
    /// So many requests an endpoint, above 0.
    Watermark(f64),
    /// Budgets, made of the true parameters.
    Truth,
    /// Budgets, made of what the autopilot learns.
    Learned,
    /// Nobody.
    Nobody,
}

/// Something changes on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// When so many requests have been served, every server's alpha is so many times what it was.
    Alpha {
        /// Requests served.
        served: usize,
        /// Above 0.
        times: f64,
    },
}

/// A closed loop before it runs.
#[derive(Clone, Debug)]
pub struct Setting {
    /// At least one.
    pub servers: Vec<ServerSetting>,
    /// Targets.
    pub slo: SloPolicy,
    /// What gates.
    pub gate: GateBy,
    /// What is asked, and when.
    pub arrivals: Arrivals,
    /// What changes.
    pub change: Option<Change>,
    /// A window of the autopilot.
    pub window: Duration,
    /// What an earlier life has learned.
    pub kept: Vec<(String, Kept)>,
    /// It ends when so many requests have been served,
    pub served_max: usize,
    /// or at this time.
    pub lasts: Duration,
    /// Before this, nothing is recorded but samples: the loop settles.
    pub settles: Duration,
    /// The same seed gives the same run.
    pub seed: u64,
}

impl Setting {
    /// One that ends after `served_max` requests.
    #[must_use]
    pub fn new(servers: Vec<ServerSetting>, gate: GateBy, arrivals: Arrivals, served_max: usize) -> Self {
        Self {
            servers,
            slo: SloPolicy::default(),
            gate,
            arrivals,
            change: None,
            window: Duration::from_secs(10),
            kept: Vec::new(),
            served_max,
            lasts: Duration::from_secs(1 << 30),
            settles: Duration::ZERO,
            seed: 1,
        }
    }
}
