//! What the engine said, held against what the model says, with what is left to chance checked for its range.

use std::collections::VecDeque;
use std::time::Duration;

use penstock_engine::units::Tokens;
use penstock_engine::{Effect, EndpointId, Outcome, RequestId};

use super::Model;
use super::budgets::Use;

/// What the engine said about one input, still to be accounted for.
pub struct Said(pub VecDeque<Effect>);

impl Said {
    pub(super) fn expect(&mut self, expected: Effect) {
        assert_eq!(self.0.pop_front(), Some(expected));
    }

    pub(super) fn refused(&mut self, id: RequestId, outcome: Outcome, waited: Duration, wait: Duration) {
        let effect = self.0.pop_front();
        let Some(Effect::Reject {
            retry_after: Some(after),
            ..
        }) = &effect
        else {
            panic!("{id:?} is refused with {outcome:?}, but the engine says {effect:?}");
        };
        let most = (wait + wait / 10).min(Duration::from_secs(120));
        assert!(
            (wait..=most).contains(after),
            "{after:?} isn't from {wait:?} to {most:?}"
        );
        assert_eq!(
            effect,
            Some(Effect::Reject {
                id,
                outcome,
                waited,
                retry_after: Some(*after)
            })
        );
    }

    /// Where the engine sends `id`, if it may.
    pub(super) fn granted(
        &mut self,
        model: &Model,
        id: RequestId,
        outcome: Outcome,
        waited: Duration,
        cost: u64,
    ) -> EndpointId {
        let effect = self.0.pop_front();
        let Some(Effect::Grant {
            endpoints,
            prompt,
            cached,
            output,
            ..
        }) = &effect
        else {
            panic!("{id:?} is granted, but the engine says {effect:?}");
        };
        let (endpoints, prompt, cached, output) = (endpoints.clone(), prompt, cached, output);
        let mut able = model.choices(id);
        assert_eq!(endpoints.len(), able.len().min(3));
        for endpoint in &endpoints {
            let order = |a: &(f64, Use), b: &(f64, Use)| {
                let used = a.1.0.total_cmp(&b.1.0).then(a.1.1.total_cmp(&b.1.1));
                b.0.total_cmp(&a.0).then(used)
            };
            let least = able.values().copied().min_by(order);
            assert_eq!(able.remove(endpoint), least, "{endpoint:?} isn't the best");
        }
        let (first, cost) = (endpoints[0], Tokens(cost));
        assert_eq!(
            effect,
            Some(Effect::Grant {
                id,
                endpoints,
                outcome,
                waited,
                cost,
                prompt: *prompt,
                cached: *cached,
                output: *output,
            })
        );
        first
    }
}
