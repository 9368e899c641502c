//! The Envoys behind the sessions. An Envoy has one root context for every worker and plugin configuration.

use hashbrown::HashMap;
use penstock_election::KnownEnvoy;

use crate::ids::EnvoyId;

/// The root contexts of every Envoy, including orphaned ones.
#[derive(Debug, Default)]
pub(crate) struct Envoys(HashMap<EnvoyId, usize>);

impl Envoys {
    /// Envoys with at least one root context.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The Envoys by process, in no order. Root contexts that don't know their process are one entry.
    pub(crate) fn known(&self) -> Vec<KnownEnvoy> {
        let mut unknown = 0;
        let mut known = Vec::with_capacity(self.0.len());
        for (envoy, contexts) in &self.0 {
            let contexts = u32::try_from(*contexts).unwrap_or(u32::MAX);
            match envoy.process() {
                0 => unknown += contexts,
                envoy => known.push(KnownEnvoy { envoy, contexts }),
            }
        }
        if unknown > 0 {
            known.push(KnownEnvoy {
                envoy: 0,
                contexts: unknown,
            });
        }
        known
    }

    pub(crate) fn add_context(&mut self, envoy: EnvoyId) {
        *self.0.entry(envoy).or_default() += 1;
    }

    /// `true` if it was the last root context of the Envoy.
    pub(crate) fn remove_context(&mut self, envoy: EnvoyId) -> bool {
        let Some(contexts) = self.0.get_mut(&envoy) else {
            return false;
        };
        *contexts -= 1;
        let is_last = *contexts == 0;
        if is_last {
            self.0.remove(&envoy);
        }
        is_last
    }

    /// The number of an Envoy's root contexts.
    pub(crate) fn contexts(&self, envoy: EnvoyId) -> usize {
        self.0.get(&envoy).copied().unwrap_or_default()
    }
}
