//! The endpoints of one pool: by address in the configuration, by number in the engine.
//!
//! An address keeps its number while it is listed, and also before and after that as long as a request runs there. Then the number is free
//! for another address.

use std::net::SocketAddr;
use std::sync::Arc;

use hashbrown::HashMap;
use penstock_autopilot::{AutopilotEndpoint, Scraped};
use penstock_engine::HealthState;
use penstock_engine::input::{EndpointId, EndpointState, Relisted};
use penstock_engine::limits::ENDPOINTS_MAX;
use penstock_engine::policy::Gate;

use super::server_process::ServerProcess;
use crate::settings::EndpointSettings;

/// One endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) address: Arc<str>,
    /// The configuration has it. Otherwise it is kept because a request runs there.
    pub(super) is_listed: bool,
    pub(super) state: EndpointState,
    /// The health check passes, or there is none.
    is_healthy: bool,
    /// The engine sleeps, by its last metrics.
    pub(super) is_asleep: bool,
    pub(super) process: ServerProcess,
    /// In the last announcement to the filters: healthy, and not marked down.
    pub(super) is_announced: bool,
    /// The state at the last announcement, without health checks.
    pub(super) health: HealthState,
    /// Requests that it has served.
    pub(super) served: u64,
    /// The endpoint for whose answer it last failed to compute a prompt, or that failed itself, and what that one had served by then. `None`:
    /// a prompt that it computed was answered since.
    pub(super) last_failed_with: Option<(EndpointId, u64)>,
    pub(super) variant: Box<str>,
    max_batch: u64,
    /// Only a request that tolerates all of them may go there.
    pub(super) taints: Box<[Box<str>]>,
    /// The last metrics of its model server; `None` if there are none, or if they are too old.
    pub(super) scraped: Option<Scraped>,
}

/// Endpoints of a pool that are kept because filters run requests there. A pool has at most so many that are listed.
const UNLISTED_MAX: usize = ENDPOINTS_MAX;

/// All endpoints of a pool, by number.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    slots: Vec<Option<Endpoint>>,
    ids: HashMap<Arc<str>, EndpointId>,
    /// How many are kept and not listed.
    unlisted: usize,
    /// How many are listed and have taints. Most pools have none, and a registration sees that without visiting them.
    tainted: usize,
}

/// What another list of endpoints means.
#[derive(Debug, Default)]
pub(super) struct ListChange {
    pub(super) relisted: Relisted,
    /// An endpoint came or went, or its taints changed: requests may have other endpoints to go to.
    pub(super) is_eligibility_changed: bool,
}

/// Endpoints that were forgotten. Their numbers are free.
#[derive(Debug, Default)]
pub(super) struct Freed {
    pub(super) ids: Vec<EndpointId>,
    /// The filters still take one of them to be ready.
    pub(super) was_announced: bool,
}

impl Endpoint {
    /// Changes the health. Returns whether the endpoint becomes ready or stops being ready.
    pub(super) fn set_healthy(&mut self, is_healthy: bool) -> bool {
        self.is_healthy = is_healthy;
        self.update_ready()
    }

    /// Changes whether the engine sleeps. Returns whether the endpoint becomes ready or stops being ready.
    pub(super) fn set_asleep(&mut self, is_asleep: bool) -> bool {
        self.is_asleep = is_asleep;
        self.update_ready()
    }

    fn update_ready(&mut self) -> bool {
        let is_ready = self.is_healthy && !self.is_asleep;
        core::mem::replace(&mut self.state.ready, is_ready) != is_ready
    }

    fn is_tainted(&self) -> bool {
        self.is_listed && !self.taints.is_empty()
    }
}

