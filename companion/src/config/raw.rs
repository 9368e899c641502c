//! The document as it is written: one struct a mapping, unknown keys are errors, defaults are the contract's.
//!
//! Nothing here decides; `super` turns it into types that fit together.

mod arbitration;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer};

pub(super) use self::arbitration::*;
pub(super) use super::value::Scalar;
use super::value::{Bytes, Count, Exact, FlowCount, Pairs, Rate, Span, TextOr, Trusted, Whole};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Document {
    pub(super) listen: Listen,
    pub(super) tls: Option<Tls>,
    pub(super) admin: Admin,
    pub(super) identity: Identity,
    pub(super) pools: Vec<Pool>,
    pub(super) shutdown: Shutdown,
    pub(super) startup_wait: Option<Span>,
    pub(super) limits: Limits,
    pub(super) metrics: Metrics,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Listen {
    pub(super) gateway: Option<String>,
    pub(super) envoy_admin: Option<String>,
    pub(super) grpc: Option<String>,
    pub(super) http: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) client_ca: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Admin {
    pub(super) token_file: Option<PathBuf>,
    pub(super) hosts: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Identity {
    pub(super) fairness_id: Option<Vec<Source>>,
    pub(super) user: Option<Vec<Source>>,
    pub(super) priority: Option<Vec<Source>>,
    pub(super) class: Option<Vec<Source>>,
    pub(super) strict: Vec<Source>,
    pub(super) jump: Vec<Source>,
    pub(super) objectives: BTreeMap<String, Criticality>,
    pub(super) trust: Option<Trusted>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Source {
    Header(String),
    Body(String),
    Metadata(String),
    Model(Pairs<Scalar>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Criticality {
    Critical,
    Default,
    Sheddable,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pool {
    pub(super) name: String,
    #[serde(default)]
    pub(super) models: Vec<String>,
    pub(super) endpoints: Endpoints,
    #[serde(default)]
    pub(super) health: Health,
    #[serde(default)]
    pub(super) down: Down,
    #[serde(default)]
    pub(super) scrape: Scrape,
    #[serde(default)]
    pub(super) queue: Queue,
    #[serde(default)]
    pub(super) stock: Stock,
    #[serde(default)]
    pub(super) arbitration: Arbitration,
    #[serde(default)]
    pub(super) usage: Usage,
    #[serde(default)]
    pub(super) slo: Slo,
    #[serde(default)]
    pub(super) companion_down: CompanionDown,
    #[serde(default)]
    pub(super) reject_unmeetable: bool,
    #[serde(default)]
    pub(super) capacity_status: CapacityStatus,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Endpoints {
    #[serde(rename = "static")]
    pub(super) fixed: Vec<EndpointEntry>,
}

/// An endpoint, or just its address.
#[derive(Debug)]
pub(super) struct EndpointEntry(pub(super) Endpoint);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Endpoint {
    pub(super) address: String,
    #[serde(default)]
    pub(super) weight: Option<Exact>,
    #[serde(default)]
    pub(super) variant: Option<String>,
    #[serde(default)]
    pub(super) max_batch: Option<Count>,
}

impl From<String> for Endpoint {
    fn from(address: String) -> Self {
        Self {
            address,
            weight: None,
            variant: None,
            max_batch: None,
        }
    }
}

impl<'de> Deserialize<'de> for EndpointEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(TextOr::<Endpoint>(PhantomData))
            .map(Self)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Health {
    pub(super) path: Option<String>,
    pub(super) interval: Span,
    pub(super) unhealthy_after: Count,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            path: Some("/health".into()),
            interval: span(5_000),
            unhealthy_after: Count(3),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Down {
    pub(super) first: Span,
    pub(super) max: Span,
}

impl Default for Down {
    fn default() -> Self {
        Self {
            first: span(1_000),
            max: span(30_000),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Scrape {
    pub(super) path: Option<String>,
    pub(super) interval: Span,
    pub(super) stale_after: Option<Span>,
}

impl Default for Scrape {
    fn default() -> Self {
        Self {
            path: Some("/metrics".into()),
            interval: span(1_000),
            stale_after: None,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Queue {
    pub(super) enabled: bool,
    pub(super) total_capacity: u64,
    pub(super) total_bytes: Bytes,
    pub(super) flow_capacity: Count,
    pub(super) ttl: Span,
    pub(super) no_endpoint_ttl: Span,
    pub(super) max_rate: Option<Rate>,
    pub(super) requeues: Whole,
    pub(super) overflow: Overflow,
    pub(super) admit: Admit,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            enabled: true,
            total_capacity: 1_000,
            total_bytes: Bytes(256 << 20),
            flow_capacity: Count(100),
            ttl: span(30_000),
            no_endpoint_ttl: span(60_000),
            max_rate: None,
            requeues: Whole(3),
            overflow: Overflow::Displace,
            admit: Admit::All,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Overflow {
    Displace,
    Reject,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Admit {
    All,
    CriticalOnly,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Stock {
    pub(super) unit: StockUnit,
    pub(super) watermark_per_backend: Option<Watermark>,
    pub(super) deviation: Exact,
    pub(super) lower_bound_per_backend: Option<Exact>,
    pub(super) upper_bound_per_backend: Option<Exact>,
    pub(super) auto_initial: Count,
}

impl Default for Stock {
    fn default() -> Self {
        use penstock_engine::units::Decimal;
        Self {
            unit: StockUnit::Requests,
            watermark_per_backend: None,
            deviation: Exact(Decimal::from_billionths(Decimal::ONE / 10)),
            lower_bound_per_backend: None,
            upper_bound_per_backend: None,
            auto_initial: Count(8),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StockUnit {
    Requests,
    Tokens,
}

/// `watermark_per_backend`: a whole number of at least 1, `auto`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watermark {
    Fixed(u64),
    Auto,
    None,
}

impl<'de> Deserialize<'de> for Watermark {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Watermarks;
        impl serde::de::Visitor<'_> for Watermarks {
            type Value = Watermark;
            fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                to.write_str("a whole number of at least 1, auto, or none")
            }
            fn visit_u64<E: serde::de::Error>(self, watermark: u64) -> Result<Watermark, E> {
                match watermark {
                    0 => Err(E::invalid_value(serde::de::Unexpected::Unsigned(0), &self)),
                    watermark => Ok(Watermark::Fixed(watermark)),
                }
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Watermark, E> {
                match text {
                    "auto" => Ok(Watermark::Auto),
                    "none" => Ok(Watermark::None),
                    other => Err(E::invalid_value(serde::de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(Watermarks)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CompanionDown {
    pub(super) hold: Span,
    pub(super) then: Then,
}

impl Default for CompanionDown {
    fn default() -> Self {
        Self {
            hold: span(5_000),
            then: Then::Closed,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Then {
    Open,
    Closed,
}

/// `capacity_status`: 503 or 429.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapacityStatus(pub(super) u16);

impl Default for CapacityStatus {
    fn default() -> Self {
        Self(503)
    }
}

impl<'de> Deserialize<'de> for CapacityStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match u16::deserialize(deserializer)? {
            status @ (429 | 503) => Ok(Self(status)),
            other => Err(serde::de::Error::custom(format!(
                "this is 503 or 429, not {other}"
            ))),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shutdown {
    pub(super) queued: Queued,
    pub(super) drain: Span,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self {
            queued: Queued::Reject,
            drain: span(30_000),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Queued {
    Reject,
    HandOver,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    pub(super) flows: Option<FlowCount>,
    pub(super) body_bytes: Option<Bytes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Metrics {
    pub(super) flows: Option<Count>,
}

const fn span(millis: u64) -> Span {
    Span(std::time::Duration::from_millis(millis))
}
