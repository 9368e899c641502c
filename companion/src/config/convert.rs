//! From the document to the types of the program: what fits together across keys is checked here.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::str::FromStr;

use penstock_control::FlowKey;
use penstock_engine::input::Band;
use penstock_engine::policy as engine;
use penstock_engine::units::Decimal;

use super::{
    Address, AddressError, Broken, Config, Endpoint, Health, Identity, Listen, Pool, Source, raw, value,
};

/// Requests a ready endpoint works on at a time, if nothing else is said.
const DEFAULT_WATERMARK: u64 = 2;

impl TryFrom<raw::Document> for Config {
    type Error = Broken;

    fn try_from(raw: raw::Document) -> Result<Self, Broken> {
        if raw.pools.is_empty() {
            return Err(Broken(
                "pools".into(),
                "at least one pool is needed: {name, endpoints}".into(),
            ));
        }
        let mut names = BTreeSet::new();
        let mut pools = Vec::with_capacity(raw.pools.len());
        for (at, pool) in raw.pools.into_iter().enumerate() {
            let path = format!("pools[{at}]");
            if !names.insert(pool.name.clone()) {
                return Err(Broken(
                    format!("{path}.name"),
                    format!("`{}` is the name of two pools; names are unique", pool.name),
                ));
            }
            pools.push(convert_pool(pool, &path)?);
        }
        Ok(Self {
            listen: convert_listen(raw.listen)?,
            identity: convert_identity(raw.identity)?,
            pools,
            drain: raw.shutdown.drain.0,
            startup_wait: raw
                .startup_wait
                .map_or(penstock_wire::limits::STARTUP_WAIT, |it| it.0),
            body_bytes: raw.limits.body_bytes.map_or(32 << 20, |it| it.0),
            flows: to_usize(raw.limits.flows, 100_000),
            metric_flows: to_usize(raw.metrics.flows, 1_000),
        })
    }
}

fn to_usize(count: Option<value::Count>, default: usize) -> usize {
    count.map_or(default, |it| usize::try_from(it.0).unwrap_or(usize::MAX))
}

fn convert_listen(raw: raw::Listen) -> Result<Listen, Broken> {
    Ok(Listen {
        gateway: loopback("listen.gateway", raw.gateway.as_deref(), "127.0.0.1:8080")?,
        envoy_admin: loopback("listen.envoy_admin", raw.envoy_admin.as_deref(), "127.0.0.1:9901")?,
        grpc: address("listen.grpc", raw.grpc.as_deref(), "127.0.0.1:9190")?,
        http: address("listen.http", raw.http.as_deref(), "127.0.0.1:9191")?,
    })
}

fn address(key: &str, written: Option<&str>, default: &str) -> Result<Address, Broken> {
    written
        .unwrap_or(default)
        .parse()
        .map_err(|why: AddressError| Broken(key.into(), why.to_string()))
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => Err(AddressError(format!(
                "`{text}`: the path of a unix socket starts with /"
            ))),
            None => on_loopback(text).map(Self::Tcp),
        }
    }
}

fn loopback(key: &str, written: Option<&str>, default: &str) -> Result<SocketAddr, Broken> {
    on_loopback(written.unwrap_or(default)).map_err(|why| Broken(key.into(), why.to_string()))
}

/// What a client claims isn't checked yet, and nothing is encrypted: both need the loopback interface.
fn on_loopback(text: &str) -> Result<SocketAddr, AddressError> {
    let address: SocketAddr = text.parse().map_err(|_| {
        AddressError(format!(
            "`{text}` is no address; write ip:port, like 127.0.0.1:8080"
        ))
    })?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(AddressError(format!(
            "`{text}` isn't a loopback address; this version serves on loopback only"
        )))
    }
}

