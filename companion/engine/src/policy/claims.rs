//! Bounds on what a client may claim for its requests. The owner of an engine applies them before it registers a request.

use alloc::collections::BTreeMap;
use alloc::string::String;

use crate::band::Band;

/// The highest priority of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Deserialize, serde::Serialize),
    serde(deny_unknown_fields, default)
)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub struct MaxPriority {
    /// For tenants that `tenants` doesn't name. Null means no limit.
    pub default: Option<Band>,
    /// By fairness id.
    pub tenants: BTreeMap<String, Band>,
}
