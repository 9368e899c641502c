//! What the workers of one Envoy share without the companion: Envoy's shared data, as the filter's logic sees it.
//!
//! A few words of state, looked at rarely: who this Envoy is, the policy in force, and how much each worker has in
//! flight. A host may refuse any call; then a worker goes on with what it knows by itself.

use core::fmt::Debug;

/// Shared data: values by key, each with a number that changes when the value does.
pub trait SharedData: Debug {
    /// The value, and the number to replace just this one with; `None`: there is none.
    fn get(&self, key: &str) -> Option<(Vec<u8>, u32)>;

    /// Sets a value. With `replaces`, only if that is still its number; 0: only if there is none yet, where the host can
    /// tell. `false`: it wasn't set.
    fn set(&self, key: &str, value: &[u8], replaces: Option<u32>) -> bool;
}
