//! Envoy's shared data: a small key-value store that all workers of one Envoy share, without the companion.
//!
//! The filter keeps three things in it: the identity of the Envoy process, the current policy, and the number of requests
//! in flight of each worker. A host may refuse any call; the worker then continues with its local knowledge.

use core::fmt::Debug;

/// The condition under which `SharedData::set` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetIf {
    /// Write in any case.
    Always,
    /// Write only if the key has no value, as far as the host can tell.
    Absent,
    /// Write only if the value still has this version.
    Version(u32),
}

impl SetIf {
    /// Whether the condition holds for a value of this version; `None`: the key has no value.
    #[must_use]
    pub fn holds(self, current: Option<u32>) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => current.is_none(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// Shared data of an Envoy. Each value has a version that changes with the value.
pub trait SharedData: Debug {
    /// The value and its version; `None`: the key has no value.
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)>;

    /// Writes a value if `condition` holds. Returns whether the value was written.
    fn set(&self, key: &str, value: &[u8], condition: SetIf) -> bool;
}
