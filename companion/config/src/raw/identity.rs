//! `identity`: the sources of a request's identity, and the trusted clients.

use std::collections::BTreeMap;

use penstock_engine::input::Band;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::MaxPriority;
use crate::value::{List, OrderedMap, Scalar, Trusted};

/// The sources of a request's identity. In each list, the first source that is present in the request counts.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Identity {
    /// The tenant, which is the identity that shares are given to.
    pub(crate) fairness_id: List<Source>,
    /// The user.
    pub(crate) user: List<Source>,
    /// The priority: `critical` or `high`, `default` or `normal`, `sheddable` or `low`, or the name of an objective.
    pub(crate) priority: List<Source>,
    /// The family of policy classes.
    pub(crate) class: List<Source>,
    /// The strict tier, 0 to 15. In a flow, requests of a higher tier are granted first.
    pub(crate) strict: List<Source>,
    /// The head start in seconds, 0 to 3600.
    pub(crate) jump: List<Source>,
    /// Priorities by the name of an objective.
    pub(crate) objectives: BTreeMap<String, Band>,
    /// The highest priority of a tenant. A higher claim is lowered to it, and counted in a metric.
    pub(crate) max_priority: MaxPriority,
    /// The trusted clients: every client (`all`), no client (`none`), or the clients in a list of networks. For any other
    /// client, a priority can only lower a request, the class, strict tier, head start and endpoint constraints are
    /// removed, and the fairness id is replaced by one of 64 flows of the client's address. Required when `listen.gateway` is
    /// not a loopback address.
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

/// A place in a request to read a value from.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// The name of a request header.
    Header(#[schemars(length(min = 1, max = 256))] String),
    /// The name of a string at the top level of the body, like `user`.
    Body(#[schemars(length(min = 1, max = 256))] String),
    /// Dynamic metadata of another Envoy filter: `NAMESPACE/KEY/...`, like `envoy.filters.http.jwt_authn/payload/sub`.
    Metadata(#[schemars(length(min = 1, max = 256))] String),
    /// A value by the model's name: globs and values. The first match counts.
    Model(OrderedMap<Scalar>),
}
