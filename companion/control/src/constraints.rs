//! Where a request may go: by what its client said of it, by the taints of the pool's endpoints, and by what its Envoy
//! is known to pass over.

use penstock_engine::Instant;
use penstock_engine::input::{Amended, EndpointId, Input, RequestId};
use penstock_wire as wire;

use crate::control::Control;
use crate::envoys::Envoy;

/// No endpoint has this number: who may go there only waits for one to be listed.
const NOWHERE: EndpointId = EndpointId(u32::MAX);

/// What a client that is trusted said of where its request may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Constraints {
    /// Addresses; empty: any.
    subset: Box<[Box<str>]>,
    /// The only address; empty: any.
    pin: Box<str>,
    /// Taints that are no hindrance.
    tolerations: Box<[Box<str>]>,
}

impl Constraints {
    /// `None`: it said nothing.
    pub(crate) fn of(from: &wire::Register) -> Option<Box<Self>> {
        if from.subset.is_empty() && from.pin.is_empty() && from.tolerations.is_empty() {
            return None;
        }
        let list = |of: &[String]| of.iter().map(|it| it.as_str().into()).collect();
        Some(Box::new(Self {
            subset: list(&from.subset),
            pin: from.pin.as_str().into(),
            tolerations: list(&from.tolerations),
        }))
    }
}

impl Control {
    /// Where a request may go; `None`: anywhere. Addresses that aren't listed drop out. What its Envoy passes over is
    /// left out as long as something else is left. While a pool has no endpoint at all nobody's own word is to blame.
    pub(crate) fn eligible(
        &self,
        now: Instant,
        envoy: Option<Envoy>,
        pool: usize,
        constraints: Option<&Constraints>,
    ) -> Option<Box<[EndpointId]>> {
        let of = &self.pools[pool];
        let tolerations = constraints.map_or(&[][..], |it| &it.tolerations);
        let tolerates = |id: EndpointId| {
            let taints = of.at(id).map_or(&[][..], |it| &it.taints);
            taints.iter().all(|taint| tolerations.contains(taint))
        };
        let all = || of.all_listed().map(|(id, _)| id);
        let mut allowed: Option<Vec<EndpointId>> = None;
        if !all().all(tolerates) {
            allowed = Some(all().filter(|id| tolerates(*id)).collect());
        }
        if let Some(Constraints { subset, pin, .. }) = constraints {
            let mut among = |addresses: &[Box<str>]| {
                let mut ids: Vec<_> = addresses.iter().filter_map(|it| of.listed(it)).collect();
                ids.sort_unstable();
                ids.dedup();
                ids.retain(|id| allowed.as_ref().is_none_or(|allowed| allowed.contains(id)));
                allowed = Some(ids);
            };
            if !subset.is_empty() {
                among(subset);
            }
            if !pin.is_empty() {
                among(core::slice::from_ref(pin));
            }
        }
        if let Some(envoy) = envoy
            && self.envoys.avoids_any(now, envoy, pool)
        {
            let able = allowed.clone().unwrap_or_else(|| all().collect());
            let used: Vec<_> = able
                .iter()
                .copied()
                .filter(|id| !self.envoys.avoids(now, envoy, pool, *id))
                .collect();
            if !used.is_empty() && used.len() < able.len() {
                allowed = Some(used);
            }
        }
        if allowed.is_some() && all().next().is_none() {
            allowed = Some(vec![NOWHERE]);
        }
        allowed.map(Vec::into_boxed_slice)
    }

    /// Where a request may go now, and its class set.
    fn amended(&mut self, now: Instant, id: RequestId) -> Option<(usize, Amended)> {
        let entry = self.requests.get(id)?;
        let pool = entry.pool;
        let envoy = self.requests.contexts.get(&entry.name.epoch).map(|it| it.envoy);
        let eligible = self.eligible(now, envoy, pool, entry.constraints.as_deref());
        let class_set = self.pools[pool].class_set(&entry.labels.model);
        self.requests.get_mut(id)?.confined = eligible.is_some();
        let amended = Amended {
            id,
            class_set,
            eligible,
        };
        Some((pool, amended))
    }

    /// Endpoints or classes aren't what they were: tells the engine what follows for a request.
    pub(crate) fn amend(&mut self, now: Instant, id: RequestId) {
        if let Some((pool, amended)) = self.amended(now, id) {
            self.decide(now, pool, Input::Amend(amended));
        }
    }

    /// What another list of endpoints means for those that wait in a pool, as far as it may concern them.
    pub(crate) fn amended_waiting(&mut self, now: Instant, pool: usize) -> Vec<Amended> {
        let tainted = self.pools[pool].all_listed().any(|(_, it)| !it.taints.is_empty());
        let concerns = |id: &RequestId| {
            let entry = self.requests.get(*id);
            entry.is_some_and(|it| it.confined || it.constraints.is_some() || tainted)
        };
        let those: Vec<RequestId> = self.waiting_in(pool).into_iter().filter(concerns).collect();
        let amended = those.into_iter().filter_map(|id| self.amended(now, id));
        amended.map(|(_, amended)| amended).collect()
    }

    /// Those that wait in a pool, in the order they were named.
    pub(crate) fn waiting_in(&self, pool: usize) -> Vec<RequestId> {
        let entries = self.requests.entries();
        let waiting = entries.filter(|(_, entry)| entry.pool == pool && entry.waits());
        let mut ids: Vec<RequestId> = waiting.map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }
}
