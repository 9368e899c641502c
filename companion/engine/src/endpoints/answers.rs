//! Answers of servers: they change the health of their endpoint, by comparison with the other endpoints.

use super::Endpoints;
use crate::endpoint::Endpoint;
use crate::health::kinds::Comparison;
use crate::ids::EndpointIndex;
use crate::input::{AnswerResult, EndpointAnswer, EndpointId, Kind};
use crate::policy::Failing;
use crate::rng::Rng;
use crate::time::Instant;

/// Answers older than so many windows are no measure for others.
const MEMORY_WINDOWS: u32 = 10;

impl Endpoints {
    /// A server has answered a request. `policy`: `None` if no answer keeps an endpoint away.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        answer: &EndpointAnswer,
        policy: Option<&Failing>,
        rng: &mut Rng,
    ) {
        self.kinds.record(now, answer);
        self.note_answer(answer);
        if !matches!(answer.result, AnswerResult::Begun | AnswerResult::Left) {
            self.answers += 1;
        }
        if let Some((policy, &index)) = policy.zip(self.indices.get(&answer.endpoint))
            && self.all[index].ready
        {
            self.judge(now, index, answer, policy, rng);
        }
        while self.ejected.waits_for_answers() && self.probe_due(now, rng) {}
    }

    /// An endpoint has answered a request: its health changes, and perhaps that of others.
    fn judge(
        &mut self,
        now: Instant,
        index: EndpointIndex,
        answer: &EndpointAnswer,
        policy: &Failing,
        rng: &mut Rng,
    ) {
        let has_failed = match answer.result {
            AnswerResult::Begun | AnswerResult::Left => return,
            // Nearly every answer is one of these.
            AnswerResult::Served if self.all[index].health.served_as_usual(now, policy) => return,
            AnswerResult::Served => false,
            AnswerResult::Failed(_) | AnswerResult::Rejected(_) | AnswerResult::Refused(_) => true,
        };
        let mut health = self.all[index].health.clone();
        let is_measure = |id| self.get(id).is_some_and(|other| other.ready && other.health.is_healthy());
        let comparison = Comparison {
            kinds: &self.kinds,
            endpoint: answer.endpoint,
            now,
            memory: policy.window.saturating_mul(MEMORY_WINDOWS),
            is_measure: &is_measure,
        };
        let verdict = health.answered(now, answer, policy, &comparison);
        let fails_alike = has_failed && verdict.is_none() && health.fails_what_it_served(policy, &comparison);
        self.change(index, rng, |endpoint| endpoint.health = health);
        // The last ready endpoint leaves for no failure.
        if let Some(verdict) = verdict.filter(|_| self.ready > 1) {
            let answers = self.answers;
            self.change(index, rng, |endpoint| endpoint.leave(now, verdict, policy, answers));
            self.kinds.forget(answer.endpoint);
        } else if fails_alike {
            self.pardon_if_all_fail(now, policy, rng);
        }
    }

    /// If every ready endpoint fails, those that were kept away for that come back: they are no worse. Visits all endpoints, but only while
    /// one fails everything.
    fn pardon_if_all_fail(&mut self, now: Instant, policy: &Failing, rng: &mut Rng) {
        let fails = |endpoint: &Endpoint| {
            endpoint.health.has_failing_answers() || endpoint.health.failures_in_a_row() >= policy.consecutive
        };
        if self.iter().filter(|endpoint| endpoint.ready).all(fails) {
            self.pardon_failing(now, rng);
        }
    }

    /// No endpoint is kept away for its answers any more.
    pub(crate) fn pardon_failing(&mut self, now: Instant, rng: &mut Rng) {
        let failing = self.all.iter().filter(|(_, endpoint)| endpoint.health.has_failing_answers());
        let failing: alloc::vec::Vec<EndpointIndex> = failing.map(|(index, _)| index).collect();
        for index in failing {
            self.change(index, rng, |endpoint| endpoint.pardon(now));
        }
    }

    /// The endpoint has served the model at this path, as far as is remembered.
    pub(crate) fn has_served(&self, id: EndpointId, kind: Kind) -> bool {
        self.kinds.has_served(id, kind)
    }

    /// Some endpoint has.
    pub(crate) fn is_served(&self, kind: Kind) -> bool {
        self.kinds.is_served(kind)
    }

    /// How often the state of an endpoint has changed.
    pub(crate) const fn health_changes(&self) -> u64 {
        self.health_changes
    }
}
