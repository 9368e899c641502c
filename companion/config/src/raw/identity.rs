//! `identity`: the sources of a request's identity, and the trusted clients.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use penstock_engine::input::Band;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::MaxPriority;
use crate::value::{List, OrderedMap, Scalar, TextOr, Trusted};

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
    /// API keys of tenants. The tenant of a request with a key is that of the key: before every source of `fairness_id`, and even if
    /// the client isn't trusted. Null: requests need no key. A path alone is the path of `file`.
    pub(crate) api_keys: Option<ApiKeysEntry>,
}

/// [`ApiKeys`]; the path of the file alone is enough.
#[derive(Clone, Debug)]
pub(crate) struct ApiKeysEntry(pub(crate) ApiKeys);

/// API keys of tenants. A request with a wrong key is answered 401 `invalid_api_key`, on every path.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApiKeys {
    /// The file with the SHA-256 digests of the keys, by tenant: `acme: ["sha256:..."]`; `penstock api-key` makes a key and its digest.
    /// At most 10,000. The file is read again when it changes.
    pub(crate) file: PathBuf,
    /// The request headers that may hold a key. The first one that holds one counts. `authorization` holds it as `Bearer KEY`, every
    /// other header as it is.
    #[serde(default = "key_headers")]
    pub(crate) headers: List<String>,
    /// Whether a request without a key is answered 401. Otherwise the sources of `fairness_id` decide.
    #[serde(default = "yes")]
    pub(crate) required: bool,
    /// Whether the headers with keys pass on to the model server. Otherwise the filter removes them.
    #[serde(default)]
    pub(crate) forward: bool,
}

fn key_headers() -> List<String> {
    List(["authorization", "x-api-key", "api-key"].map(str::to_owned).into())
}

const fn yes() -> bool {
    true
}

impl From<String> for ApiKeys {
    fn from(file: String) -> Self {
        Self { file: file.into(), headers: key_headers(), required: yes(), forward: false }
    }
}

impl<'de> Deserialize<'de> for ApiKeysEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = TextOr::<ApiKeys>::new("the path of a file, or {file: ...}");
        deserializer.deserialize_any(form).map(Self)
    }
}

impl Serialize for ApiKeysEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl JsonSchema for ApiKeysEntry {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ApiKeysEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, generator.subschema_for::<ApiKeys>()]})
    }
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
            class: List(vec![header("x-penstock-class"), header("x-dynamo-meta-policy-class")]),
            strict: List::default(),
            jump: List::default(),
            objectives: BTreeMap::new(),
            max_priority: MaxPriority::default(),
            trust: None,
            api_keys: None,
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
