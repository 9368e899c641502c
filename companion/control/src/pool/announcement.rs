//! What the filters know of a pool: its ready endpoints, and the bound for requests that go without the companion.

use penstock_engine::input::EndpointId;
use penstock_engine::{HealthReason, HealthState};
use penstock_wire as wire;

use super::Pool;
use super::endpoints::Endpoints;
use crate::observation::PoolNews;

/// The last announcement, without the endpoints' part, which each endpoint remembers.
#[derive(Debug, Default)]
pub(super) struct Announced {
    fallback_bound: Option<u64>,
    ready_count: usize,
    health_changes: u64,
    /// The bound may have changed since.
    is_stale: bool,
    /// An endpoint that was announced as ready is forgotten.
    is_endpoint_forgotten: bool,
    /// As in [`wire::endpoints_digest`].
    digest: u64,
}

/// How an announcement differs from the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnnouncementChange {
    /// Not at all.
    None,
    /// In the bound for requests that go without the companion.
    Bound,
    /// In the endpoints.
    Ready,
}

impl Announced {
    /// Nothing was announced.
    pub(super) fn nothing() -> Self {
        Self { is_stale: true, ..Self::default() }
    }

    pub(super) const fn mark_stale(&mut self) {
        self.is_stale = true;
    }

    pub(super) const fn mark_endpoint_forgotten(&mut self) {
        self.is_stale = true;
        self.is_endpoint_forgotten = true;
    }
}

/// An announcement to the filters.
#[derive(Debug)]
pub(crate) struct Announcement<'a> {
    pub(crate) pool: &'a str,
    /// Requests that each Envoy may have in flight without a companion; `None` for any number.
    pub(crate) fallback_bound: Option<u64>,
    endpoints: &'a Endpoints,
}

impl Announcement<'_> {
    /// The addresses of the ready endpoints.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &str> {
        let announced = self.endpoints.iter().filter(|(_, endpoint)| endpoint.is_announced);
        announced.map(|(_, endpoint)| &*endpoint.address)
    }
}

impl Pool {
    /// The announcement may be out of date. Takes constant time.
    pub(crate) const fn is_announcement_due(&self) -> bool {
        self.announced.is_stale
            || self.engine.ready_count() != self.announced.ready_count
            || self.engine.health_changes() != self.announced.health_changes
    }

    /// Renews the announcement for so many Envoys. Every change of an endpoint's state is observed.
    pub(crate) fn renew_announcement(&mut self, envoys: usize) -> AnnouncementChange {
        let envoys = u64::try_from(envoys).unwrap_or(u64::MAX).max(1);
        let fallback_bound = self.engine.full_bound().map(|bound| (bound / envoys).max(1));
        if !self.is_announcement_due() && fallback_bound == self.announced.fallback_bound {
            return AnnouncementChange::None;
        }
        let mut is_changed = self.announced.is_endpoint_forgotten;
        let mut changed: Vec<(EndpointId, HealthState, HealthReason)> = Vec::new();
        for (id, endpoint) in self.endpoints.iter_mut() {
            let is_ready = self.engine.is_ready(id);
            is_changed |= core::mem::replace(&mut endpoint.is_announced, is_ready) != is_ready;
            let Some((state, reason)) = self.engine.health_of(id) else { continue };
            let before = core::mem::replace(&mut endpoint.health, state);
            if before != state {
                changed.push((id, before, reason));
            }
        }
        for (id, before, reason) in changed {
            if let Some(endpoint) = self.endpoints.get(id) {
                let (endpoint, state) = (endpoint.address.clone(), endpoint.health);
                self.observe_pool(PoolNews::Health { endpoint, before, state, reason });
            }
        }
        let change = if is_changed {
            AnnouncementChange::Ready
        } else if fallback_bound != self.announced.fallback_bound {
            AnnouncementChange::Bound
        } else {
            AnnouncementChange::None
        };
        self.announced = Announced {
            fallback_bound,
            ready_count: self.engine.ready_count(),
            health_changes: self.engine.health_changes(),
            is_stale: false,
            is_endpoint_forgotten: false,
            digest: 0,
        };
        let announcement = self.announcement();
        let digest = wire::endpoints_digest(announcement.pool, announcement.ready(), fallback_bound);
        self.announced.digest = digest;
        change
    }

    /// As in [`wire::endpoints_digest`], of the last announcement.
    pub(crate) const fn announcement_digest(&self) -> u64 {
        self.announced.digest
    }

    /// The last announcement.
    pub(crate) fn announcement(&self) -> Announcement<'_> {
        Announcement {
            pool: &self.name,
            fallback_bound: self.announced.fallback_bound,
            endpoints: &self.endpoints,
        }
    }
}
