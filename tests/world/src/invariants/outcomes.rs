//! Checks of outcomes: an answer names its own, and a request that was granted has a second one only if it left the queue again.

use penstock_control::{Dropped, Observation, Refused, RequestNews, code_of};
use penstock_engine::Outcome;
use penstock_filter_core::local_reply::LocalReply;

use super::super::World;
use super::client_number;

impl World {
    /// Checks that the outcome in an answer of the filter is that of its error code.
    pub(in super::super) fn check_answer(&mut self, reply: &LocalReply) {
        let outcome = reply
            .headers
            .iter()
            .find(|(name, _)| *name == "x-penstock-outcome")
            .map(|(_, outcome)| outcome.as_str());
        let body = String::from_utf8_lossy(&reply.body);
        let code =
            body.split_once(r#""code":""#).and_then(|(_, rest)| rest.split_once('"')).map(|(code, _)| code);
        let (Some(outcome), Some(code)) = (outcome, code) else {
            return;
        };
        let known = Outcome::ALL.into_iter().find(|known| known.as_str() == outcome);
        let agrees = match known {
            // Several errors share it.
            Some(Outcome::RejectedInvalid) => true,
            // Only a request whose client has left is answered so.
            Some(Outcome::Cancelled) => code == "cancelled",
            Some(known) => code_of(known).map(|known| known.as_str()) == Some(code),
            None => false,
        };
        if !agrees {
            let text = format!("an answer has the code {code} and the outcome {outcome}");
            self.fail(|| text);
        }
    }

    /// Checks the end of a request that was granted. Its outcome is a second one if it left the queue again.
    pub(in super::super) fn check_second_outcome(&mut self, index: usize, observation: &Observation) {
        let labels = match observation {
            Observation::Request(labels, RequestNews::Dropped(Dropped { outcome, .. }))
                if !matches!(outcome, Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched) =>
            {
                labels
            }
            Observation::Request(labels, RequestNews::Refused(Refused { was_granted: true, .. })) => labels,
            _ => return,
        };
        self.summary.second_outcomes += 1;
        self.note(|| format!("companion {index} observes {observation:?}"));
        let tenure = self.companions[index].tenure;
        let client = client_number(&labels.request_id).and_then(|number| usize::try_from(number).ok());
        let client = client.and_then(|number| self.clients.get(number));
        if client.is_some_and(|client| !client.decided_by.contains(&tenure)) {
            let request = labels.request_id.clone();
            self.fail(|| format!("request {request} has a second outcome, and no first one"));
        }
    }
}
