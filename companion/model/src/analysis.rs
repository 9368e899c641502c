//! One model's variants together: targets, capacity, demand, and the replicas that the load needs.

use crate::closed_form::Parameters;
use crate::sizing::Targets;
use crate::slo::{Policy, Slo, Source};
use crate::workload::Observed;

/// A variant as it is: servers of one kind.
#[derive(Clone, Debug, Default)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// Servers that run.
    pub replicas: u64,
    /// Servers that start.
    pub pending: u64,
    /// Requests in one batch; `None`: not limited.
    pub max_batch: Option<f64>,
    /// What is known of it.
    pub parameters: Option<Parameters>,
    /// Observed over predicted time to the first token.
    pub ttft_bias: f64,
    /// Its endpoints in the last window.
    pub windows: Vec<Observed>,
}

/// Why a variant can't be analysed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No endpoint of it was seen.
    #[error("no metrics")]
    NoMetrics,
    /// Nothing was asked of it.
    #[error("no traffic")]
    NoTraffic,
    /// Nothing was learned of it.
    #[error("no parameters")]
    NoParameters,
    /// There are no targets.
    #[error("no targets")]
    NoTargets,
    /// No load meets the targets.
    #[error("infeasible")]
    Infeasible,
}

/// What a variant can do, and has to.
#[derive(Clone, Debug)]
pub struct VariantAnalysis {
    /// Its name.
    pub name: String,
    /// Parameters from its averages alone.
    pub bootstrap: Option<Parameters>,
    /// lambda*, requests per second of one server; 0 with an error.
    pub lambda_star: f64,
    /// n* of one server; `None`: not limited, or not known.
    pub n_star: Option<f64>,
    /// Servers that its part of the load needs; `None`: can't be said.
    pub required: Option<u64>,
    /// lambda* of all of its servers.
    pub capacity: f64,
    /// Its part of the load, requests per second.
    pub demand: f64,
    /// demand / capacity; 0 with an error.
    pub utilization: f64,
    /// Why there are only zeros.
    pub error: Option<Error>,
}

/// A model's variants together.
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The targets in force.
    pub slo: Slo,
    /// In the order given.
    pub variants: Vec<VariantAnalysis>,
}

/// Analyses the variants of one model. `total_rate`: the offered load in requests per second, `None`: what was served.
#[must_use]
pub fn analyze(_policy: &Policy, _total_rate: Option<f64>, _variants: &[Variant]) -> Analysis {
    Analysis {
        slo: Slo {
            targets: Targets::default(),
            source: Source::None,
        },
        variants: Vec::new(),
    }
}
