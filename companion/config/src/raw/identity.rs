//! The document's part on who asks: `identity`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::{List, Pairs, Scalar, Trusted};

/// Where a request's identity is read. Of each list the first source that is present wins.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Identity {
    /// Who shares: the tenant.
    pub(crate) fairness_id: List<Source>,
    /// Who asks.
    pub(crate) user: List<Source>,
    /// How much it matters: `critical` or `high`, `default` or `normal`, `sheddable` or `low`, or the name of an
    /// objective.
    pub(crate) priority: List<Source>,
    /// Which policy class it asks for.
    pub(crate) class: List<Source>,
    /// Its strict tier, 0 to 15: the higher goes first within its flow.
    pub(crate) strict: List<Source>,
    /// The seconds of its head start, 0 to 3600.
    pub(crate) jump: List<Source>,
    /// Priority by the name of an objective.
    pub(crate) objectives: BTreeMap<String, Criticality>,
    /// What a tenant may claim at most; a higher claim is lowered to it, and counted.
    pub(crate) max_priority: MaxPriority,
    /// Whose claims count: everybody's (`all`), nobody's (`none`), or those of clients in a list of networks. Of
    /// anybody else a priority only lowers, class, strict tier, head start and wishes for certain servers are removed,
    /// and the fairness id is one of 64 flows of that client's address. When `listen.gateway` is off loopback it must
    /// be given.
    pub(crate) trust: Option<Trusted>,
}

impl Default for Identity {
    fn default() -> Self {
        let header = |name: &str| Source::Header(name.into());
        let user = || Source::Body("user".into());
        Self {
            fairness_id: List(vec![
                header("x-gateway-inference-fairness-id"),
                header("x-llm-d-inference-fairness-id"),
                header("x-penstock-tenant"),
                user(),
            ]),
            user: List(vec![header("x-penstock-user"), user()]),
            priority: List(vec![
                header("x-penstock-priority"),
                header("x-nexus-priority"),
                header("x-gateway-inference-objective"),
            ]),
            class: List(vec![
                header("x-penstock-class"),
                header("x-dynamo-meta-policy-class"),
            ]),
            strict: List::default(),
            jump: List::default(),
            objectives: BTreeMap::new(),
            max_priority: MaxPriority::default(),
            trust: None,
        }
    }
}

/// One place to read an identity.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// A request header's name.
    Header(#[schemars(length(min = 1, max = 256))] String),
    /// A string at the top of the body, like `user`.
    Body(#[schemars(length(min = 1, max = 256))] String),
    /// Dynamic metadata that another filter of Envoy's left: `NAMESPACE/KEY/...`, like
    /// `envoy.filters.http.jwt_authn/payload/sub`.
    Metadata(#[schemars(length(min = 1, max = 256))] String),
    /// By the model's name: globs and values, the first that matches.
    Model(Pairs<Scalar>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Criticality {
    /// Goes before the others.
    Critical,
    /// What a request is that says nothing.
    Default,
    /// The first that is refused or displaced.
    Sheddable,
}

/// What a tenant may claim at most.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MaxPriority {
    /// Of those that aren't named; null: whatever they like.
    pub(crate) default: Option<Criticality>,
    /// By fairness id.
    pub(crate) tenants: BTreeMap<String, Criticality>,
}
