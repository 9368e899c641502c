//! `replicas`: several companions for one gateway.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use schemars::{JsonSchema, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap as _, Serializer};
use serde::{Deserialize, Serialize};
use url::Url;

use super::check_name;
use crate::error::Violation;
use crate::listen::socket_address;
use crate::name::{HOST_BYTES_MAX, LABEL_BYTES_MAX};
use crate::value::{Port, PositiveDuration, inline_schema};
use crate::{Address, Config, Per, Store, compiled};

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
    /// What a lease covers.
    #[serde(default)]
    pub(crate) per: Per,
}

const fn default_duration() -> PositiveDuration {
    PositiveDuration(Duration::from_secs(3))
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

inline_schema!(Companions, |generator| json_schema!({"anyOf": [
    {"type": "array", "minItems": 1, "items": {"type": "string"}},
    {
        "type": "object",
        "properties": {"dns": generator.subschema_for::<DnsCompanions>()},
        "required": ["dns"],
        "additionalProperties": false,
    },
]}));

/// The most companions of a gateway, and the most URLs of an etcd.
const MEMBERS_MAX: usize = 32;
/// Bytes of the beginning of etcd's keys.
const PREFIX_BYTES_MAX: usize = 256;
/// Bytes of the name of a Lease object to which pools' names are appended.
const OBJECT_BYTES_MAX: usize = 180;
/// The allowed duration of the lease. Below, a busy machine could miss a renewal; above, a failover takes too long.
const DURATION: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);

/// Checks `replicas`, except where it depends on other keys, which [`Config::check_replicas`] does. `grpc` is `listen.grpc`.
pub(super) fn convert(raw: Replicas, grpc: &Address) -> Result<crate::Replicas, Violation> {
    if !DURATION.contains(&raw.duration.0) {
        return Err(Violation::new("replicas.duration", "a duration from 1s to 60s is required"));
    }
    let companions = companions(raw.companions)?;
    let advertise = advertise(raw.advertise.as_deref(), grpc)?;
    if let crate::Companions::List(list) = &companions
        && !list.contains(&advertise)
    {
        return Err(Violation::new(
            "replicas.advertise",
            format!(
                "`{advertise}` isn't in replicas.companions; write this companion's address of that list, or set \
                 PENSTOCK_REPLICAS__ADVERTISE if the companions share the file"
            ),
        ));
    }
    Ok(crate::Replicas {
        companions,
        advertise,
        lease: lease(raw.lease)?,
        per: raw.per,
        duration: raw.duration.0,
    })
}

fn companions(raw: Companions) -> Result<crate::Companions, Violation> {
    let list = match raw {
        Companions::Dns(DnsCompanions { name, port }) => {
            let key = "replicas.companions.dns.name";
            if name.parse::<IpAddr>().is_ok() {
                return Err(Violation::new(
                    key,
                    format!("`{name}` is an address; write a list of addresses instead of dns"),
                ));
            }
            check_name(&name, HOST_BYTES_MAX, "a name", key)?;
            return Ok(crate::Companions::Dns {
                name,
                port: u16::try_from(port.0).expect("invariant: a port is at most 65535"),
            });
        }
        Companions::List(list) => list,
    };
    check_count(list.len(), "replicas.companions", "address")?;
    let mut addresses = Vec::with_capacity(list.len());
    for (index, text) in list.iter().enumerate() {
        let key = format!("replicas.companions[{index}]");
        let address = reachable(text, &key)?;
        if addresses.contains(&address) {
            return Err(Violation::new(key, format!("`{address}` is listed twice")));
        }
        addresses.push(address);
    }
    Ok(crate::Companions::List(addresses))
}

/// The address of this companion: `text`, or else the address of `listen.grpc`.
fn advertise(text: Option<&str>, grpc: &Address) -> Result<SocketAddr, Violation> {
    let Address::Tcp(grpc) = grpc else {
        return Err(Violation::new(
            "listen.grpc",
            format!(
                "`{grpc}`: with replicas, write ip:port, because filters connect to all companions by their addresses"
            ),
        ));
    };
    if grpc.port() == 0 {
        return Err(Violation::new(
            "listen.grpc",
            format!(
                "`{grpc}`: with replicas, a port is 1 to 65535, because the other companions must know it"
            ),
        ));
    }
    match text {
        Some(text) => reachable(text, "replicas.advertise"),
        None if grpc.ip().is_unspecified() => Err(Violation::new(
            "replicas.advertise",
            format!(
                "listen.grpc is `{grpc}`, to which filters can't connect; write the address of this companion, or set \
                 PENSTOCK_REPLICAS__ADVERTISE"
            ),
        )),
        None => Ok(*grpc),
    }
}

/// An address to which filters can connect.
fn reachable(text: &str, key: &str) -> Result<SocketAddr, Violation> {
    let address = socket_address(text).map_err(|error| Violation::new(key, error.to_string()))?;
    if address.port() == 0 {
        return Err(Violation::new(key, format!("`{address}`: a port is 1 to 65535")));
    }
    if address.ip().is_unspecified() {
        return Err(Violation::new(
            key,
            format!(
                "`{address}`: filters can't connect to this address; write one of the machine's addresses"
            ),
        ));
    }
    Ok(address)
}

