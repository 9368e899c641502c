//! The Envoys behind the sessions. An Envoy has one root context for every worker and plugin configuration.

use hashbrown::HashMap;
use penstock_election::KnownEnvoy;

use crate::ids::{Door, EnvoyId, Epoch};

/// The root contexts of every Envoy, including orphaned ones.
#[derive(Debug, Default)]
pub(crate) struct Envoys(HashMap<EnvoyId, Contexts>);

/// The root contexts of one Envoy.
#[derive(Clone, Copy, Debug, Default)]
struct Contexts {
    count: usize,
    /// Those of filters, which can follow another leader.
    filters: u32,
    /// As in [`KnownEnvoy::digest`], of filters.
    digest: u64,
}

/// The number of a root context in [`KnownEnvoy::digest`].
pub(crate) const fn digest(epoch: Epoch) -> u64 {
    epoch.high ^ epoch.low
}

impl Envoys {
    /// Envoys with at least one root context.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The Envoys with filters, by process, in no order. Root contexts that don't know their process are one entry.
    pub(crate) fn known(&self) -> Vec<KnownEnvoy> {
        let mut unknown = KnownEnvoy { envoy: 0, contexts: 0, digest: 0 };
        let mut known = Vec::with_capacity(self.0.len());
        for (envoy, &Contexts { filters: contexts, digest, .. }) in &self.0 {
            match envoy.process() {
                _ if contexts == 0 => {}
                0 => {
                    unknown.contexts = unknown.contexts.saturating_add(contexts);
                    unknown.digest = unknown.digest.wrapping_add(digest);
                }
                envoy => known.push(KnownEnvoy { envoy, contexts, digest }),
            }
        }
        if unknown.contexts > 0 {
            known.push(unknown);
        }
        known
    }

    pub(crate) fn add_context(&mut self, envoy: EnvoyId, epoch: Epoch, door: Door) {
        let contexts = self.0.entry(envoy).or_default();
        contexts.count += 1;
        if door == Door::Filter {
            contexts.filters += 1;
            contexts.digest = contexts.digest.wrapping_add(digest(epoch));
        }
    }

    /// `true` if it was the last root context of the Envoy.
    pub(crate) fn remove_context(&mut self, envoy: EnvoyId, epoch: Epoch, door: Door) -> bool {
        let Some(contexts) = self.0.get_mut(&envoy) else {
            return false;
        };
        contexts.count -= 1;
        if door == Door::Filter {
            contexts.filters -= 1;
            contexts.digest = contexts.digest.wrapping_sub(digest(epoch));
        }
        let is_last = contexts.count == 0;
        if is_last {
            self.0.remove(&envoy);
        }
        is_last
    }

    /// The number of an Envoy's root contexts.
    pub(crate) fn contexts(&self, envoy: EnvoyId) -> usize {
        self.0.get(&envoy).copied().unwrap_or_default().count
    }
}
