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

    /// A request is asked to end at `index`, for one that will take its place there.
    pub(crate) fn asked_to_end(&mut self, index: EndpointIndex) {
        let answered = self.answered;
        self.all[index].asked_to_end(answered);
        self.set_evicted(index, true);
    }

    /// An endpoint has begun an answer, or has served a request.
    pub(crate) fn note_answer(&mut self, index: EndpointIndex) {
        self.answered += 1;
        self.all[index].has_answered();
    }

    /// [`Endpoint::owes_an_answer`], with `running` requests in the pool.
    pub(crate) fn owes_an_answer(&self, index: EndpointIndex, running: u64) -> bool {
        self.all[index].owes_an_answer(self.answered, running)
    }

    /// A request that was asked to end hasn't left its endpoint.
    pub(crate) fn any_evicting(&self) -> bool {
        !self.evicting.is_empty()
    }

    /// The load of an endpoint has changed, where so many requests had been asked to end.
    #[inline]
    pub(super) fn update_evicting(&mut self, index: EndpointIndex, before: u64) {
        let now = self.all[index].running.evicted;
        if now != before {
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
