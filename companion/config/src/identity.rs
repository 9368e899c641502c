//! The sources of a request's identity.

use std::collections::BTreeMap;

use ipnet::IpNet;
use penstock_engine::input::Band;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ApiKeys;

/// The sources of a request's identity. In each list, the first source that is present in the request counts.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The tenant, which is the identity that shares are given to.
    pub fairness_id: Vec<Source>,
    /// The user.
    pub user: Vec<Source>,
    /// The priority.
    pub priority: Vec<Source>,
    /// The family of policy classes.
    pub class: Vec<Source>,
    /// The strict tier.
    pub strict: Vec<Source>,
    /// The head start, in seconds.
    pub jump: Vec<Source>,
    /// Bands by the name of an objective.
    pub objectives: Vec<(String, Band)>,
    /// The highest priority of each tenant.
    pub max_priority: MaxPriority,
    /// The trusted clients.
    pub trust: Trust,
    /// The API keys of tenants, which come before `fairness_id`. `None`: requests need no key.
    pub api_keys: Option<ApiKeys>,
}

/// The highest priority of a tenant.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MaxPriority {
    /// For tenants that `tenants` doesn't name. Null means no limit.
    pub default: Option<Band>,
    /// By fairness id.
    pub tenants: BTreeMap<String, Band>,
}

/// The trusted clients, by their address as Envoy sees it. For other clients, claims such as a high priority are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Every client.
    All,
    /// Clients in one of these networks. An empty list trusts no client.
    Networks(Vec<IpNet>),
}

/// A place in a request to read a value from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A request header; its name is in lower case.
    Header(String),
    /// A string at the top level of the body.
    Body(String),
    /// Dynamic metadata, `namespace/key/...`.
    Metadata(String),
    /// A value for each model: globs and values. The first match counts.
    Model(Vec<(String, String)>),
}