fn convert_identity(raw: raw::Identity) -> Result<Identity, Broken> {
    let header = |name: &str| raw::Source::Header(name.into());
    let user = || raw::Source::Body("user".into());
    let fairness_id = raw.fairness_id.unwrap_or_else(|| {
        vec![
            header("x-gateway-inference-fairness-id"),
            header("x-llm-d-inference-fairness-id"),
            header("x-penstock-tenant"),
            user(),
        ]
    });
    let priority = raw.priority.unwrap_or_else(|| {
        vec![
            header("x-penstock-priority"),
            header("x-nexus-priority"),
            header("x-gateway-inference-objective"),
        ]
    });
    Ok(Identity {
        fairness_id: sources("identity.fairness_id", fairness_id)?,
        user: sources(
            "identity.user",
            raw.user
                .unwrap_or_else(|| vec![header("x-penstock-user"), user()]),
        )?,
        priority: sources("identity.priority", priority)?,
        objectives: raw
            .objectives
            .into_iter()
            .map(|(name, band)| (name, band.into()))
            .collect(),
    })
}

fn sources(key: &str, raw: Vec<raw::Source>) -> Result<Vec<Source>, Broken> {
    raw.into_iter()
        .enumerate()
        .map(|(at, source)| {
            let named = |name: String| {
                if name.is_empty() || name.len() > penstock_wire::limits::NAME_BYTES_MAX {
                    Err(Broken(
                        format!("{key}[{at}]"),
                        "a name of 1 to 256 bytes is needed".into(),
                    ))
                } else {
                    Ok(name)
                }
            };
            Ok(match source {
                raw::Source::Header(name) => Source::Header(named(name)?.to_ascii_lowercase()),
                raw::Source::Body(name) => Source::Body(named(name)?),
                raw::Source::Metadata(path) => Source::Metadata(named(path)?),
                raw::Source::Model(rules) => Source::Model(
                    rules
                        .into_iter()
                        .map(|(glob, band)| (glob, band.into()))
                        .collect(),
                ),
            })
        })
        .collect()
}

