//! What outlives a companion, by pool: the parameters of the models, and what flows used of late; in a file, or in a
//! redis that companions share.
//!
//! Nobody waits for it: a [`Keeper`] has a task for each store, which is told of what is to be kept by [`Writers`] and
//! writes it within a second. A file that can't be used when it is named is an error, for whoever named it expects that it
//! is used. A redis that can't be reached isn't: it may come back, and until then everything goes on from memory.

mod clerk;
#[cfg_attr(not(feature = "redb"), path = "store/without_file.rs")]
mod file;
mod health;
mod keeper;
mod ledger;
#[cfg_attr(not(feature = "redis"), path = "store/without_redis.rs")]
mod redis;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use penstock_control::Kept;
use penstock_model::Parameters;

pub use self::keeper::{Found, Keeper};
pub use self::ledger::Writers;

/// What was learned and used is written so long after, together with all that comes until then.
const LINGER: Duration = Duration::from_secs(1);
/// Flows, by band, class and model, whose use in one pool is noted until it is written.
const NOTED_MAX: usize = 65_536;
/// Of what couldn't be written yet, all pools together.
const BACKLOG_MAX: usize = 262_144;
/// What is used of one pool that a file keeps: by bucket of the window, flow, band, class and model.
const ROWS_MAX: u64 = 1_000_000;
/// Between two attempts at a store that fails.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);

const _: () = assert!(NOTED_MAX < BACKLOG_MAX);

/// By pool and variant.
type Models = BTreeMap<(String, String), Kept>;

/// Why a store can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has it open.
    #[error(
        "usage.store: {} is in use by another process, or is named twice in different spellings", .0.display()
    )]
    Locked(PathBuf),
    /// It can't be opened or written.
    #[error("usage.store: {}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is damaged, and can't be set aside.
    #[error("usage.store: {} can't be read ({why}), and can't be set aside: {source}", path.display())]
    Stuck {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// Why it stays.
        source: io::Error,
    },
    /// It was open, and can't be written any more.
    #[error("usage.store: {}: {why}", path.display())]
    Broken {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The store is a Cargo feature that this binary was built without.
    #[error("usage.store: this binary was built without {0}; build it with `--features {0}`")]
    Absent(&'static str),
    /// No client can be made for it.
    #[error("usage.store: {place}: {why}")]
    Redis {
        /// Which, without a password.
        place: String,
        /// Why.
        why: String,
    },
}

/// `None`: nothing that was ever learned.
fn kept((alpha_ms, beta_ms, gamma_ms, ttft_bias): (f64, f64, f64, f64)) -> Option<Kept> {
    let parameters = Parameters {
        alpha_ms,
        beta_ms,
        gamma_ms,
    };
    (parameters.is_valid() && ttft_bias.is_finite() && ttft_bias > 0.0).then_some(Kept {
        parameters,
        ttft_bias,
    })
}

/// The same as numbers.
fn numbers(of: &Kept) -> (f64, f64, f64, f64) {
    let Parameters {
        alpha_ms,
        beta_ms,
        gamma_ms,
    } = of.parameters;
    (alpha_ms, beta_ms, gamma_ms, of.ttft_bias)
}

#[cfg(test)]
mod tests;
