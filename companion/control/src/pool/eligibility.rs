//! The endpoints that a request may go to: by its client's choice, by the endpoints' taints, and by what its Envoy passes
//! over.

use penstock_engine::Instant;
use penstock_engine::input::{EndpointId, Kind};

use super::Pool;
use super::endpoints::Endpoints;
use crate::ids::EnvoyId;
use crate::registration::Registration;

/// No endpoint has this number. A request that may only go there waits until an endpoint is listed.
const NOWHERE: EndpointId = EndpointId(u32::MAX);

/// The endpoints that a trusted client chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Constraints {
    /// Addresses; empty for any.
    subset: Box<[Box<str>]>,
    /// The only address.
    pin: Option<Box<str>>,
    /// Taints that the request tolerates.
    tolerations: Box<[Box<str>]>,
}

impl Constraints {
    /// `None` if the client chose none.
    pub(super) fn new(registration: &Registration<'_>) -> Option<Box<Self>> {
        if registration.subset.is_empty() && registration.pin.is_none() && registration.tolerations.is_empty()
        {
            return None;
        }
        let list = |texts: &[String]| texts.iter().map(|text| text.as_str().into()).collect();
        Some(Box::new(Self {
            subset: list(registration.subset),
            pin: registration.pin.map(Into::into),
            tolerations: list(registration.tolerations),
        }))
    }

    /// The endpoints on the client's lists that are listed and allowed so far (`None` for any).
    fn restrict(
        &self,
        endpoints: &Endpoints,
        mut allowed: Option<Vec<EndpointId>>,
    ) -> Option<Vec<EndpointId>> {
        let mut restrict_to = |addresses: &[Box<str>]| {
            let mut ids: Vec<_> =
                addresses.iter().filter_map(|address| endpoints.listed_id(address)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.retain(|id| allowed.as_ref().is_none_or(|allowed| allowed.contains(id)));
            allowed = Some(ids);
        };
        if !self.subset.is_empty() {
            restrict_to(&self.subset);
        }
        if let Some(pin) = &self.pin {
            restrict_to(core::slice::from_ref(pin));
        }
        allowed
    }
}

impl Pool {
    /// The endpoints that a request of this Envoy and kind may go to; `None` for any. Endpoints that the Envoy passes over, and those that
    /// don't have the model, are left out as long as there are others. While the pool has no endpoints at all the request waits, whatever its constraints.
    pub(super) fn eligible(
        &self,
        now: Instant,
        envoy: EnvoyId,
        kind: Kind,
        constraints: Option<&Constraints>,
    ) -> Option<Box<[EndpointId]>> {
        let tolerations = constraints.map_or(&[][..], |constraints| &constraints.tolerations);
        let mut allowed = self.tolerated(tolerations);
        if let Some(constraints) = constraints {
            allowed = constraints.restrict(&self.endpoints, allowed);
        }
        if self.avoided.contains_any(now, envoy) {
            allowed = self.without(allowed, |id| self.avoided.contains(now, envoy, id));
        }
        if self.missing_models.has(now, kind) {
            allowed = self.without(allowed, |id| self.missing_models.contains(now, kind, id));
        }
        if allowed.is_some() && !self.endpoints.any_listed() {
            allowed = Some(vec![NOWHERE]);
        }
        allowed.map(Vec::into_boxed_slice)
    }

    /// The allowed endpoints (`None` for any) without those that are to be avoided, unless there are no others.
    fn without(
        &self,
        allowed: Option<Vec<EndpointId>>,
        is_avoided: impl Fn(EndpointId) -> bool,
    ) -> Option<Vec<EndpointId>> {
        let candidates = allowed.clone().unwrap_or_else(|| {
            let all = self.endpoints.listed();
            all.map(|(id, _)| id).collect()
        });
        let used: Vec<_> = candidates.iter().copied().filter(|id| !is_avoided(*id)).collect();
        if used.is_empty() || used.len() == candidates.len() { allowed } else { Some(used) }
    }

    /// The listed endpoints whose taints are all among `tolerations`; `None` for all of them. Visits the endpoints only if
    /// one of them has taints.
    fn tolerated(&self, tolerations: &[Box<str>]) -> Option<Vec<EndpointId>> {
        if !self.endpoints.any_tainted() {
            return None;
        }
        let is_tolerated = |taints: &[Box<str>]| taints.iter().all(|taint| tolerations.contains(taint));
        let listed = || self.endpoints.listed();
        let tolerated = listed().filter(|(_, endpoint)| is_tolerated(&endpoint.taints));
        let ids: Vec<_> = tolerated.map(|(id, _)| id).collect();
        (ids.len() < listed().count()).then_some(ids)
    }
}