fn convert_pool(raw: raw::Pool, path: &str) -> Result<Pool, Broken> {
    let valid = |it: &str| {
        (1..=63).contains(&it.len())
            && it
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    if !valid(&raw.name) {
        return Err(Broken(
            format!("{path}.name"),
            format!(
                "`{}`: a name has 1 to 63 letters, digits, `-`, `_` or `.`",
                raw.name
            ),
        ));
    }
    Ok(Pool {
        endpoints: convert_endpoints(raw.endpoints, path)?,
        health: raw.health.path.map(|path| Health {
            path,
            interval: raw.health.interval.0,
            unhealthy_after: raw.health.unhealthy_after.0,
        }),
        flow_key: match raw.arbitration.flows.key {
            raw::FlowKey::FairnessId => FlowKey::FairnessId,
            raw::FlowKey::User => FlowKey::User,
            raw::FlowKey::Model => FlowKey::Model,
            raw::FlowKey::None => FlowKey::None,
        },
        policy: convert_policy(&raw.queue, &raw.stock, raw.arbitration, &raw.usage, path)?,
        hold: raw.companion_down.hold.0,
        capacity_status: raw.capacity_status.0,
        name: raw.name,
        models: raw.models,
    })
}

fn convert_endpoints(raw: raw::Endpoints, path: &str) -> Result<Vec<Endpoint>, Broken> {
    if raw.fixed.is_empty() {
        return Err(Broken(
            format!("{path}.endpoints.static"),
            "at least one address is needed".into(),
        ));
    }
    let mut seen = BTreeSet::new();
    raw.fixed
        .into_iter()
        .enumerate()
        .map(|(at, raw::EndpointEntry(endpoint))| {
            let key = format!("{path}.endpoints.static[{at}]");
            let address: SocketAddr = endpoint.address.parse().map_err(|_| {
                Broken(
                    key.clone(),
                    format!("`{}` is no address; write ip:port", endpoint.address),
                )
            })?;
            if !seen.insert(address) {
                return Err(Broken(key, format!("`{address}` is listed twice")));
            }
            let weight = endpoint.weight.map_or(Decimal::whole(1), |it| it.0);
            if weight == Decimal::default() {
                return Err(Broken(format!("{key}.weight"), "a weight is above 0".into()));
            }
            Ok(Endpoint { address, weight })
        })
        .collect()
}

fn convert_policy(
    queue: &raw::Queue,
    stock: &raw::Stock,
    arbitration: raw::Arbitration,
    usage: &raw::Usage,
    path: &str,
) -> Result<engine::Policy, Broken> {
    let (raw::BandMode::Strict, raw::Order::Fcfs) = (arbitration.bands.mode, arbitration.order);
    let raw::Discipline::Wfq = arbitration.flows.discipline;
    let (input, output) = (usage.input_token_weight.0, usage.output_token_weight.0);
    if input == 0.0 && output == 0.0 {
        return Err(Broken(
            format!("{path}.usage"),
            "the two token weights can't both be 0".into(),
        ));
    }
    let flows = arbitration.flows;
    Ok(engine::Policy {
        queue: engine::Queue {
            enabled: queue.enabled,
            total_capacity: queue.total_capacity,
            total_bytes: queue.total_bytes.0,
            flow_capacity: queue.flow_capacity.0,
            ttl: queue.ttl.0,
            no_endpoint_ttl: queue.no_endpoint_ttl.0,
            overflow: match queue.overflow {
                raw::Overflow::Displace => engine::Overflow::Displace,
                raw::Overflow::Reject => engine::Overflow::Reject,
            },
            admit: match queue.admit {
                raw::Admit::All => engine::Admit::All,
                raw::Admit::CriticalOnly => engine::Admit::CriticalOnly,
            },
            max_rate: None,
        },
        gate: convert_gate(stock, path)?,
        flows: engine::Flows {
            cost: match flows.cost {
                raw::Cost::Tokens => engine::CostUnit::Tokens,
                raw::Cost::Requests => engine::CostUnit::Requests,
            },
            weights: flows
                .weights
                .into_iter()
                .map(|(flow, weight)| (flow.into(), weight.0))
                .collect(),
            default_weight: flows.default_weight.0,
            capacities: flows
                .capacities
                .into_iter()
                .map(|(flow, most)| (flow.into(), most.0))
                .collect(),
            ..engine::Flows::default()
        },
        weights: engine::TokenWeights { input, output },
        ..engine::Policy::default()
    })
}

/// lower = watermark*(1-deviation), upper = watermark*(1+deviation), or the two as given; exact.
fn convert_gate(stock: &raw::Stock, path: &str) -> Result<engine::Gate, Broken> {
    let raw::StockUnit::Requests = stock.unit;
    let watermark = match stock.watermark_per_backend {
        Some(raw::Watermark::None) => return Ok(engine::Gate::Open),
        Some(raw::Watermark::Fixed(watermark)) => watermark,
        None => DEFAULT_WATERMARK,
    };
    let deviation = stock.deviation.0.billionths();
    if deviation == 0 || deviation >= Decimal::ONE {
        return Err(Broken(
            format!("{path}.stock.deviation"),
            "a deviation is above 0 and below 1".into(),
        ));
    }
    let scaled = |by: u128| Decimal::from_billionths(u128::from(watermark) * by);
    let lower = stock
        .lower_bound_per_backend
        .map_or(scaled(Decimal::ONE - deviation), |it| it.0);
    let upper = stock
        .upper_bound_per_backend
        .map_or(scaled(Decimal::ONE + deviation), |it| it.0);
    let watermark = Decimal::whole(watermark);
    let given = stock.watermark_per_backend.is_some();
    if lower > upper || given && !(lower..=upper).contains(&watermark) {
        return Err(Broken(
            format!("{path}.stock"),
            "0 <= lower_bound_per_backend <= watermark_per_backend <= upper_bound_per_backend is needed"
                .into(),
        ));
    }
    Ok(engine::Gate::Bounded {
        unit: engine::StockUnit::Requests,
        lower,
        upper,
        watermark: watermark.clamp(lower, upper),
    })
}

impl From<raw::Criticality> for Band {
    fn from(raw: raw::Criticality) -> Self {
        match raw {
            raw::Criticality::Critical => Self::Critical,
            raw::Criticality::Default => Self::Default,
            raw::Criticality::Sheddable => Self::Sheddable,
        }
    }
}
