//! The configurations to compare: each first pool as policy, servers and tenants of a simulation.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::{Config, Endpoint, Environment, MaxPriority};
use penstock_engine::Policy;
use penstock_engine::input::{Band, Role};
use penstock_engine::policy::{FlowKey, join_flow_parts};
use penstock_model::slo::Policy as SloPolicy;
use penstock_model::{Parameters, Targets};
use penstock_model_server::{Hardware, Server};
use penstock_simulate::closed_loop::{ServerSpec, Tenant};
use penstock_simulate::goal::Goal;
use penstock_simulate::limits::{RUNS_MAX, SERVERS_MAX};

use super::args::{Args, ServerCounts};
use super::error::Error;

/// Sequences in one batch that a simulated server can have at most.
const SEQS_MAX: u64 = penstock_model_server::limits::SEQS_MAX as u64;
/// Configurations of one simulation.
const POLICIES_MAX: usize = 8;
/// The name of every simulated request's model, where flows are by model.
const MODEL: &str = "model";

/// One configuration.
#[derive(Debug)]
pub(super) struct PolicySetup {
    /// The file as it was given.
    pub(super) name: Arc<str>,
    pub(super) policy: Policy,
    pub(super) slo: SloPolicy,
    pub(super) transient: Duration,
    flow_key: Vec<FlowKey>,
    max_priority: MaxPriority,
    /// At least one: the servers that more servers are like, in turn.
    servers: Vec<ServerSpec>,
    /// Servers that the configuration lists.
    listed: usize,
    /// The numbers of servers to run it with: those of `--servers`, or the one that it lists.
    pub(super) counts: RangeInclusive<usize>,
}

/// All configurations, and what they have in common.
#[derive(Debug)]
pub(super) struct Policies {
    /// At least one: that of `--config`, then those of `--compare`.
    pub(super) all: Vec<PolicySetup>,
    /// The servers' parameters, and the defaults of what endpoints may set.
    pub(super) hardware: Hardware,
    /// The latency that counts as good, for all policies.
    pub(super) goal: Goal,
    pub(super) goal_source: GoalSource,
}

/// Where the targets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoalSource {
    /// `--slo-ttft` and `--slo-itl`.
    Flags,
    /// The first configuration.
    Config,
    /// The servers' parameters.
    Inferred,
}

impl GoalSource {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Flags => "flags",
            Self::Config => "config",
            Self::Inferred => "inferred",
        }
    }
}

impl Policies {
    /// Reads and checks the configurations.
    pub(super) fn read(args: &Args, environment: &Environment) -> Result<Self, Error> {
        let hardware = Hardware {
            alpha_ms: args.alpha,
            beta_ms: args.beta,
            gamma_ms: args.gamma,
            seqs_max: args.max_num_seqs.unwrap_or(Hardware::default().seqs_max),
            kv_tokens: args.kv_tokens,
            ..Hardware::default()
        };
        Server::new(hardware, 0)?;
        let files = std::iter::once(&args.config).chain(&args.compare);
        let all = files
            .map(|file| PolicySetup::read(file, args, environment, hardware))
            .collect::<Result<Vec<_>, Error>>()?;
        let (goal, goal_source) = goal(args, &all[0].slo, hardware);
        let policies = Self { all, hardware, goal, goal_source };
        policies.check()?;
        Ok(policies)
    }

    /// The servers in proportion to which a scenario makes traffic: those that the first configuration lists, or else as
    /// many as `--servers` begins with.
    pub(super) fn base_servers(&self) -> Vec<ServerSpec> {
        let first = &self.all[0];
        let count = match first.listed {
            0 => *first.counts.start(),
            listed => listed,
        };
        first.servers(count)
    }

    pub(super) fn runs(&self) -> usize {
        self.all.iter().map(|policy| policy.counts.clone().count()).sum()
    }

    fn check(&self) -> Result<(), Error> {
        if self.all.len() > POLICIES_MAX {
            return Err(Error::Usage(format!(
                "{} configurations; compare at most {POLICIES_MAX}",
                self.all.len()
            )));
        }
        let runs = self.runs();
        if runs > RUNS_MAX {
            return Err(Error::Usage(format!(
                "{} configurations and the range of --servers make {runs} runs, more than {RUNS_MAX}; shorten the range",
                self.all.len()
            )));
        }
        Ok(())
    }
}

