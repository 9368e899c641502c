//! State that outlives a companion, by pool: learned model parameters, recent usage by flow, and usage of budgets. A store
//! is a file, or a redis server that several companions share.
//!
//! Decisions never wait for a store. [`Stores`] runs one task for each store; [`Recorders`] pass data to these tasks,
//! which write it within a second. Opening a file that can't be used is an error, because the operator who configured
//! the file expects it to be used. A redis server that can't be reached isn't an error: it may come back, and until then
//! the companion works from memory.

#![cfg_attr(
    not(all(feature = "redb", feature = "redis")),
    expect(dead_code, reason = "used by the stores that are features")
)]

mod budget;
mod budget_buffer;
#[cfg_attr(not(feature = "redb"), path = "without_file.rs")]
mod file;
mod health;
mod message;
mod recorders;
#[cfg_attr(not(feature = "redis"), path = "without_redis.rs")]
mod redis;
mod registry;
mod write_buffer;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use penstock_control::Kept;
use penstock_model::Parameters;
use prometheus::{IntCounterVec, IntGaugeVec};

pub use self::recorders::Recorders;
pub use self::registry::{Restored, Stores};
pub use self::write_buffer::SharedUsage;

/// Delay between the first new data and its write; everything that arrives meanwhile is written together.
const LINGER: Duration = Duration::from_secs(1);
/// Usage keys (band, class, flow, model), and as many of budgets, of one pool that wait for a write.
const BUFFERED_KEYS_MAX: usize = 65_536;
/// Flows and models of one pool whose running requests here are reported to other companions; the largest.
const RUNNING_MAX: usize = 4_096;
/// What a companion runs counts at other companions for this long after they last heard of it.
const RUNNING_TTL: Duration = Duration::from_secs(5);
/// How often a companion repeats the list of its running requests.
const RUNNING_REFRESH: Duration = Duration::from_secs(2);
/// Usage entries of all pools that wait because the store fails.
const BACKLOG_MAX: usize = 262_144;
/// Usage rows that a file keeps for each pool; a row is one bucket of the window for one usage key.
const ROWS_MAX: u64 = 1_000_000;
/// Rows of budgets that a store restores for a pool; a row is one bucket of one window of one flow.
const BUDGET_ROWS_MAX: usize = 1_000_000;
/// Flows and units that are counted in one bucket of a budget's window.
const BUDGET_FLOWS_MAX: usize = 2 * penstock_engine::limits::BUDGET_FLOWS_MAX;
/// Delay before a failing store is tried again; it doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Whole milliseconds; the most that there are for a longer time.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const _: () = assert!(BUFFERED_KEYS_MAX < BACKLOG_MAX);
// One lost refresh, and a late one, change nothing.
const _: () = assert!(RUNNING_REFRESH.as_millis() * 2 < RUNNING_TTL.as_millis());

/// Learned models by pool and variant.
type Models = BTreeMap<(String, String), Kept>;

/// The metrics of stores, by pool.
#[derive(Clone, Debug)]
pub struct StoreMetrics {
    /// 1 while the pool's store can be read and written, else 0.
    pub up: IntGaugeVec,
    /// Writes of the pool's data.
    pub writes: IntCounterVec,
}

/// Why a store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has the file open.
    #[error(
        "usage.store: {} is in use by another process, or the configuration names it in two spellings", .0.display()
    )]
    Locked(PathBuf),
    /// The file can't be opened or written.
    #[error("usage.store: {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is damaged and can't be renamed.
    #[error("usage.store: {} can't be read ({why}) and can't be renamed: {source}", path.display())]
    Stuck {
        /// The file.
        path: PathBuf,
        /// The damage.
        why: String,
        /// Why renaming failed.
        source: io::Error,
    },
    /// The file was open and can't be written any more.
    #[error("usage.store: {}: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Why the write failed.
        why: String,
    },
    /// The kind of store is a Cargo feature that this binary was built without.
    #[error("usage.store: this binary was built without {0}; build it with `--features {0}`")]
    Absent(&'static str),
    /// The URL gives no redis client.
    #[error("usage.store: {place}: {why}")]
    Redis {
        /// The URL without its password.
        place: String,
        /// Why the client can't be made.
        why: String,
    },
}

/// A model from its stored numbers: alpha, beta and gamma in milliseconds, and the bias of the time to first token.
/// `None` when a learner could not have produced these values.
fn model_from_numbers((alpha_ms, beta_ms, gamma_ms, ttft_bias): (f64, f64, f64, f64)) -> Option<Kept> {
    let parameters = Parameters { alpha_ms, beta_ms, gamma_ms };
    (parameters.is_valid() && ttft_bias.is_finite() && ttft_bias > 0.0)
        .then_some(Kept { parameters, ttft_bias })
}

/// The inverse of [`model_from_numbers`].
fn model_numbers(model: &Kept) -> (f64, f64, f64, f64) {
    let Parameters { alpha_ms, beta_ms, gamma_ms } = model.parameters;
    (alpha_ms, beta_ms, gamma_ms, model.ttft_bias)
}

#[cfg(test)]
mod tests;
