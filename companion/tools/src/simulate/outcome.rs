//! What all forms of the output show: the input and the results of all runs.

use std::time::Duration;

use clap::ValueEnum as _;
use penstock_model_server::Hardware;
use penstock_simulate::goal::Goal;
use penstock_simulate::results::Results;

use super::args::Scenario;
use super::policies::GoalSource;

/// This part of the requests must be served within the targets for a number of servers to be enough.
pub(super) const ENOUGH: f64 = 0.99;

/// A whole simulation.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) source: Source,
    /// The time of the last arrival.
    pub(super) arrivals: Duration,
    pub(super) requests: usize,
    /// Requests of the trace that were left out because they have no answer.
    pub(super) unanswered: u64,
    pub(super) scale: f64,
    pub(super) seed: u64,
    pub(super) hardware: Hardware,
    pub(super) goal: Goal,
    pub(super) goal_source: GoalSource,
    /// At least one.
    pub(super) policies: Vec<PolicyRuns>,
}

/// Where the requests come from.
#[derive(Debug)]
pub(super) enum Source {
    Trace(String),
    Scenario(Scenario),
}

impl Source {
    /// The file, or the name of the scenario.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Trace(path) => path.clone(),
            Self::Scenario(scenario) => {
                scenario.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct PolicyRuns {
    /// The file of the configuration, as it was given.
    pub(super) name: String,
    /// At least one, by rising numbers of servers.
    pub(super) runs: Vec<Run>,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) servers: usize,
    pub(super) results: Results,
}

impl Outcome {
    /// All runs with the names of their policies.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&str, &Run)> {
        self.policies.iter().flat_map(|policy| policy.runs.iter().map(move |run| (policy.name.as_str(), run)))
    }

    /// Requests came from more than one tenant.
    pub(super) fn has_tenants(&self) -> bool {
        self.runs().any(|(_, run)| run.results.tenants.len() > 1)
    }

    /// Several numbers of servers were tried.
    pub(super) fn has_range(&self) -> bool {
        self.policies.iter().any(|policy| policy.runs.len() > 1)
    }
}

impl PolicyRuns {
    /// The run with the fewest servers that are enough; `None`: no number is.
    pub(super) fn enough(&self) -> Option<&Run> {
        self.runs.iter().find(|run| run.results.within_targets >= ENOUGH)
    }

    /// The run that is shown where one run stands for the policy: the first that is enough, or else the last.
    pub(super) fn shown(&self) -> &Run {
        self.enough().unwrap_or(&self.runs[self.runs.len() - 1])
    }
}