impl PolicySetup {
    fn read(file: &Path, args: &Args, environment: &Environment, hardware: Hardware) -> Result<Self, Error> {
        let config = Config::read(file, environment)?;
        let others = config.pools.len() - 1;
        let pool = config.pools.into_iter().next();
        let pool = pool.expect("invariant: a configuration has a pool");
        if others > 0 {
            eprintln!(
                "{}: only the first of {} pools is simulated, {}",
                file.display(),
                others + 1,
                pool.name
            );
        }
        let has_roles = pool.policy.min_uncached_tokens.is_some();
        let spec = |endpoint: &Endpoint| {
            let role = if has_roles { endpoint.role } else { Role::Both };
            ServerSpec { role, ..server(endpoint, args, hardware) }
        };
        // Simulated requests tolerate no taint.
        let usable = pool.endpoints.iter().filter(|endpoint| endpoint.taints.is_empty());
        let mut servers: Vec<ServerSpec> = usable.map(spec).collect();
        let listed = servers.len();
        if servers.is_empty() {
            let address = ([127, 0, 0, 1], 1).into();
            servers.push(spec(&pool.endpoint_defaults.endpoint(address)));
        }
        for server in &servers {
            Server::new(server.hardware, 0)?;
        }
        let mut slo = pool.slo;
        slo.explicit = explicit(args, slo.explicit);
        Ok(Self {
            name: file.display().to_string().into(),
            policy: pool.policy,
            slo,
            transient: pool.transient,
            flow_key: pool.flow_key,
            max_priority: config.identity.max_priority,
            counts: counts(file, args, listed)?,
            servers,
            listed,
        })
    }

    /// This many servers, like those that the configuration lists in turn.
    pub(super) fn servers(&self, count: usize) -> Vec<ServerSpec> {
        self.servers.iter().cycle().take(count).cloned().collect()
    }

    /// The tenants of these names as this configuration treats them.
    pub(super) fn tenants(&self, names: &[Arc<str>]) -> Arc<[Tenant]> {
        let tenants = names.iter().map(|name| Tenant {
            name: name.clone(),
            flow: self.flow(name),
            band: self.band(name),
        });
        tenants.collect()
    }

    /// The flow of a tenant, which is both the fairness id and the user of its requests.
    fn flow(&self, tenant: &Arc<str>) -> Arc<str> {
        let part = |key: &FlowKey| match key {
            FlowKey::FairnessId | FlowKey::User => &**tenant,
            FlowKey::Model | FlowKey::TargetModel => MODEL,
        };
        join_flow_parts(self.flow_key.iter().map(part)).into()
    }

    /// The band of a tenant's requests, which claim none.
    fn band(&self, tenant: &str) -> Band {
        let max = self.max_priority.tenants.get(tenant).copied();
        let max = max.or(self.max_priority.default);
        max.map_or(Band::Default, |max| max.max(Band::Default))
    }
}

/// The numbers of servers to run a configuration with that lists this many.
fn counts(file: &Path, args: &Args, listed: usize) -> Result<RangeInclusive<usize>, Error> {
    let file = file.display();
    match (&args.servers, listed) {
        (Some(ServerCounts(counts)), _) => Ok(counts.clone()),
        (None, 0) => Err(Error::Usage(format!(
            "{file}: the first pool lists no endpoint that takes every request; give the number of servers with --servers N"
        ))),
        (None, 1..=SERVERS_MAX) => Ok(listed..=listed),
        (None, _) => Err(Error::Usage(format!(
            "{file}: the first pool lists {listed} endpoints, more than {SERVERS_MAX}; give a smaller number with --servers N"
        ))),
    }
}

fn server(endpoint: &Endpoint, args: &Args, hardware: Hardware) -> ServerSpec {
    let configured = endpoint.max_batch.min(SEQS_MAX) as usize;
    let seqs_max = args.max_num_seqs.unwrap_or(configured);
    let batched = endpoint.max_batched_tokens.unwrap_or(hardware.batched_tokens);
    ServerSpec {
        variant: endpoint.variant.as_str().into(),
        hardware: Hardware { seqs_max, batched_tokens: batched.max(seqs_max as u64), ..hardware },
        weight: endpoint.weight,
        request_noise: 0.0,
        role: Role::Both,
    }
}

/// The explicit targets: those of the flags, and the configured ones where there is no flag. A flag of 0 takes a target away.
fn explicit(args: &Args, configured: Option<Targets>) -> Option<Targets> {
    if args.slo_ttft.is_none() && args.slo_itl.is_none() {
        return configured;
    }
    let value = |flag: Option<f64>, configured: Option<f64>| match flag {
        Some(ms) => Some(ms).filter(|ms| *ms > 0.0),
        None => configured,
    };
    Some(Targets {
        ttft_ms: value(args.slo_ttft.map(|ms| ms.0), configured.and_then(|targets| targets.ttft_ms)),
        itl_ms: value(args.slo_itl.map(|ms| ms.0), configured.and_then(|targets| targets.itl_ms)),
    })
}

/// The latency by which all policies are measured.
fn goal(args: &Args, first: &SloPolicy, hardware: Hardware) -> (Goal, GoalSource) {
    let has_flags = args.slo_ttft.is_some() || args.slo_itl.is_some();
    match first.explicit {
        Some(targets) if has_flags => (Goal::Targets(targets), GoalSource::Flags),
        Some(targets) => (Goal::Targets(targets), GoalSource::Config),
        None => {
            let parameters = Parameters {
                alpha_ms: hardware.alpha_ms,
                beta_ms: hardware.beta_ms,
                gamma_ms: hardware.gamma_ms,
            };
            let multiplier = first.multiplier();
            (Goal::Multiple { parameters, multiplier }, GoalSource::Inferred)
        }
    }
}