fn lease(raw: Lease) -> Result<crate::Lease, Violation> {
    match (raw.etcd, raw.kubernetes, raw.file) {
        (Some(etcd), None, None) => self::etcd(etcd),
        (None, Some(object), None) => kubernetes(object),
        (None, None, Some(path)) => file(path),
        _ => Err(Violation::new("replicas.lease", "exactly one of etcd, kubernetes and file is required")),
    }
}

fn etcd(raw: EtcdLease) -> Result<crate::Lease, Violation> {
    compiled::require("etcd", cfg!(feature = "etcd"), "replicas.lease.etcd")?;
    check_count(raw.endpoints.len(), "replicas.lease.etcd.endpoints", "URL")?;
    for (index, url) in raw.endpoints.iter().enumerate() {
        if !is_etcd_url(url) {
            // The message doesn't repeat a URL, which may contain a password.
            return Err(Violation::new(
                format!("replicas.lease.etcd.endpoints[{index}]"),
                "this is not the URL of an etcd; write one without user, path and query, like http://127.0.0.1:2379",
            ));
        }
    }
    let key = "replicas.lease.etcd.prefix";
    let prefix = raw.prefix.trim_end_matches('/');
    let is_path =
        prefix.len() > 1 && prefix.starts_with('/') && prefix.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_path || prefix.len() > PREFIX_BYTES_MAX {
        return Err(Violation::new(
            key,
            format!(
                "the beginning of etcd's keys starts with / and has 2 to {PREFIX_BYTES_MAX} visible characters, like /penstock"
            ),
        ));
    }
    Ok(crate::Lease::Etcd { prefix: prefix.to_owned(), endpoints: raw.endpoints })
}

fn is_etcd_url(text: &str) -> bool {
    // The parser drops spaces and line breaks.
    !text.contains(char::is_whitespace)
        && Url::parse(text).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.host_str().is_some_and(|host| !host.is_empty())
                && url.username().is_empty()
                && url.password().is_none()
                && matches!(url.path(), "" | "/")
                && url.query().is_none()
                && url.fragment().is_none()
        })
}

fn kubernetes(raw: KubernetesLease) -> Result<crate::Lease, Violation> {
    let key = "replicas.lease.kubernetes";
    compiled::require("kubernetes", cfg!(feature = "kubernetes"), key)?;
    check_name(&raw.namespace, LABEL_BYTES_MAX, "a namespace", &format!("{key}.namespace"))?;
    check_name(&raw.name, HOST_BYTES_MAX, "a name", &format!("{key}.name"))?;
    Ok(crate::Lease::Kubernetes { namespace: raw.namespace, name: raw.name })
}

fn file(path: PathBuf) -> Result<crate::Lease, Violation> {
    if path.as_os_str().is_empty() {
        return Err(Violation::new("replicas.lease.file", "must be the path of a file, not empty"));
    }
    Ok(crate::Lease::File(path))
}

fn check_count(count: usize, key: &str, noun: &str) -> Result<(), Violation> {
    match count {
        0 => Err(Violation::new(key, format!("at least one {noun} is required"))),
        1..=MEMBERS_MAX => Ok(()),
        _ => Err(Violation::new(key, format!("at most {MEMBERS_MAX} are allowed, not {count}"))),
    }
}

impl Config {
    /// Checks `replicas` against the keys that several companions use differently.
    pub(super) fn check_replicas(&self) -> Result<(), Violation> {
        let Some(replicas) = &self.replicas else {
            return Ok(());
        };
        self.check_companion_addresses(replicas)?;
        if let (Per::Pool, crate::Lease::Kubernetes { name, .. }) = (replicas.per, &replicas.lease)
            && name.len() > OBJECT_BYTES_MAX
        {
            return Err(Violation::new(
                "replicas.lease.kubernetes.name",
                format!(
                    "with per: pool, a name has at most {OBJECT_BYTES_MAX} bytes, because each pool's name is appended"
                ),
            ));
        }
        for (index, pool) in self.pools.iter().enumerate() {
            if let Some(Store::Redb(_)) = pool.store {
                return Err(Violation::new(
                    format!("pools[{index}].usage.store"),
                    "a redb file belongs to one process, and with replicas several companions run; write {redis: URL}, by \
                     which companions share usage, or memory",
                ));
            }
        }
        Ok(())
    }

    /// Checks that filters reach companions on other machines by mutual TLS.
    fn check_companion_addresses(&self, replicas: &crate::Replicas) -> Result<(), Violation> {
        if self.tls.is_some() {
            return Ok(());
        }
        let listed: &[SocketAddr] = match &replicas.companions {
            crate::Companions::List(list) => list,
            crate::Companions::Dns { .. } => &[],
        };
        let keys = (0..).map(|index| format!("replicas.companions[{index}]"));
        let mut addresses =
            listed.iter().zip(keys).chain([(&replicas.advertise, "replicas.advertise".to_owned())]);
        match addresses.find(|(address, _)| !address.ip().is_loopback()) {
            None => Ok(()),
            Some((address, key)) => Err(Violation::new(
                key,
                format!("`{address}` isn't a loopback address, so it needs tls: {{cert, key, client_ca}}"),
            )),
        }
    }
}
