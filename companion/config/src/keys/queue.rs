//! `queue`: limits of the queue.

use std::fmt;
use std::time::Duration;

use penstock_engine::policy::{self as engine, Admit, Overflow};
use schemars::{JsonSchema, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::millis;
use crate::RequeueOn;
use crate::error::Violation;
use crate::value::{Bytes, Count, PositiveDuration, Rate, WholeNumber, inline_schema};

/// The shortest time between two comments: more often, they would be a load.
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(100);

/// Limits of the queue.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Queue {
    /// When false, a request that can't be granted at once is rejected.
    pub(crate) enabled: bool,
    /// Requests that may wait in the pool.
    pub(crate) total_capacity: WholeNumber,
    /// Total size of the request bodies that may wait in the pool.
    pub(crate) total_bytes: Bytes,
    /// Requests of one tenant that may wait in one band.
    pub(crate) flow_capacity: Count,
    /// The longest time that a request may wait, from its arrival. A request that is older is answered `queue_timeout`.
    pub(crate) ttl: PositiveDuration,
    /// The longest time that a request may wait, from its arrival, while no endpoint of its pool is ready, if that is longer than
    /// `ttl`. Then it is answered `no_endpoints`. Once an endpoint is ready, `ttl` decides again.
    pub(crate) no_endpoint_ttl: PositiveDuration,
    /// Grants per second, however much room the endpoints have. Bursts are limited to one second's grants, and to at least
    /// one request.
    pub(crate) max_rate: Option<Rate>,
    /// A streaming client that has waited for so long gets status 200 and, as often, a comment with its position, so that neither it nor a
    /// proxy in between gives up. An error is then an event of the stream. Null: clients wait silently. At least 100 ms.
    pub(crate) keep_alive: Option<PositiveDuration>,
    /// How often a request returns to its place in the queue after an endpoint failed it by one of `requeue_on`. `until_ttl`:
    /// as often as needed before its `ttl` ends. While every ready endpoint has failed it, the pause before the next attempt
    /// grows from 100 ms to 1 s.
    pub(crate) requeues: Requeues,
    /// What an endpoint may do before the first byte of its answer has been passed on for the request to go to another endpoint
    /// or back to its place. `connect`: it refuses the connection or doesn't accept within 1 s. `reset`: it cuts the connection;
    /// this includes `connect`, and `resets` limits it. `429`, `503`: it answers with this status; its bound falls to what it had in
    /// flight, and rises by one with each request that it serves. `500`, `502`, `504`: it answers with this status; the second such
    /// answer of one endpoint is the client's. Everything else, and what isn't listed, is the client's answer.
    pub(crate) requeue_on: Vec<RequeueCause>,
    /// How often a request goes elsewhere after an endpoint cut its connection, with the request sent and no byte of an answer. Then the
    /// client is answered 502 `upstream_reset`: the request may be what ends servers.
    pub(crate) resets: Resets,
    /// What a full queue does with a request that is more critical than a waiting one.
    pub(crate) overflow: Overflow,
    /// The requests that may wait.
    pub(crate) admit: Admit,
    /// `auto`: while nothing waits and the endpoints have much room, filters admit requests by themselves and report them at their
    /// end. `off`: every request asks the companion.
    pub(crate) credits: Credits,
}

/// Whether filters may admit requests by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Credits {
    /// While nothing waits and the endpoints have much room.
    Auto,
    /// Never.
    Off,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            enabled: true,
            total_capacity: WholeNumber(1_000),
            total_bytes: Bytes(256 << 20),
            flow_capacity: Count(100),
            ttl: millis(30_000),
            no_endpoint_ttl: millis(60_000),
            max_rate: None,
            keep_alive: None,
            requeues: Requeues::UntilTtl,
            requeue_on: RequeueCause::ALL.to_vec(),
            resets: Resets(1),
            overflow: Overflow::Displace,
            admit: Admit::All,
            credits: Credits::Auto,
        }
    }
}

impl Queue {
    /// The engine's limits.
    pub(super) fn limits(&self) -> engine::Queue {
        engine::Queue {
            enabled: self.enabled,
            total_capacity: self.total_capacity.0,
            total_bytes: self.total_bytes.0,
            flow_capacity: self.flow_capacity.0,
            ttl: self.ttl.0,
            no_endpoint_ttl: self.no_endpoint_ttl.0,
            overflow: self.overflow,
            admit: self.admit,
            max_rate: self.max_rate.map(|rate| rate.0),
        }
    }

    /// The time between two comments to waiting clients; `path` is the pool's.
    pub(super) fn keep_alive(&self, path: &str) -> Result<Option<Duration>, Violation> {
        match self.keep_alive {
            Some(every) if every.0 < KEEP_ALIVE_MIN => Err(Violation::new(
                format!("{path}.queue.keep_alive"),
                format!("the shortest time is {KEEP_ALIVE_MIN:?}; write one like 15s"),
            )),
            Some(every) if every.0 >= self.ttl.0 => Err(Violation::new(
                format!("{path}.queue.keep_alive"),
                format!(
                    "no request waits for so long: raise queue.ttl, which is {:?}, or write a shorter time",
                    self.ttl.0
                ),
            )),
            every => Ok(every.map(|every| every.0)),
        }
    }