impl Endpoints {
    pub(super) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.slots.get(index(id))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.slots.get_mut(index(id))?.as_mut()
    }

    /// The number of an address, listed or not.
    pub(super) fn id(&self, address: &str) -> Option<EndpointId> {
        self.ids.get(address).copied()
    }

    /// The number of an address that is listed.
    pub(super) fn listed_id(&self, address: &str) -> Option<EndpointId> {
        self.id(address).filter(|id| self.is_listed(*id))
    }

    pub(super) fn is_listed(&self, id: EndpointId) -> bool {
        self.get(id).is_some_and(|endpoint| endpoint.is_listed)
    }

    /// The address of an endpoint, shared; empty for one that isn't known.
    pub(super) fn address(&self, id: EndpointId) -> Arc<str> {
        self.get(id).map_or_else(Arc::default, |endpoint| endpoint.address.clone())
    }

    /// An address equal to this one, without a copy if it is known.
    pub(super) fn share(&self, address: &str) -> Arc<str> {
        self.ids.get_key_value(address).map_or_else(|| address.into(), |(known, _)| known.clone())
    }

    /// All slots in the order of their numbers.
    pub(super) fn slots(&self) -> impl Iterator<Item = Option<&Endpoint>> {
        self.slots.iter().map(Option::as_ref)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        let slots = (0..).map(EndpointId).zip(&self.slots);
        slots.filter_map(|(id, slot)| Some((id, slot.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (EndpointId, &mut Endpoint)> {
        let slots = (0..).map(EndpointId).zip(&mut self.slots);
        slots.filter_map(|(id, slot)| Some((id, slot.as_mut()?)))
    }

    pub(super) fn listed(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.iter().filter(|(_, endpoint)| endpoint.is_listed)
    }

    pub(super) fn any_listed(&self) -> bool {
        self.ids.len() > self.unlisted
    }

    /// Endpoints are kept that aren't listed: requests run there, or did a moment ago.
    pub(super) const fn any_unlisted(&self) -> bool {
        self.unlisted > 0
    }

    /// A listed endpoint has taints.
    pub(super) const fn any_tainted(&self) -> bool {
        self.tainted > 0
    }

    /// The listed endpoints as the autopilot needs them.
    pub(super) fn for_autopilot(&self, gate: Gate) -> Vec<AutopilotEndpoint> {
        let listed = self.listed().map(|(id, endpoint)| AutopilotEndpoint {
            id,
            variant: endpoint.variant.to_string(),
            max_batch: endpoint.max_batch,
            bound_initial: gate.bound_of(endpoint.state.weight),
        });
        listed.collect()
    }

    /// Replaces the list. An address that stays keeps its health, unless its health is no longer checked: then it is ready.
    /// Of an address that is listed twice, the first entry counts.
    pub(super) fn relist(&mut self, settings: &[EndpointSettings]) -> ListChange {
        let mut change = ListChange::default();
        let mut is_kept = vec![false; self.slots.len()];
        for endpoint_settings in settings {
            let (id, is_new) = self.place(&endpoint_settings.address);
            if index(id) >= is_kept.len() {
                is_kept.resize(index(id) + 1, false);
            }
            if !core::mem::replace(&mut is_kept[index(id)], true) {
                self.update(id, is_new, endpoint_settings, &mut change);
            }
        }
        for (id, is_kept) in (0..).map(EndpointId).zip(is_kept) {
            if !is_kept && self.unlist(id) {
                change.is_eligibility_changed = true;
                change.relisted.removed.push(id);
            }
        }
        change
    }

    /// Applies the settings of a listed endpoint.
    fn update(&mut self, id: EndpointId, is_new: bool, settings: &EndpointSettings, change: &mut ListChange) {
        let Some(endpoint) = self.slots.get_mut(index(id)).and_then(Option::as_mut) else {
            return;
        };
        let before = endpoint.state;
        let was_tainted = endpoint.is_tainted();
        let taints: Box<[Box<str>]> = settings.taints.iter().map(|taint| taint.as_str().into()).collect();
        change.is_eligibility_changed |= is_new || taints != endpoint.taints;
        endpoint.state.weight = settings.weight;
        endpoint.state.batched_tokens_max = settings.max_batched_tokens;
        endpoint.state.role = settings.role;
        endpoint.variant = settings.variant.as_str().into();
        endpoint.max_batch = settings.max_batch;
        endpoint.taints = taints;
        endpoint.set_healthy(settings.ready || (!is_new && endpoint.is_healthy));
        if !core::mem::replace(&mut endpoint.is_listed, true) {
            self.unlisted -= 1;
        }
        self.tainted -= usize::from(was_tainted);
        self.tainted += usize::from(endpoint.is_tainted());
        if is_new || before != endpoint.state {
            change.relisted.listed.push((id, endpoint.state));
        }
    }

    /// `true` if the endpoint was listed.
    fn unlist(&mut self, id: EndpointId) -> bool {
        let Some(endpoint) = self.get_mut(id).filter(|endpoint| endpoint.is_listed) else {
            return false;
        };
        let was_tainted = endpoint.is_tainted();
        endpoint.is_listed = false;
        endpoint.is_asleep = false;
        endpoint.set_healthy(false);
        endpoint.scraped = None;
        endpoint.process = ServerProcess::default();
        self.unlisted += 1;
        self.tainted -= usize::from(was_tainted);
        true
    }

    /// The number of an address where a request runs. If the address isn't known, it is kept, and not listed. `None`: it is no address, or
    /// too many are kept already.
    pub(super) fn keep(&mut self, address: &str) -> Option<EndpointId> {
        if self.id(address).is_none() && self.unlisted >= UNLISTED_MAX {
            return None;
        }
        address.parse::<SocketAddr>().ok()?;
        let (id, _) = self.place(address);
        Some(id)
    }

    /// The number of an address, and whether the address isn't listed yet.
    fn place(&mut self, address: &str) -> (EndpointId, bool) {
        if let Some(id) = self.id(address) {
            return (id, !self.is_listed(id));
        }
        let endpoint = Endpoint {
            address: address.into(),
            is_listed: false,
            state: EndpointState { ready: false, ..EndpointState::default() },
            is_healthy: false,
            is_asleep: false,
            process: ServerProcess::default(),
            is_announced: false,
            health: HealthState::Healthy,
            served: 0,
            last_failed_with: None,
            variant: Box::default(),
            max_batch: 0,
            taints: Box::default(),
            scraped: None,
        };
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.slots.len());
        let id = EndpointId(u32::try_from(slot).expect("invariant: a pool has fewer than 2^32 endpoints"));
        self.ids.insert(endpoint.address.clone(), id);
        self.unlisted += 1;
        match free {
            Some(slot) => self.slots[slot] = Some(endpoint),
            None => self.slots.push(Some(endpoint)),
        }
        (id, true)
    }

    /// Frees the numbers of endpoints that aren't listed and where nothing runs.
    pub(super) fn free_unlisted(&mut self, is_running: impl Fn(EndpointId) -> bool) -> Freed {
        let mut freed = Freed::default();
        if self.unlisted == 0 {
            return freed;
        }
        for (id, slot) in (0..).map(EndpointId).zip(&mut self.slots) {
            let is_free = |endpoint: &mut Endpoint| !endpoint.is_listed && !is_running(id);
            if let Some(endpoint) = slot.take_if(is_free) {
                self.ids.remove(&endpoint.address);
                freed.was_announced |= endpoint.is_announced;
                freed.ids.push(id);
            }
        }
        self.unlisted -= freed.ids.len();
        while self.slots.last().is_some_and(Option::is_none) {
            self.slots.pop();
        }
        freed
    }

    /// The counters and the table of addresses agree with the slots.
    pub(super) fn audit(&self) -> bool {
        let unlisted = self.iter().filter(|(_, endpoint)| !endpoint.is_listed).count();
        let tainted = self.iter().filter(|(_, endpoint)| endpoint.is_tainted()).count();
        let mut all = self.iter();
        unlisted == self.unlisted
            && tainted == self.tainted
            && self.ids.len() == self.iter().count()
            && all.all(|(id, endpoint)| self.id(&endpoint.address) == Some(id))
    }
}

const fn index(id: EndpointId) -> usize {
    id.0 as usize
}

#[cfg(test)]
mod tests {
    use core::slice::from_ref;

    use penstock_engine::input::Role;
    use penstock_engine::units::Decimal;

    use super::*;

    fn endpoint(address: &str, taints: &[&str]) -> EndpointSettings {
        EndpointSettings {
            address: address.into(),
            weight: Decimal::whole(1),
            ready: true,
            variant: String::new(),
            max_batch: 8,
            max_batched_tokens: None,
            taints: taints.iter().map(|&taint| taint.into()).collect(),
            role: Role::Both,
        }
    }

    #[test]
    fn listed_and_tainted_endpoints_are_counted_through_every_change_of_the_list() {
        let (plain, tainted) = (endpoint("a:1", &[]), endpoint("a:1", &["spot"]));
        let other = endpoint("b:1", &["spot", "old"]);
        // A list, and whether any endpoint is listed then, and any is tainted.
        let lists: [(&[EndpointSettings], bool, bool); 8] = [
            (&[], false, false),
            (from_ref(&plain), true, false),
            (from_ref(&tainted), true, true),
            (&[tainted.clone(), other.clone()], true, true),
            (&[plain.clone(), other.clone()], true, true),
            (&[plain.clone(), tainted.clone(), endpoint("b:1", &[])], true, false),
            (from_ref(&other), true, true),
            (&[], false, false),
        ];
        let mut endpoints = Endpoints::default();
        for (list, any_listed, any_tainted) in lists {
            endpoints.relist(list);
            assert!(endpoints.audit());
            assert_eq!((endpoints.any_listed(), endpoints.any_tainted()), (any_listed, any_tainted));
        }
        endpoints.free_unlisted(|id| id == EndpointId(0));
        endpoints.relist(&[plain]);
        assert!(endpoints.audit() && endpoints.any_listed() && !endpoints.any_tainted());
    }

    #[test]
    fn addresses_that_are_not_listed_are_kept_up_to_a_limit() {
        let mut endpoints = Endpoints::default();
        endpoints.relist(&[endpoint("127.0.0.1:1", &[])]);
        let address = |number: usize| format!("10.0.{}.{}:80", number / 250, number % 250);
        assert!((0..UNLISTED_MAX).all(|number| endpoints.keep(&address(number)).is_some()));
        assert_eq!(endpoints.keep(&address(UNLISTED_MAX)), None);
        assert!(endpoints.keep(&address(0)).is_some(), "it is kept already");
        assert_eq!(endpoints.keep("127.0.0.1:1"), Some(EndpointId(0)), "it is listed");
        assert_eq!(["", "server:80", "10.0.0.1"].map(|address| endpoints.keep(address)), [None; 3]);
        endpoints.free_unlisted(|_| false);
        assert!(endpoints.keep(&address(UNLISTED_MAX)).is_some() && endpoints.audit());
    }
}
