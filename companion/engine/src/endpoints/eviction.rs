//! Requests that were asked to end, at all endpoints.
//!
//! The load of each says so until it has left its endpoint: also after the end of the request, where its server may compute on.

use alloc::vec::Vec;

use super::Endpoints;
use crate::endpoint::Endpoint;
use crate::ids::EndpointIndex;

impl Endpoints {
    pub(crate) fn at_index(&self, index: EndpointIndex) -> &Endpoint {
        &self.all[index]
    }

    /// A request at `index` is asked to end, or no longer.
    pub(crate) fn set_evicted(&mut self, index: EndpointIndex, evicted: bool) {
        let count = &mut self.all[index].running.evicted;
        *count = if evicted { *count + 1 } else { count.saturating_sub(1) };
        self.list_evicting(index);
    }

    /// The endpoints with requests that were asked to end, and their numbers; at most so many endpoints.
    pub(crate) fn evicting(&self, most: usize) -> Vec<(EndpointIndex, u64)> {
        let evicting = self.evicting.iter().take(most);
        evicting.map(|&index| (index, self.all[index].running.evicted)).collect()
    }

    /// How many requests that were asked to end have left their endpoints since the last call.
    pub(crate) const fn take_vacated(&mut self) -> u64 {
        core::mem::replace(&mut self.vacated, 0)
    }

    /// The load of an endpoint has changed, where so many requests had been asked to end.
    #[inline]
    pub(super) fn update_evicting(&mut self, index: EndpointIndex, before: u64) {
        let now = self.all[index].running.evicted;
        if now != before {
            self.vacated += before.saturating_sub(now);
            self.list_evicting(index);
        }
    }

    fn list_evicting(&mut self, index: EndpointIndex) {
        if self.all[index].running.evicted > 0 {
            self.evicting.insert(index);
        } else {
            self.evicting.remove(&index);
        }
    }

    /// Exactly the endpoints with requests that were asked to end are listed.
    pub(super) fn audit_evicting(&self) -> bool {
        let evicting = self.all.iter().filter(|(_, endpoint)| endpoint.running.evicted > 0);
        let mut all: Vec<EndpointIndex> = evicting.map(|(index, _)| index).collect();
        all.sort_unstable();
        self.evicting.iter().copied().eq(all)
    }
}
