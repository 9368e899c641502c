//! Changes of an autopilot's endpoints and settings while requests are in flight.
//!
//! An endpoint that is no longer listed is followed until its last request has ended, because that request still shows
//! something of the variant. The parameters of a variant outlive its endpoints, so a variant that scales to zero and back
//! isn't learned again.

use penstock_engine::Instant;
use penstock_engine::input::EndpointId;
use penstock_model::Targets;
use penstock_model::slo::{Slo, Source};

use super::{Autopilot, indices, sorted};
use crate::endpoint::Endpoint;
use crate::types::{AutopilotEndpoint, AutopilotSettings, Kept, PendingServers};
use crate::variant::Variant;

/// Kept parameters of variants without endpoints.
const KEPT_MAX: usize = 64;

impl Autopilot {
    /// Replaces the list of endpoints, and of the servers that are no endpoints yet. A new endpoint isn't ready until
    /// [`Self::ready`] reports its health.
    pub fn relist(&mut self, now: Instant, endpoints: &[AutopilotEndpoint], pending: &[PendingServers]) {
        self.pending = pending.to_vec();
        let is_new = |id: EndpointId| !self.indices.contains_key(&id);
        let new: Vec<&AutopilotEndpoint> = endpoints.iter().filter(|listed| is_new(listed.id)).collect();
        for endpoint in &mut self.endpoints {
            endpoint.is_listed = endpoints.iter().any(|listed| listed.id == endpoint.id);
            if !endpoint.is_listed {
                endpoint.set_ready(now, now.since(self.created_at), false);
                // The engine has forgotten the allowance.
                endpoint.allowance = None;
            }
        }
        for listed in new {
            let mut endpoint = Endpoint::new(listed, 0, self.extra_places);
            endpoint.is_ready = false;
            self.indices.insert(listed.id, self.endpoints.len());
            self.endpoints.push(endpoint);
        }
        self.assign_variants(endpoints);
        self.forget_unlisted();
        self.start_from_siblings(now);
        self.analyze();
        self.update_allowances(now);
        self.plan_fit(now);
    }

    /// Applies other settings. The endpoints and the window stay.
    pub fn change(&mut self, now: Instant, settings: &AutopilotSettings) {
        for (name, kept) in &settings.kept {
            self.keep(name, *kept);
        }
        if self.slo_policy != settings.slo {
            self.slo_policy = settings.slo;
            // Inferred targets followed from the old policy.
            self.slo = Slo { targets: Targets::default(), source: Source::None };
        }
        if settings.gates && !self.gates {
            self.endpoints.iter_mut().for_each(Endpoint::restart_search);
        }
        if !settings.gates {
            self.endpoints.iter_mut().for_each(Endpoint::forget_unstarted);
        }
        self.gates = settings.gates;
        self.extra_places = settings.extra_places;
        for endpoint in &mut self.endpoints {
            endpoint.search.set_extra_places(settings.extra_places);
        }
        self.ttl = settings.ttl;
        self.transient = settings.transient;
        self.analyze();
        self.update_allowances(now);
        self.plan_fit(now);
    }

    /// Gives every endpoint its variant by name. An endpoint that changes its variant starts without history.
    fn assign_variants(&mut self, endpoints: &[AutopilotEndpoint]) {
        let mut names: Vec<String> = Vec::with_capacity(self.endpoints.len());
        for (index, endpoint) in self.endpoints.iter_mut().enumerate() {
            let before = self.variants.get(endpoint.variant).filter(|_| !endpoint.is_fresh);
            let listed = endpoints.iter().find(|listed| listed.id == endpoint.id);
            let name = match (listed, before) {
                (Some(listed), _) => listed.variant.clone(),
                (None, Some(before)) => before.name.clone(),
                (None, None) => String::new(),
            };
            if let Some(listed) = listed {
                endpoint.set_limits(listed);
            }
            if before.is_some_and(|before| before.name != name) {
                endpoint.forget_history();
                let in_flight = self.in_flight.values_mut();
                in_flight
                    .filter(|request| request.endpoint == index)
                    .for_each(|request| request.is_whole = false);
            }
            endpoint.is_fresh = false;
            names.push(name);
        }
        let sorted = sorted(names.clone(), &self.pending);
        let mut old: Vec<Variant> = core::mem::take(&mut self.variants);
        for name in &sorted {
            let variant = match old.iter().position(|variant| variant.name == *name) {
                Some(index) => old.swap_remove(index),
                None => Variant::new(name.clone(), self.kept(name)),
            };
            self.variants.push(variant);
        }
        for (endpoint, name) in self.endpoints.iter_mut().zip(&names) {
            endpoint.variant = sorted.binary_search(name).unwrap_or(0);
        }
        for unused in old {
            if let Some(kept) = unused.to_keep() {
                self.kept.retain(|(name, _)| *name != unused.name);
                self.keep(&unused.name, kept);
            }
        }
    }

    /// Forgets endpoints that aren't listed and have no request in flight, and variants without servers.
    pub fn forget_unlisted(&mut self) {
        if !self.endpoints.iter().any(Endpoint::is_over) {
            return;
        }
        let mut new_indices = Vec::with_capacity(self.endpoints.len());
        let mut kept = 0;
        for endpoint in &self.endpoints {
            new_indices.push(kept);
            kept += usize::from(!endpoint.is_over());
        }
        self.endpoints.retain(|endpoint| !endpoint.is_over());
        self.indices = indices(&self.endpoints);
        for request in self.in_flight.values_mut() {
            request.endpoint = new_indices[request.endpoint];
        }
        self.assign_variants(&[]);
    }

    fn kept(&self, variant: &str) -> Option<Kept> {
        let kept = self.kept.iter().find(|(name, _)| name == variant);
        kept.map(|(_, kept)| *kept)
    }

    fn keep(&mut self, variant: &str, kept: Kept) {
        if self.kept(variant).is_some() {
            return;
        }
        if self.kept.len() >= KEPT_MAX {
            self.kept.remove(0);
        }
        self.kept.push((variant.to_owned(), kept));
    }
}
