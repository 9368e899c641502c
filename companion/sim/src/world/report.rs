//! What a world tells of itself: how much of what happened, and how to see again what went wrong.

use std::collections::BTreeMap;
use std::fmt;

/// Sums over one world, or many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Worlds.
    pub worlds: u64,
    /// Requests that clients sent.
    pub requests: u64,
    /// Requests that reached a server, each time counted.
    pub jobs: u64,
    /// Requests that were queued again.
    pub requeues: u64,
    /// Streams that entered their own Envoy again.
    pub reentries: u64,
    /// Requests that a filter let go by itself.
    pub opened: u64,
    /// Whole audits of the companion.
    pub audits: u64,
    /// Things that happened.
    pub events: u64,
    /// The most keys that an Envoy's shared data had at rest.
    pub shared_keys_max: u64,
    /// How requests ended for their clients.
    pub ends: BTreeMap<String, u64>,
    /// Outcomes, as clients were told them.
    pub outcomes: BTreeMap<String, u64>,
    /// Faults by their kind.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Tally {
    /// Adds another's sums.
    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.requests += other.requests;
        self.jobs += other.jobs;
        self.requeues += other.requeues;
        self.reentries += other.reentries;
        self.opened += other.opened;
        self.audits += other.audits;
        self.events += other.events;
        self.shared_keys_max = self.shared_keys_max.max(other.shared_keys_max);
        for (name, count) in &other.ends {
            *self.ends.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &other.outcomes {
            *self.outcomes.entry(name.clone()).or_default() += count;
        }
        for (name, count) in &other.faults {
            *self.faults.entry(name).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} worlds, {} requests, {} at servers, {} queued again, {} entered again, {} let go by a filter",
            self.worlds, self.requests, self.jobs, self.requeues, self.reentries, self.opened
        )?;
        writeln!(
            f,
            "{} events, {} audits, at most {} keys in shared data",
            self.events, self.audits, self.shared_keys_max
        )?;
        write!(f, "ends:")?;
        for (name, count) in &self.ends {
            write!(f, " {name} {count}")?;
        }
        write!(f, "\noutcomes:")?;
        for (name, count) in &self.outcomes {
            write!(f, " {name} {count}")?;
        }
        write!(f, "\nfaults: {}", self.faults.values().sum::<u64>())?;
        for (name, count) in &self.faults {
            write!(f, "\n  {count:>8} {name}")?;
        }
        Ok(())
    }
}

/// A world in which something didn't hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that makes it happen again.
    pub seed: u64,
    /// What didn't hold.
    pub what: String,
    /// The last events before that, oldest first.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "world {}: {}", self.seed, self.what)?;
        write!(
            f,
            "again: PENSTOCK_WORLD={} cargo test -p penstock-sim --test world",
            self.seed
        )
    }
}

impl std::error::Error for Failure {}
