//! The endpoints of one pool: by address as the configuration lists them, by number as its engine knows them.
//!
//! An address keeps its number while it is listed, and after that as long as something runs there; then the number is
//! given to another. So whoever remembers an endpoint by its number forgets it when [`Pool::vacate`] says so.

use std::sync::Arc;

use penstock_engine::Instant;
use penstock_engine::input::{EndpointId, EndpointState, Input, Relisted};

use crate::autopilot::{AutopilotEndpoint, Scraped};
use crate::pool::Pool;
use crate::settings::EndpointSettings;

/// One endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// Empty: its number is free.
    pub(crate) address: Arc<str>,
    /// The configuration has it; else it is here because something runs there.
    pub(crate) listed: bool,
    pub(crate) state: EndpointState,
    /// As the filters were told it: healthy, and not marked down.
    pub(crate) ready: bool,
    /// Healthy, and marked down.
    pub(crate) down: bool,
    pub(crate) variant: Box<str>,
    max_batch: u64,
    /// Only what tolerates all of them goes there.
    pub(crate) taints: Box<[Box<str>]>,
    /// What its server last said of itself; `None`: nothing, or too long ago.
    pub(crate) scraped: Option<Scraped>,
}

impl Pool {
    /// The endpoint at an address, which is listed or something runs there; `None`: not one of this pool.
    pub(crate) fn endpoint(&self, address: &str) -> Option<EndpointId> {
        let id = self.ids.get(address).copied()?;
        (self.is_listed(id) || self.engine.has_endpoint(id)).then_some(id)
    }

    /// The endpoint at an address that may be granted.
    pub(crate) fn listed(&self, address: &str) -> Option<EndpointId> {
        self.ids.get(address).copied().filter(|id| self.is_listed(*id))
    }

    fn is_listed(&self, id: EndpointId) -> bool {
        self.at(id).is_some_and(|it| it.listed)
    }

    pub(crate) fn at(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(usize::try_from(id.0).ok()?)
    }

    /// The address of an endpoint; empty for one that isn't any more.
    pub(crate) fn address(&self, id: EndpointId) -> &str {
        self.at(id).map_or("", |it| &it.address)
    }

    /// The same address, of one that is known without a copy.
    pub(crate) fn shared_address(&self, address: &str) -> Arc<str> {
        let known = self.ids.get(address).and_then(|id| self.at(*id));
        known.map_or_else(|| address.into(), |it| it.address.clone())
    }

    /// Addresses by the endpoint's number.
    pub(crate) fn addresses(&self) -> Vec<Box<str>> {
        self.endpoints.iter().map(|it| (*it.address).into()).collect()
    }

    /// The endpoints that are listed, by number.
    pub(crate) fn all_listed(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        let all = (0..).map(EndpointId).zip(&self.endpoints);
        all.filter(|(_, endpoint)| endpoint.listed)
    }

    /// An endpoint passes its health check, or doesn't. `true`: the engine was told.
    pub(crate) fn set_ready(&mut self, now: Instant, address: &str, ready: bool) -> bool {
        let Some(id) = self.listed(address) else {
            return false;
        };
        let Some(endpoint) = usize::try_from(id.0)
            .ok()
            .and_then(|at| self.endpoints.get_mut(at))
        else {
            return false;
        };
        if endpoint.state.ready == ready {
            return false;
        }
        endpoint.state.ready = ready;
        let state = endpoint.state;
        self.autopilot.ready(now, id, ready);
        self.engine.handle(now, Input::Endpoint { id, state });
        true
    }

    /// Takes what a server says of itself; the endpoint, unless it isn't one of this pool.
    pub(crate) fn take_scraped(
        &mut self,
        now: Instant,
        address: &str,
        scraped: Option<Scraped>,
    ) -> Option<EndpointId> {
        let id = self.listed(address)?;
        let endpoint = self.endpoints.get_mut(usize::try_from(id.0).ok()?)?;
        endpoint.scraped = scraped;
        self.autopilot.scraped(now, id, scraped);
        Some(id)
    }