    /// The failures after which a request is sent again; `path` is the pool's.
    pub(super) fn requeue_on(&self, path: &str) -> Result<RequeueOn, Violation> {
        let causes = &self.requeue_on;
        for (index, cause) in causes.iter().enumerate() {
            if causes[..index].contains(cause) {
                return Err(Violation::new(
                    format!("{path}.queue.requeue_on[{index}]"),
                    "each cause is listed once",
                ));
            }
        }
        let mut statuses: Vec<u16> = causes.iter().filter_map(|cause| cause.status()).collect();
        statuses.sort_unstable();
        Ok(RequeueOn {
            connect: causes.contains(&RequeueCause::Connect),
            reset: causes.contains(&RequeueCause::Reset),
            statuses,
        })
    }
}

/// The most requeues that a whole number allows.
const REQUEUES_MAX: u64 = 1_000;

/// `requeues`: `until_ttl`, or a whole number from 0 to 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requeues {
    UntilTtl,
    AtMost(u64),
}

impl Requeues {
    /// The number of requeues; `None`: until the ttl.
    pub(crate) fn limit(self) -> Option<u32> {
        match self {
            Self::UntilTtl => None,
            Self::AtMost(count) => Some(u32::try_from(count).unwrap_or(u32::MAX)),
        }
    }
}

impl<'de> Deserialize<'de> for Requeues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RequeuesVisitor)
    }
}

struct RequeuesVisitor;

impl Visitor<'_> for RequeuesVisitor {
    type Value = Requeues;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("until_ttl, or a whole number from 0 to 1000")
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<Requeues, E> {
        match count {
            0..=REQUEUES_MAX => Ok(Requeues::AtMost(count)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(count), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Requeues, E> {
        match text {
            "until_ttl" => Ok(Requeues::UntilTtl),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }
}

impl Serialize for Requeues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::UntilTtl => serializer.serialize_str("until_ttl"),
            Self::AtMost(count) => serializer.serialize_u64(*count),
        }
    }
}

inline_schema!(
    Requeues,
    |_| json_schema!({"anyOf": [{"enum": ["until_ttl"]}, {"type": "integer", "minimum": 0, "maximum": 1000}]})
);

/// `resets`: a whole number from 0 to 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Resets(pub(crate) u32);

impl<'de> Deserialize<'de> for Resets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ResetsVisitor;
        impl Visitor<'_> for ResetsVisitor {
            type Value = Resets;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number from 0 to 1000")
            }
            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Resets, E> {
                let valid = u32::try_from(count).ok().filter(|_| count <= REQUEUES_MAX);
                valid.map(Resets).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(count), &self))
            }
        }
        deserializer.deserialize_any(ResetsVisitor)
    }
}

inline_schema!(Resets, |_| json_schema!({"type": "integer", "minimum": 0, "maximum": 1000}));

/// A failure of an endpoint: `connect`, `reset`, or a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequeueCause {
    Connect,
    Reset,
    TooManyRequests,
    InternalError,
    BadGateway,
    Unavailable,
    GatewayTimeout,
}

impl RequeueCause {
    pub(crate) const ALL: [Self; 7] = [
        Self::Connect,
        Self::Reset,
        Self::TooManyRequests,
        Self::InternalError,
        Self::BadGateway,
        Self::Unavailable,
        Self::GatewayTimeout,
    ];

    /// The HTTP status; `None`: the cause is none.
    const fn status(self) -> Option<u16> {
        match self {
            Self::Connect | Self::Reset => None,
            Self::TooManyRequests => Some(429),
            Self::InternalError => Some(500),
            Self::BadGateway => Some(502),
            Self::Unavailable => Some(503),
            Self::GatewayTimeout => Some(504),
        }
    }
}

impl<'de> Deserialize<'de> for RequeueCause {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RequeueCauseVisitor)
    }
}

struct RequeueCauseVisitor;

impl Visitor<'_> for RequeueCauseVisitor {
    type Value = RequeueCause;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("connect, reset, 429, 500, 502, 503 or 504")
    }

    fn visit_u64<E: de::Error>(self, status: u64) -> Result<RequeueCause, E> {
        let mut causes = RequeueCause::ALL.into_iter();
        let cause = causes.find(|cause| cause.status().is_some_and(|known| u64::from(known) == status));
        cause.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(status), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RequeueCause, E> {
        match text {
            "connect" => Ok(RequeueCause::Connect),
            "reset" => Ok(RequeueCause::Reset),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }
}

impl Serialize for RequeueCause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Connect => serializer.serialize_str("connect"),
            Self::Reset => serializer.serialize_str("reset"),
            status => serializer.serialize_u64(status.status().unwrap_or_default().into()),
        }
    }
}

inline_schema!(RequeueCause, |_| json_schema!({"enum": ["connect", "reset", 429, 500, 502, 503, 504]}));
