//! The identity of an Envoy process: an id that all its workers send to the companion, and a key that they sign with.
//!
//! Both are random. The worker that starts first draws them and writes them into Envoy's shared data, where they live as
//! long as the process. Without shared data the process has no identity: its workers send no id and sign nothing, because
//! other workers couldn't verify it.

use core::num::NonZeroU64;

use crate::session::Epoch;
use crate::shared_data::{SetIf, SharedData};

/// A key of 128 bits that only the workers of this Envoy share.
pub type SigningKey = [u8; 16];

/// The random bits that a root context needs; the host draws them.
#[derive(Clone, Copy, Debug)]
pub struct RandomBits {
    /// The epoch of the root context.
    pub epoch: Epoch,
    /// The id of the Envoy process, if this worker starts first.
    pub envoy: u64,
    /// The signing key of the Envoy process, if this worker starts first.
    pub key: SigningKey,
}

/// The shared-data key of both: the id in 8 bytes, little endian, then the signing key.
const SHARED_KEY: &str = "penstock/process";

/// The identity of this Envoy process. Both fields are `None` without shared data.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessIdentity {
    pub(crate) id: Option<NonZeroU64>,
    pub(crate) key: Option<SigningKey>,
}

impl ProcessIdentity {
    /// Reads the identity that another worker has written, or writes it.
    pub(crate) fn join(shared_data: &dyn SharedData, random: &RandomBits) -> Self {
        if let Some(identity) = Self::read(shared_data) {
            return identity;
        }
        let drawn = [&random.envoy.max(1).to_le_bytes()[..], &random.key].concat();
        // If another worker writes at the same time, the value that is there afterwards counts for both.
        shared_data.set(SHARED_KEY, &drawn, SetIf::Absent);
        Self::read(shared_data).unwrap_or_default()
    }

    fn read(shared_data: &dyn SharedData) -> Option<Self> {
        let (value, _) = shared_data.get(SHARED_KEY)?;
        let (id, key) = value.split_first_chunk()?;
        Some(Self { id: NonZeroU64::new(u64::from_le_bytes(*id)), key: Some(key.try_into().ok()?) })
    }
}
