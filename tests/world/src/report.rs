//! Results of a world: how much of each thing happened, and how to reproduce a failure.

use std::collections::BTreeMap;
use std::fmt;

/// Counts over one world or several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Worlds.
    pub worlds: u64,
    /// Requests that clients sent.
    pub requests: u64,
    /// Requests that reached a server; each time counts.
    pub jobs: u64,
    /// Requests that were requeued.
    pub requeues: u64,
    /// Requests that left the queue again without a grant, after an earlier grant.
    pub second_outcomes: u64,
    /// HTTP streams that Envoy routed to its own requeue listener.
    pub reentries: u64,
    /// Attempts that a server refused by itself.
    pub pushbacks: u64,
    /// Requests that a filter admitted without a companion.
    pub fallback_admissions: u64,
    /// Requests that filters admitted by credit.
    pub credit_admissions: u64,
    /// Requests that were granted above the bound of their server.
    pub extra_grants: u64,
    /// Requests that were ended at their server for a critical one.
    pub evictions: u64,
    /// Requests that waited for at least half of their ttl, and whose wait was checked.
    pub full_waits: u64,
    /// Grants beside waiting requests of the same flow that other sessions of the same host had listed, whose order was checked.
    pub orders_on_hosts: u64,
    /// Weights that reloads gave tenants.
    pub reweightings: u64,
    /// Requests of tenants that the policy names, in pools with fewer accounts than tenants.
    pub named_requests: u64,
    /// Requests that were charged to budgets.
    pub budget_charges: u64,
    /// Requests that were served as demoted ones.
    pub budget_demotions: u64,
    /// Batches of events with a demoted request, of which it is clear that no other request may wait.
    pub demotions_judged: u64,
    /// Requests that were refused because of their budgets.
    pub budget_refusals: u64,
    /// Comparisons of all budgets of a pool with the world's accounts.
    pub budget_comparisons: u64,
    /// Full audits of the companion's state.
    pub audits: u64,
    /// Simulated events.
    pub events: u64,
    /// The most keys in one Envoy's shared data at the end of a world.
    pub shared_keys_max: u64,
    /// How requests ended, as clients saw it: status, cut, left or unreachable.
    pub ends: BTreeMap<String, u64>,
    /// Outcomes in response headers.
    pub outcomes: BTreeMap<String, u64>,
    /// What happened to the leadership of several companions, by kind.
    pub takeovers: BTreeMap<&'static str, u64>,
    /// Worlds with several companions.
    pub replicated: u64,
    /// Injected faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Summary {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.requests += other.requests;
        self.jobs += other.jobs;
        self.requeues += other.requeues;
        self.second_outcomes += other.second_outcomes;
        self.reentries += other.reentries;
        self.pushbacks += other.pushbacks;
        self.fallback_admissions += other.fallback_admissions;
        self.credit_admissions += other.credit_admissions;
        self.extra_grants += other.extra_grants;
        self.evictions += other.evictions;
        self.full_waits += other.full_waits;
        self.orders_on_hosts += other.orders_on_hosts;
        self.reweightings += other.reweightings;
        self.named_requests += other.named_requests;
        self.budget_charges += other.budget_charges;
        self.budget_demotions += other.budget_demotions;
        self.demotions_judged += other.demotions_judged;
        self.budget_refusals += other.budget_refusals;
        self.budget_comparisons += other.budget_comparisons;
        self.audits += other.audits;
        self.events += other.events;
        self.shared_keys_max = self.shared_keys_max.max(other.shared_keys_max);
        for (name, count) in &other.ends {
            *self.ends.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &other.outcomes {
            *self.outcomes.entry(name.clone()).or_default() += count;
        }
        self.replicated += other.replicated;
        for (name, count) in &other.takeovers {
            *self.takeovers.entry(name).or_default() += count;
        }
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} worlds, {} requests, {} jobs at servers, {} requeues, {} second outcomes, {} reentries, {} pushbacks, {} fallback admissions, {} \
             by credit, {} above bounds",
            self.worlds,
            self.requests,
            self.jobs,
            self.requeues,
            self.second_outcomes,
            self.reentries,
            self.pushbacks,
            self.fallback_admissions,
            self.credit_admissions,
            self.extra_grants
        )?;
        writeln!(
            f,
            "{} evictions, {} long waits, {} orders on one host, {} weights by reloads, {} requests of named tenants",
            self.evictions, self.full_waits, self.orders_on_hosts, self.reweightings, self.named_requests
        )?;
        writeln!(
            f,
            "{} events, {} audits, at most {} keys in shared data",
            self.events, self.audits, self.shared_keys_max
        )?;
        writeln!(
            f,
            "budgets: {} charges, {} demoted ({} judged), {} refused, {} comparisons",
            self.budget_charges,
            self.budget_demotions,
            self.demotions_judged,
            self.budget_refusals,
            self.budget_comparisons
        )?;
        write!(f, "ends:")?;
        for (name, count) in &self.ends {
            write!(f, " {name} {count}")?;
        }
        write!(f, "\noutcomes:")?;
        for (name, count) in &self.outcomes {
            write!(f, " {name} {count}")?;
        }
        write!(f, "\nworlds with several companions: {}", self.replicated)?;
        for (name, count) in &self.takeovers {
            write!(f, "\n  {count:>8} {name}")?;
        }
        write!(f, "\nfaults: {}", self.faults.values().sum::<u64>())?;
        for (name, count) in &self.faults {
            write!(f, "\n  {count:>8} {name}")?;
        }
        Ok(())
    }
}

/// A world in which an invariant was violated.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that reproduces the failure.
    pub seed: u64,
    /// The violated invariant.
    pub violation: String,
    /// The last events before the violation, oldest first.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "world {}: {}", self.seed, self.violation)?;
        write!(f, "reproduce with: PENSTOCK_WORLD={} cargo test -p penstock-world --test world", self.seed)
    }
}

impl std::error::Error for Failure {}
