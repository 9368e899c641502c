//! What the objects beside an InferencePool say of its requests: their priorities, and the models that they are sent with.

use std::collections::BTreeMap;

use kube::Client;
use penstock_config::Rewrite;
use penstock_engine::input::Band;

use super::pool_objects::{self, PoolObjects};
use super::rewrites::{self, Rules};
use super::{Target, objectives};

/// The objectives and rewrites of a pool, as far as they are asked for. Dropping it ends the watches.
#[derive(Debug)]
pub(super) struct PoolRules {
    objectives: Option<PoolObjects<Band>>,
    rewrites: Option<PoolObjects<Rules>>,
}

impl PoolRules {
    /// Follows what the target asks for.
    pub(super) fn watch(client: &Client, target: &Target<'_>) -> Self {
        let Target { namespace, name, .. } = *target;
        let objectives =
            target.objectives.then(|| PoolObjects::watch(&objectives::KIND, client, namespace, name));
        let rewrites = target.rewrites.then(|| PoolObjects::watch(&rewrites::KIND, client, namespace, name));
        Self { objectives, rewrites }
    }

    /// The bands by the name of an objective, and the rewrites in the order in which they count; `None` until all are known.
    pub(super) fn known(&self) -> Option<(BTreeMap<String, Band>, Vec<Rewrite>)> {
        let bands = match &self.objectives {
            Some(objects) => objects.by_name()?,
            None => BTreeMap::new(),
        };
        let rewrites = match &self.rewrites {
            Some(objects) => rewrites::ordered(objects.by_name()?),
            None => Vec::new(),
        };
        Some((bands, rewrites))
    }

    /// What can't be read, and why.
    pub(super) fn failures(&self) -> Vec<String> {
        let objectives = self.objectives.iter().flat_map(PoolObjects::failures);
        objectives.chain(self.rewrites.iter().flat_map(PoolObjects::failures)).collect()
    }

    /// Returns when something has changed; never if nothing is asked for.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = pool_objects::changed(&mut self.objectives) => {}
            () = pool_objects::changed(&mut self.rewrites) => {}
        }
    }
}
