//! How an Envoy process knows itself: an id that all its workers say, and a key that all of them sign with.
//!
//! Both are random and drawn once, by the worker that asks first; they live in the shared_data as long as the process. Where
//! the shared_data don't keep them the process is nobody: it says no id, and signs nothing that another worker would have to
//! read.

use crate::{session::Epoch, shared_data::SharedData};

/// 128 bits that only this Envoy knows.
pub type Key = [u8; 16];

/// The random bits that a root context needs, drawn by its host.
#[derive(Clone, Copy, Debug)]
pub struct RandomBits {
    /// Names the root context.
    pub epoch: Epoch,
    /// Names the Envoy, if nobody drew before.
    pub envoy: u64,
    /// The Envoy's key, if nobody drew before.
    pub key: Key,
}

/// The key of the shared_data under which both lie: the id in 8 bytes, little endian, then the key.
const KEPT: &str = "penstock/process";

/// What this Envoy is known by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessIdentity {
    /// Never 0, but for an Envoy that isn't known.
    pub(crate) id: u64,
    pub(crate) key: Option<Key>,
}

impl ProcessIdentity {
    /// Takes on what the first worker drew, or is the first.
    pub(crate) fn join(shared_data: &dyn SharedData, draw: &RandomBits) -> Self {
        if let Some(known) = Self::known(shared_data) {
            return known;
        }
        let drawn = [&draw.envoy.max(1).to_le_bytes()[..], &draw.key].concat();
        // Whoever was first, what lies there now is what counts.
        shared_data.set(KEPT, &drawn, Some(0));
        Self::known(shared_data).unwrap_or_default()
    }

    fn known(shared_data: &dyn SharedData) -> Option<Self> {
        let (kept, _) = shared_data.get(KEPT)?;
        let (id, key) = kept.split_first_chunk()?;
        Some(Self {
            id: u64::from_le_bytes(*id),
            key: Some(key.try_into().ok()?),
        })
    }
}
