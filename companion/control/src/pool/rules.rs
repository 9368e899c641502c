//! The part of a pool's configuration that the engine doesn't know: models, flows, classes and rewrites.

use std::borrow::Cow;

use hashbrown::HashMap;
use penstock_engine::Policy;
use penstock_engine::input::Band;
use penstock_engine::policy::{FlowKey, Order, join_flow_parts};
use wildmatch::WildMatch;

use super::rewrite::Rewriter;
use crate::labels::ANONYMOUS;
use crate::registration::Registration;
use crate::settings::{CreditSettings, PoolSettings};

/// A pool's configuration in force.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) policy: Policy,
    pub(super) flow_key: Vec<FlowKey>,
    pub(super) capacity_status: u16,
    /// How often a request may be requeued; `None`: until its ttl ends.
    pub(super) requeues_max: Option<u32>,
    /// How often a request goes elsewhere after a server cut its connection.
    pub(super) resets_max: u32,
    pub(super) rewriter: Rewriter,
    /// `None`: every request asks, because the settings say so or a rule could decide otherwise than a filter. A filter can't choose the
    /// target model of a request.
    pub(super) credit: Option<CreditSettings>,
    /// Empty for every model.
    models: Vec<WildMatch>,
    /// Requests that name no model belong to this pool.
    is_default: bool,
    pub(super) class_globs: Vec<WildMatch>,
    /// The variant of servers that are found without their own.
    pub(super) default_variant: Box<str>,
    /// Bands by the name of an objective.
    pub(super) objectives: HashMap<String, Band>,
}

impl Rules {
    pub(super) fn new(settings: &PoolSettings) -> Self {
        Self {
            policy: settings.policy.clone(),
            flow_key: settings.flow_key.clone(),
            capacity_status: settings.capacity_status,
            requeues_max: settings.requeues,
            resets_max: settings.resets,
            rewriter: Rewriter::new(&settings.rewrite),
            credit: (settings.credit)
                .filter(|_| settings.rewrite.is_empty() && settings.policy.allows_credit()),
            models: globs(&settings.models),
            is_default: settings.is_default,
            class_globs: globs(&settings.class_globs),
            default_variant: settings.default_variant.as_str().into(),
            objectives: settings.objectives.iter().cloned().collect(),
        }
    }

    /// The pool serves the model, which is empty if a request names none.
    pub(super) fn serves(&self, model: &str) -> bool {
        if model.is_empty() {
            return self.is_default;
        }
        self.models.is_empty() || self.models.iter().any(|glob| glob.matches(model))
    }

    /// The class set of a model in the engine's policy. Set 0 is for models that no glob matches.
    pub(super) fn class_set(&self, model: &str) -> u16 {
        let index = self.class_globs.iter().position(|glob| glob.matches(model));
        index.and_then(|index| u16::try_from(index + 1).ok()).unwrap_or_default()
    }

    /// The pool orders requests by their target for the first token.
    pub(super) const fn orders_by_ttft_target(&self) -> bool {
        match self.policy.order {
            Order::SloDeadline { .. } => true,
            Order::Fcfs | Order::Wspt | Order::Edf => false,
        }
    }

    /// A deadline header that this pool uses is not a valid number.
    pub(super) const fn is_deadline_invalid(&self, registration: &Registration<'_>) -> bool {
        registration.is_deadline_invalid
            || registration.is_ttft_target_invalid && self.orders_by_ttft_target()
    }

    /// The flow of a request that asks for `target`, and whether it must not be shown. An empty part becomes `anonymous`, unless
    /// all parts are empty.
    pub(super) fn flow<'a>(
        &self,
        registration: &'a Registration<'_>,
        target: &'a str,
    ) -> (Cow<'a, str>, bool) {
        flow(&self.flow_key, registration, target)
    }
}

fn flow<'a>(keys: &[FlowKey], registration: &'a Registration<'_>, target: &'a str) -> (Cow<'a, str>, bool) {
    let part = |key: &FlowKey| match key {
        FlowKey::FairnessId => (&*registration.tenant, registration.is_tenant_private),
        FlowKey::User => (&*registration.user, true),
        FlowKey::Model => (registration.model, false),
        FlowKey::TargetModel => (target, false),
    };
    if let [key] = keys {
        let (name, is_private) = part(key);
        return (name.into(), is_private);
    }
    let parts: Vec<_> = keys.iter().map(part).collect();
    let is_private = parts.iter().any(|(_, is_private)| *is_private);
    if parts.iter().all(|(name, _)| name.is_empty()) {
        return ("".into(), is_private);
    }
    let named = |(name, _): &(&'a str, bool)| if name.is_empty() { ANONYMOUS } else { *name };
    (join_flow_parts(parts.iter().map(named)).into(), is_private)
}

fn globs(patterns: &[String]) -> Vec<WildMatch> {
    patterns.iter().map(|pattern| WildMatch::new(pattern)).collect()
}

#[cfg(test)]
mod tests {
    use penstock_wire as wire;

    use super::*;
    use crate::ids::Epoch;
    use crate::wire_in;

    #[test]
    fn the_parts_of_several_flow_keys_are_joined() {
        use FlowKey::{FairnessId, Model, TargetModel, User};
        let message = |fairness_id: &str, user: &str| wire::Register {
            fairness_id: fairness_id.into(),
            user: user.into(),
            model: "m".into(),
            ..Default::default()
        };
        let flow_of = |keys: &[FlowKey], message: &wire::Register| {
            let registration = wire_in::registration(Epoch::from_bits(1), message);
            let (name, is_private) = flow(keys, &registration, "t");
            (name.into_owned(), is_private)
        };
        assert_eq!(flow_of(&[], &message("a", "u")), (String::new(), false));
        assert_eq!(flow_of(&[FairnessId], &message("", "u")), (String::new(), false));
        assert_eq!(flow_of(&[FairnessId, Model], &message("a", "u")), ("a/m".into(), false));
        assert_eq!(flow_of(&[TargetModel, User], &message("a", "u")), ("t/u".into(), true));
        assert_eq!(flow_of(&[FairnessId, Model], &message("", "u")), ("anonymous/m".into(), false));
        assert_eq!(flow_of(&[FairnessId, User], &message("", "")), (String::new(), true));
    }

    /// A client that chooses its names must not get the account of another one.
    #[test]
    fn a_slash_in_a_part_makes_no_other_flow_s_name() {
        let flow_of = |fairness_id: &str, model: &str| {
            let message =
                wire::Register { fairness_id: fairness_id.into(), model: model.into(), ..Default::default() };
            let registration = wire_in::registration(Epoch::from_bits(1), &message);
            let keys = [FlowKey::FairnessId, FlowKey::Model];
            flow(&keys, &registration, "t").0.into_owned()
        };
        assert_eq!(flow_of("a", "b/c"), "a/b/c");
        assert_eq!(flow_of("a/b", "c"), "a%2Fb/c");
        assert_eq!(flow_of("a%2Fb", "c"), "a%252Fb/c");
    }
}
