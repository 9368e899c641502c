//! Requests that were asked to end, at all endpoints.
//!
//! The load of each says so until it has left its endpoint: also after the end of the request, where its server may compute on.

use alloc::vec::Vec;

use super::Endpoints;
use crate::endpoint::Endpoint;
use crate::ids::EndpointIndex;
use crate::input::{AnswerResult, EndpointAnswer};

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
    pub(crate) fn note_eviction(&mut self, index: EndpointIndex) {
        let answers = self.begun_answers;
        self.all[index].note_eviction(answers);
        self.set_evicted(index, true);
    }

    /// A server has answered.
    pub(super) fn note_answer(&mut self, answer: &EndpointAnswer) {
        let begins = match answer.result {
            AnswerResult::Begun => true,
            AnswerResult::Served => !answer.has_begun,
            AnswerResult::Failed(_)
            | AnswerResult::Rejected(_)
            | AnswerResult::Refused(_)
            | AnswerResult::Left => false,
        };
        if begins {
            self.begun_answers += 1;
            if let Some(&index) = self.indices.get(&answer.endpoint) {
                self.all[index].note_answer();
            }
        }
    }

    /// [`Endpoint::misses_answers`], with `running` requests in the pool.
    pub(crate) fn misses_answers(&self, index: EndpointIndex, running: u64) -> bool {
        self.all[index].misses_answers(self.begun_answers, running)
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
