//! Compares the engine's effects with those that the model expects, and checks the range of random choices.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_engine::effect::{Grant, Reject};
use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Outcome, RequestId};

use super::Model;
use super::allowances::Utilisation;

/// The engine's effects of one input that the model has not expected yet.
pub struct EngineEffects(pub VecDeque<Effect>);

impl EngineEffects {
    pub(super) fn expect_next(&mut self, expected: Effect) {
        assert_eq!(self.0.pop_front(), Some(expected));
    }

    pub(super) fn expect_reject(
        &mut self,
        id: RequestId,
        outcome: Outcome,
        waited: Duration,
        wait: Duration,
        held: Duration,
    ) {
        let effect = self.0.pop_front();
        let Some(Effect::Reject(Reject { retry_after: Some(after), .. })) = &effect else {
            panic!("{id:?} is rejected with {outcome:?}, but the engine's effect is {effect:?}");
        };
        let most = (wait + wait / 10).min(Duration::from_secs(120)).max(held);
        let wait = wait.max(held);
        assert!((wait..=most).contains(after), "{after:?} isn't from {wait:?} to {most:?}");
        assert_eq!(effect, Some(Effect::Reject(Reject { id, outcome, waited, retry_after: Some(*after) })));
    }

    /// Expects a rejection with exactly this retry-after.
    pub(super) fn expect_budget_reject(&mut self, id: RequestId, waited: Duration, retry_after: Duration) {
        self.expect_next(Effect::Reject(Reject {
            id,
            outcome: Outcome::RejectedBudget,
            waited,
            retry_after: Some(retry_after),
        }));
    }

    /// Expects a grant of `id`, checks its endpoints, and returns the first.
    pub(super) fn expect_grant(
        &mut self,
        model: &Model,
        id: RequestId,
        outcome: Outcome,
        waited: Duration,
        cost: u64,
    ) -> EndpointId {
        self.expect_grant_to(model.choices(id), false, id, outcome, (waited, cost))
    }

    /// [`Self::expect_grant`] above a bound.
    pub(super) fn expect_grant_above(
        &mut self,
        model: &Model,
        id: RequestId,
        outcome: Outcome,
        waited: Duration,
        cost: u64,
    ) -> EndpointId {
        self.expect_grant_to(model.choices_above(model.item(id)), true, id, outcome, (waited, cost))
    }

    fn expect_grant_to(
        &mut self,
        mut choices: BTreeMap<EndpointId, (f64, Utilisation)>,
        extra: bool,
        id: RequestId,
        outcome: Outcome,
        (waited, cost): (Duration, u64),
    ) -> EndpointId {
        let effect = self.0.pop_front();
        let Some(Effect::Grant(Grant { endpoints, prompt, cached, output, .. })) = &effect else {
            panic!("{id:?} is granted, but the engine's effect is {effect:?}");
        };
        let (endpoints, prompt, cached, output) = (endpoints.clone(), prompt, cached, output);
        assert_eq!(endpoints.len(), choices.len().min(3));
        for endpoint in &endpoints {
            let order = |a: &(f64, Utilisation), b: &(f64, Utilisation)| {
                let used = a.1.0.total_cmp(&b.1.0).then(a.1.1.total_cmp(&b.1.1));
                b.0.total_cmp(&a.0).then(used)
            };
            let least = choices.values().copied().min_by(order);
            assert_eq!(choices.remove(endpoint), least, "{endpoint:?} isn't the best choice");
        }
        let (first, cost) = (endpoints[0], Tokens(cost));
        assert_eq!(
            effect,
            Some(Effect::Grant(Grant {
                id,
                endpoints,
                outcome,
                waited,
                cost,
                prompt: *prompt,
                cached: *cached,
                output: *output,
                extra,
                prefill: None,
            }))
        );
        first
    }
}