    /// The list is this from now on; the engine is to be told what it returns. One that stays keeps its health: only
    /// where nothing looks at that any more it is ready. Of an address that is listed twice the first counts. `true`:
    /// requests may go elsewhere by that.
    pub(crate) fn relist(&mut self, now: Instant, settings: &[EndpointSettings]) -> (Relisted, bool) {
        let (mut relisted, mut concerns_requests) = (Relisted::default(), false);
        let mut stays = vec![false; self.endpoints.len()];
        for of in settings {
            let (id, is_new) = self.place(of);
            let Some(at) = usize::try_from(id.0).ok() else {
                continue;
            };
            if at >= stays.len() {
                stays.resize(at + 1, false);
            }
            if core::mem::replace(&mut stays[at], true) {
                continue;
            }
            let endpoint = &mut self.endpoints[at];
            let before = endpoint.state;
            endpoint.state.weight = of.weight;
            endpoint.variant = of.variant.as_str().into();
            endpoint.max_batch = of.max_batch;
            let taints: Box<[Box<str>]> = of.taints.iter().map(|taint| taint.as_str().into()).collect();
            concerns_requests |= is_new || taints != endpoint.taints;
            endpoint.taints = taints;
            endpoint.listed = true;
            endpoint.state.ready = of.ready || (!is_new && before.ready);
            if is_new || before != endpoint.state {
                relisted.listed.push((id, endpoint.state));
            }
        }
        for (at, stays) in (0..).zip(stays) {
            let endpoint = &mut self.endpoints[at];
            if endpoint.listed && !stays {
                endpoint.listed = false;
                endpoint.state.ready = false;
                endpoint.scraped = None;
                concerns_requests = true;
                relisted.removed.extend(u32::try_from(at).ok().map(EndpointId));
            }
        }
        let seen: Vec<AutopilotEndpoint> = self
            .all_listed()
            .map(|(id, endpoint)| AutopilotEndpoint {
                id,
                variant: endpoint.variant.to_string(),
                max_batch: endpoint.max_batch,
            })
            .collect();
        self.autopilot.relist(now, &seen);
        for (id, state) in &relisted.listed {
            self.autopilot.ready(now, *id, state.ready);
        }
        (relisted, concerns_requests)
    }

    /// The number of an endpoint, and whether it isn't listed yet.
    fn place(&mut self, settings: &EndpointSettings) -> (EndpointId, bool) {
        if let Some(&id) = self.ids.get(settings.address.as_str()) {
            return (id, !self.is_listed(id));
        }
        let endpoint = Endpoint {
            address: settings.address.as_str().into(),
            listed: false,
            state: EndpointState {
                ready: false,
                weight: settings.weight,
                batched_tokens_max: None,
            },
            ready: false,
            down: false,
            variant: Box::default(),
            max_batch: settings.max_batch,
            taints: Box::default(),
            scraped: None,
        };
        let free = self.endpoints.iter().position(|it| it.address.is_empty());
        let at = free.unwrap_or(self.endpoints.len());
        let id = EndpointId(u32::try_from(at).expect("invariant: a list has fewer endpoints than that"));
        self.ids.insert((*endpoint.address).into(), id);
        match free {
            Some(at) => self.endpoints[at] = endpoint,
            None => self.endpoints.push(endpoint),
        }
        (id, true)
    }

    /// Frees the numbers of endpoints that aren't listed and where nothing runs any more: those.
    pub(crate) fn vacate(&mut self) -> Vec<EndpointId> {
        let mut free = Vec::new();
        for (id, endpoint) in (0..).map(EndpointId).zip(&mut self.endpoints) {
            if endpoint.listed || endpoint.address.is_empty() || self.engine.has_endpoint(id) {
                continue;
            }
            self.ids.remove(&*endpoint.address);
            endpoint.address = Arc::default();
            endpoint.variant = Box::default();
            endpoint.taints = Box::default();
            free.push(id);
        }
        if !free.is_empty() {
            self.autopilot.settle();
        }
        while self.endpoints.last().is_some_and(|it| it.address.is_empty()) {
            self.endpoints.pop();
        }
        free
    }
}
