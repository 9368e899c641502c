//! `replicas`: several companions for one gateway.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap as _, Serializer};
use serde::{Deserialize, Serialize};

use crate::value::{Port, PositiveDuration};

/// Several companions for one gateway. One of them is the leader and grants; the others are standbys, of which one becomes
/// the leader when the leader ends.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replicas {
    /// The addresses at which all companions listen for filters: a list of `ip:port`, or `{dns: {name: NAME, port: PORT}}` for
    /// all addresses of a DNS name.
    pub(crate) companions: Companions,
    /// The address of this companion among `companions`, `ip:port`. Null: `listen.grpc`. Where companions share one file, set
    /// `PENSTOCK_REPLICAS__ADVERTISE` for each.
    #[serde(default)]
    pub(crate) advertise: Option<String>,
    /// The lease that makes one companion the leader: exactly one of `etcd`, `kubernetes` and `file`.
    pub(crate) lease: Lease,
    /// The time from the last renewal of the lease after which another companion may take over; 1s to 60s.
    #[serde(default = "default_duration")]
    pub(crate) duration: PositiveDuration,
    /// What a lease covers. `gateway`: one leader for all pools. `pool`: each pool has a lease and a leader of its own, and the pools
    /// spread over the companions.
    #[serde(default)]
    pub(crate) per: Per,
}

const fn default_duration() -> PositiveDuration {
    PositiveDuration(Duration::from_secs(3))
}

/// What a lease covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Per {
    #[default]
    Gateway,
    Pool,
}

/// The lease that makes one companion the leader: exactly one of these keys.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = [
    {"required": ["etcd"], "properties": {"etcd": {"type": "object"}}},
    {"required": ["kubernetes"], "properties": {"kubernetes": {"type": "object"}}},
    {"required": ["file"], "properties": {"file": {"type": "string"}}},
]))]
pub(crate) struct Lease {
    /// A key of etcd.
    pub(crate) etcd: Option<EtcdLease>,
    /// A Lease object in Kubernetes.
    pub(crate) kubernetes: Option<KubernetesLease>,
    /// The path of a file, for companions that run on one machine.
    pub(crate) file: Option<PathBuf>,
}

/// A lease in etcd.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EtcdLease {
    /// The URLs of etcd's members, like `http://127.0.0.1:2379`.
    #[schemars(length(min = 1))]
    pub(crate) endpoints: Vec<String>,
    /// The beginning of the keys that Penstock uses. Gateways that share an etcd need different ones.
    #[serde(default = "default_prefix")]
    #[schemars(regex(pattern = "^/"))]
    pub(crate) prefix: String,
}

fn default_prefix() -> String {
    "/penstock".into()
}

/// A lease in Kubernetes.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KubernetesLease {
    /// The namespace of the Lease object.
    #[schemars(length(min = 1, max = 63))]
    pub(crate) namespace: String,
    /// The name of the Lease object. Gateways of one namespace need different ones.
    #[schemars(length(min = 1, max = 253))]
    pub(crate) name: String,
}

/// A list of addresses, or `{dns: {name, port}}`.
#[derive(Clone, Debug)]
pub(crate) enum Companions {
    List(Vec<String>),
    Dns(DnsCompanions),
}

/// All addresses of a DNS name.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DnsCompanions {
    /// The DNS name.
    #[schemars(length(min = 1, max = 253))]
    pub(crate) name: String,
    /// The port at which every companion listens for filters.
    pub(crate) port: Port,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CompanionsMap {
    dns: DnsCompanions,
}

impl<'de> Deserialize<'de> for Companions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CompanionsVisitor;
        impl<'de> Visitor<'de> for CompanionsVisitor {
            type Value = Companions;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(
                    "a list of addresses like [127.0.0.1:9190, 127.0.0.1:9290], or {dns: {name: NAME, port: PORT}}",
                )
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Companions, A::Error> {
                let mut addresses = Vec::new();
                while let Some(address) = list.next_element()? {
                    addresses.push(address);
                }
                Ok(Companions::List(addresses))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Companions, A::Error> {
                CompanionsMap::deserialize(MapAccessDeserializer::new(map))
                    .map(|map| Companions::Dns(map.dns))
            }
        }
        deserializer.deserialize_any(CompanionsVisitor)
    }
}

impl Serialize for Companions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::List(addresses) => serializer.collect_seq(addresses),
            Self::Dns(name) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("dns", name)?;
                map.end()
            }
        }
    }
}

impl JsonSchema for Companions {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Companions".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [
            {"type": "array", "minItems": 1, "items": {"type": "string"}},
            {
                "type": "object",
                "properties": {"dns": generator.subschema_for::<DnsCompanions>()},
                "required": ["dns"],
                "additionalProperties": false,
            },
        ]})
    }
}
