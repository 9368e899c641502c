//! `picker`: the companion as the endpoint picker of InferencePools.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::{JsonSchema, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Violation;
use crate::listen::socket_address;
use crate::value::inline_schema;
use crate::{Config, Per, compiled};

/// The companion as the endpoint picker of InferencePools, for gateways that load no filter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Picker {
    /// Where gateways ask, by Envoy's external processing protocol, `ip:port`; llm-d's picker has the port 9002. An address off loopback
    /// requires `identity.trust`. Null: the companion is no endpoint picker.
    #[serde(deserialize_with = "read_address")]
    #[schemars(with = "Option<String>")]
    pub listen: Option<SocketAddr>,
    /// What gateways connect by. `off`: plain text. `auto`: TLS with a certificate that is made at the start, which gateways don't verify by
    /// default. `{cert: FILE, key: FILE}`: TLS with this certificate, in PEM form.
    pub tls: PickerTls,
    /// A port for health checks by gRPC, without TLS, `ip:port`; llm-d's picker has 9003. `listen` answers them too. Null: it alone does.
    #[serde(deserialize_with = "read_address")]
    #[schemars(with = "Option<String>")]
    pub health: Option<SocketAddr>,
}

/// What gateways connect by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PickerTls {
    /// Plain text.
    #[default]
    Off,
    /// TLS with a certificate that is made at the start.
    Auto,
    /// TLS with this certificate, in PEM files.
    Files {
        /// The certificate, followed by its intermediate certificates.
        cert: PathBuf,
        /// The certificate's private key.
        key: PathBuf,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

impl<'de> Deserialize<'de> for PickerTls {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TlsVisitor;
        impl<'de> Visitor<'de> for TlsVisitor {
            type Value = PickerTls;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("off, auto, or {cert: FILE, key: FILE}")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<PickerTls, E> {
                match text {
                    "off" => Ok(PickerTls::Off),
                    "auto" => Ok(PickerTls::Auto),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PickerTls, A::Error> {
                let Files { cert, key } = Files::deserialize(MapAccessDeserializer::new(map))?;
                Ok(PickerTls::Files { cert, key })
            }
        }
        deserializer.deserialize_any(TlsVisitor)
    }
}

impl Serialize for PickerTls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::Auto => serializer.serialize_str("auto"),
            Self::Files { cert, key } => {
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry("cert", cert)?;
                map.serialize_entry("key", key)?;
                map.end()
            }
        }
    }
}

inline_schema!(PickerTls, |_| json_schema!({
    "anyOf": [
        {"enum": ["off", "auto"]},
        {
            "type": "object",
            "description": "The PEM files of the certificate that the picker shows to gateways.",
            "properties": {
                "cert": {"type": "string", "description": "The certificate, followed by its intermediate certificates."},
                "key": {"type": "string", "description": "The certificate's private key."},
            },
            "required": ["cert", "key"],
            "additionalProperties": false,
        },
    ]
}));

fn read_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| socket_address(&text).map_err(de::Error::custom)).transpose()
}

impl Config {
    /// Checks what the picker needs of other keys.
    pub(super) fn check_picker(&self, trust_is_given: bool) -> Result<(), Violation> {
        if self.picker.tls != PickerTls::Off {
            compiled::require("tls", cfg!(feature = "tls"), "picker.tls")?;
        }
        let own_ports =
            self.pools.iter().enumerate().filter_map(|(index, pool)| Some((index, pool.picker_port?)));
        let Some(listen) = self.picker.listen else {
            return match own_ports.into_iter().next() {
                Some((index, _)) => Err(Violation::new(
                    format!("pools[{index}].picker_port"),
                    "the companion is no endpoint picker; set picker.listen as well",
                )),
                None => Ok(()),
            };
        };
        let mut ports = vec![(String::from("picker.listen"), listen.port())];
        ports.extend(own_ports.map(|(index, port)| (format!("pools[{index}].picker_port"), port)));
        ports.extend(self.picker.health.map(|health| ("picker.health".to_owned(), health.port())));
        for (index, (key, port)) in ports.iter().enumerate() {
            let earlier = ports.iter().take(index).find(|(_, other)| other == port && *port != 0);
            if let Some((other, _)) = earlier {
                return Err(Violation::new(
                    key.clone(),
                    format!("the port {port} is that of {other} already"),
                ));
            }
        }
        if !listen.ip().is_loopback() && !trust_is_given {
            return Err(Violation::new(
                "picker.listen",
                format!(
                    "`{listen}` isn't a loopback address; set identity.trust to name the trusted clients: all, none, or a list of \
                     networks like [10.0.0.0/8]"
                ),
            ));
        }
        if self.replicas.as_ref().is_some_and(|replicas| replicas.per == Per::Pool) {
            return Err(Violation::new(
                "picker.listen",
                "a gateway asks one companion about all pools; write replicas.per: gateway",
            ));
        }
        Ok(())
    }
}
