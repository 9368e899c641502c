//! The Envoys behind the sessions. An Envoy has one root context for every worker and plugin configuration.

use hashbrown::HashMap;
use penstock_election::{KnownEnvoy, Pickers};

use crate::ids::{EnvoyId, Epoch, Origin};

/// The root contexts of every Envoy, including orphaned ones.
#[derive(Debug, Default)]
pub(crate) struct Envoys(HashMap<EnvoyId, Contexts>);

/// The root contexts of one Envoy, by origin. Each worker of an endpoint picker counts as an Envoy.
#[derive(Clone, Copy, Debug, Default)]
struct Contexts {
    filters: Group,
    own_picker: Group,
    earlier_picker: Group,
}

/// Root contexts.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    count: u32,
    /// As in [`KnownEnvoy::digest`].
    digest: u64,
}

/// The number of a root context in [`KnownEnvoy::digest`].
pub(crate) const fn digest(epoch: Epoch) -> u64 {
    epoch.high ^ epoch.low
}

impl Contexts {
    const fn of(&mut self, origin: Origin) -> &mut Group {
        match origin {
            Origin::Filter => &mut self.filters,
            Origin::OwnPicker => &mut self.own_picker,
            Origin::EarlierPicker => &mut self.earlier_picker,
        }
    }

    const fn count(&self) -> usize {
        self.filters.count as usize + self.own_picker.count as usize + self.earlier_picker.count as usize
    }
}

impl Envoys {
    /// Envoys with at least one root context.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The Envoys with filters, by process, in no order. Root contexts that don't know their process are one entry.
    pub(crate) fn known(&self) -> Vec<KnownEnvoy> {
        self.by_process(|contexts| contexts.filters)
    }

    /// The workers of endpoint pickers that have sessions here.
    pub(crate) fn known_pickers(&self) -> Pickers {
        Pickers {
            own: self.by_process(|contexts| contexts.own_picker),
            earlier: self.by_process(|contexts| contexts.earlier_picker),
        }
    }

    fn by_process(&self, group: impl Fn(&Contexts) -> Group) -> Vec<KnownEnvoy> {
        let mut unknown = KnownEnvoy { envoy: 0, contexts: 0, digest: 0 };
        let mut known = Vec::with_capacity(self.0.len());
        for (envoy, contexts) in &self.0 {
            let Group { count: contexts, digest } = group(contexts);
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

    pub(crate) fn add_context(&mut self, envoy: EnvoyId, epoch: Epoch, origin: Origin) {
        let group = self.0.entry(envoy).or_default().of(origin);
        group.count += 1;
        group.digest = group.digest.wrapping_add(digest(epoch));
    }

    /// `true` if it was the last root context of the Envoy.
    pub(crate) fn remove_context(&mut self, envoy: EnvoyId, epoch: Epoch, origin: Origin) -> bool {
        let Some(contexts) = self.0.get_mut(&envoy) else {
            return false;
        };
        let group = contexts.of(origin);
        group.count -= 1;
        group.digest = group.digest.wrapping_sub(digest(epoch));
        let is_last = contexts.count() == 0;
        if is_last {
            self.0.remove(&envoy);
        }
        is_last
    }

    /// The number of an Envoy's root contexts.
    pub(crate) fn contexts(&self, envoy: EnvoyId) -> usize {
        self.0.get(&envoy).map_or(0, Contexts::count)
    }
}
