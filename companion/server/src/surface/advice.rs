//! Advice for operators: sentences about problems of the present state, with the configuration key to change.
//!
//! Made on request from the present state and the statistics of the last minutes; nothing runs in the background. A
//! healthy pool has no advice.

mod model;
#[cfg(test)]
mod tests;

use std::time::Duration;

use penstock_config::{Config, Pool as PoolConfig};
use penstock_control::{PoolStatus, Status};
use penstock_engine::input::Band;
use penstock_engine::snapshot::EndpointSnapshot;
use penstock_engine::{HealthState, Instant};

use crate::base::liveness::Liveness;
use crate::base::role::Roles;
use crate::decisions::recent_stats::{Counts, PoolStats, RecentStats, WINDOW};
use crate::discovery::States;
use crate::surface::next_probe::next_probe;

/// A band is starved when its requests wait for this long while other bands are served.
const STARVED: Duration = Duration::from_secs(10);
/// Requests are stuck when they wait for this long although the gate is open.
const STUCK: Duration = Duration::from_secs(5);
/// An endpoint with requests is silent when no byte has come for this long.
const SILENT: Duration = Duration::from_secs(60);
/// Endpoints that are named; the rest is counted.
const NAMED: usize = 3;
/// Load from other clients is reported from this part of all requests at an endpoint.
const FOREIGN_PERCENT: u64 = 10;
/// The bound of an open gate.
const UNBOUNDED: u64 = u64::MAX;

/// The input of advice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    /// The present state.
    pub(crate) status: &'a Status,
    /// The statistics of the last minutes.
    pub(crate) recent: &'a RecentStats,
    /// The active configuration.
    pub(crate) config: &'a Config,
    /// Why the file's present content isn't active; `None`: it is.
    pub(crate) config_error: Option<&'a str>,
    /// The roles of this companion; `None` without `replicas`. A standby has no sessions and no requests of a pool, so it has no
    /// advice on that.
    pub(crate) roles: Option<&'a Roles>,
    /// Whether the discovery of each pool works.
    pub(crate) discoveries: Option<&'a States>,
    /// When bytes of answers came last.
    pub(crate) liveness: &'a Liveness,
    /// The time of the state.
    pub(crate) now: Instant,
    /// The time since the companion's start.
    pub(crate) uptime: Duration,
}

/// The advice on everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Advice on the companion as a whole.
    pub(crate) overall: Vec<String>,
    /// Advice on each pool, in the order of the status.
    pub(crate) pools: Vec<Vec<String>>,
}

/// The input of advice on one pool.
#[derive(Clone, Copy, Debug)]
struct PoolFacts<'a> {
    pool: &'a PoolStatus,
    config: &'a PoolConfig,
    recent: Option<&'a PoolStats>,
    counts: Counts,
    liveness: &'a Liveness,
    now: Instant,
    uptime: Duration,
}

/// The advice that follows from the facts.
#[must_use]
pub(crate) fn of(facts: &Facts<'_>) -> Advice {
    let pools = facts.status.pools.iter();
    Advice {
        overall: overall(facts),
        pools: pools
            .map(|pool| {
                let stands_by = facts.roles.is_some_and(|roles| !roles.of(&pool.name).is_leader());
                if stands_by { Vec::new() } else { pool_advice(facts, pool) }
            })
            .collect(),
    }
}

fn config_advice(why: &str) -> String {
    format!(
        "a changed file is not active, its previous content is: {why}. Correct the file; it is reloaded when it changes."
    )
}

fn overall(facts: &Facts<'_>) -> Vec<String> {
    let status = facts.status;
    let mut advice: Vec<String> = facts.config_error.map(config_advice).into_iter().collect();
    if status.draining {
        advice.push(
            "new requests are rejected because this companion drains. POST /drain with {\"off\": true} ends that.".into(),
        );
    }
    if let Some(node) = facts.recent.misconfigured_envoy(facts.now) {
        advice.push(format!(
            "Envoy `{node}` doesn't pass request bodies to its filter, so requests are answered 503 filter_misconfigured. Set allow_on_headers_stop_iteration: true in the filter's plugin configuration (PluginConfig), as `penstock envoy-config` does."
        ));
    }
    let stands_by = facts.roles.is_some_and(|roles| !roles.leads_any());
    if !status.sessions.iter().any(|session| session.open) && facts.uptime >= STUCK && !stands_by {
        advice.push(
            "no Envoy worker is connected to this companion. Check that Envoy runs with Penstock's filter and reaches listen.grpc."
                .into(),
        );
    }
    advice
}

fn pool_advice(facts: &Facts<'_>, pool: &PoolStatus) -> Vec<String> {
    let mut configured = facts.config.pools.iter().filter(|_| !pool.retired);
    let Some(config) = configured.find(|config| config.name == *pool.name) else {
        let retired =
            "this pool is no longer configured; it disappears when its running requests have ended.";
        return vec![retired.into()];
    };
    let mut advice = Vec::new();
    advice.extend(undiscovered(facts, &pool.name));
    advice.extend(unread_objects(facts, &pool.name));
    let recent = facts.recent.pool(&pool.name);
    let found_nothing = found_nothing(facts, &pool.name);
    let facts = PoolFacts {
        pool,
        config,
        recent,
        counts: recent.map(|stats| stats.counts(facts.now)).unwrap_or_default(),
        liveness: facts.liveness,
        now: facts.now,
        uptime: facts.uptime,
    };
    advice.extend(endpoints(&facts, found_nothing.as_deref()));
    advice.extend(silent(&facts));
    advice.extend(stuck(&facts));
    advice.extend(orphaned(&facts));
    advice.extend(full(&facts));
    advice.extend(flow_capacity(&facts));
    advice.extend(class_capacity(&facts));
    advice.extend(ttl(&facts));
    advice.extend(Band::ALL.into_iter().filter_map(|band| starved(&facts, band)));
    advice.extend(foreign(&facts));
    advice.extend(unread(&facts));
    advice.extend(model::advice(&facts));
    advice
}

/// Advice on a discovery that doesn't work.
fn undiscovered(facts: &Facts<'_>, pool: &str) -> Option<String> {
    let state = facts.discoveries?.get(pool).filter(|state| !state.is_up)?;
    // A companion that starts may still wait for its first answer.
    let lasts = state.since.elapsed().unwrap_or_default();
    (lasts >= STUCK).then(|| {
        format!(
            "its endpoints can't be discovered for {}s: {}. The known endpoints stay in use.",
            lasts.as_secs(),
            state.reason
        )
    })
}

/// Advice on objects of the pool that can't be read, such as its objectives, although its endpoints are discovered.
fn unread_objects(facts: &Facts<'_>, pool: &str) -> Vec<String> {
    let state = facts.discoveries.and_then(|discoveries| discoveries.get(pool));
    let unread = state.filter(|state| state.is_up).map(|state| state.unread);
    unread.unwrap_or_default().into_iter().map(|why| format!("{why}.")).collect()
}

/// Why a discovery that works has found no endpoint.
fn found_nothing(facts: &Facts<'_>, pool: &str) -> Option<String> {
    let state = facts.discoveries?.get(pool)?;
    (state.is_up && !state.reason.is_empty()).then_some(state.reason)
}

/// Advice on endpoints that aren't ready. `found_nothing`: why discovery has found no endpoint.
fn endpoints(facts: &PoolFacts<'_>, found_nothing: Option<&str>) -> Vec<String> {
    let listed = || {
        let all = facts.pool.snapshot.endpoints.iter();
        all.filter(|endpoint| endpoint.listed)
    };
    let all = listed().count();
    let unready: Vec<&EndpointSnapshot> = listed().filter(|endpoint| !endpoint.ready).collect();
    if all == 0 {
        return vec![match found_nothing {
            Some(why) => {
                format!(
                    "the pool has no endpoint: {why}. Check endpoints.dns, or start servers of that name."
                )
            }
            None => "the pool has no endpoint. Add one to its endpoints, or check its discovery.".into(),
        }];
    }
    let mut advice = Vec::new();
    if unready.len() == all {
        let which = match all {
            1 => "its only endpoint isn't ready".to_owned(),
            _ => format!("none of its {all} endpoints is ready"),
        };
        advice.push(format!(
            "{which}: requests wait for at most {}s (queue.no_endpoint_ttl).",
            facts.config.policy.queue.longest_wait().as_secs()
        ));
    }
    advice.extend(unready.iter().take(NAMED).map(|endpoint| {
        let address = facts.pool.address(endpoint.id);
        match endpoint.down_until {
            Some(until) => {
                let key = match endpoint.state {
                    HealthState::Failing => {
                        "endpoints.failing sets when an endpoint is failing, and the time between probes"
                    }
                    HealthState::Down | HealthState::Healthy | HealthState::Probing => {
                        "down.first and down.max set the time between probes"
                    }
                };
                format!(
                    "{address} is {}: {}; {}. Check the log of its server ({key}).",
                    endpoint.state.as_str(),
                    endpoint.reason,
                    next_probe(until, facts.now)
                )
            }
            None if facts.pool.server(endpoint.id).is_some_and(|server| server.is_asleep) => format!(
                "{address} isn't ready because its engine sleeps. Wake it up: curl -X POST http://{address}/wake_up"
            ),
            None => format!(
                "{address} isn't ready because its health check fails. Check its server, or health.path."
            ),
        }
    }));
    if unready.len() > NAMED {
        advice.push(format!("{} more endpoints aren't ready.", unready.len() - NAMED));
    }
    advice
}

/// Advice on endpoints that have requests and send nothing, while others send answers.
fn silent(facts: &PoolFacts<'_>) -> Vec<String> {
    let running = |endpoint: &EndpointSnapshot| {
        let address = facts.pool.address(endpoint.id);
        let oldest = facts.pool.server(endpoint.id)?.oldest_running?;
        Some((address, facts.liveness.silence(address, Some(oldest))))
    };
    let listed = facts.pool.snapshot.endpoints.iter().filter(|endpoint| endpoint.listed);
    let mut addresses = listed.clone().map(|endpoint| facts.pool.address(endpoint.id));
    if !addresses.any(|address| facts.liveness.has_sent_within(address, SILENT)) {
        return Vec::new();
    }
    let silent: Vec<_> = listed.filter_map(running).filter(|(_, silence)| *silence >= SILENT).collect();
    let mut advice: Vec<String> = silent
        .iter()
        .take(NAMED)
        .map(|(address, silence)| {
            format!(
                "{address} has sent no byte of any answer for {}s, though it has requests, and others send answers. It may hang: check the \
                 log of its server. timeouts.first_byte and timeouts.idle set after which time such requests are served elsewhere.",
                silence.as_secs()
            )
        })
        .collect();
    if silent.len() > NAMED {
        advice.push(format!("{} more endpoints are silent.", silent.len() - NAMED));
    }
    advice
}

/// Advice on requests that wait although the gate is open.
fn stuck(facts: &PoolFacts<'_>) -> Option<String> {
    let snapshot = &facts.pool.snapshot;
    let waiting = snapshot.waiting.saturating_sub(facts.pool.orphaned_waiting);
    let recent = facts.recent?;
    let waits = Band::ALL.into_iter().filter_map(|band| recent.passed_over_since(band));
    let waited = facts.now.since(waits.min()?);
    let last_grant = Band::ALL.into_iter().filter_map(|band| recent.last_grant(band)).max();
    let is_quiet = last_grant.is_none_or(|instant| facts.now.since(instant) >= STUCK);
    let within = snapshot.stock.saturating_sub(snapshot.extra);
    let is_open = snapshot.ready_endpoints > 0 && within < snapshot.lower && snapshot.dispatching;
    (waiting > 0 && is_open && is_quiet && waited >= STUCK).then(|| {
        let bound = match snapshot.lower {
            UNBOUNDED => "there is no bound".to_owned(),
            lower => format!("stock {within} is below its bound {lower}"),
        };
        format!(
            "{waiting} wait though {bound}, and none was granted for {}s: each is held back by another limit (a budget with over: hold, flows.max_in_flight, a class's prefill threshold, queue.max_rate, bands.ceiling, the endpoints that fit it). GET /requests/{{x-request-id}} of one names the limit.",
            waited.as_secs()
        )
    })
}

/// Advice on requests of lost sessions.
fn orphaned(facts: &PoolFacts<'_>) -> Option<String> {
    let (waiting, running) = (facts.pool.orphaned_waiting, facts.pool.orphaned_stock);
    (waiting + running > 0).then(|| {
        format!(
            "{waiting} waiting and {running} running requests belong to Envoy workers that have lost their sessions; they are released after some seconds. Check that Envoy runs and reaches listen.grpc."
        )
    })
}

/// Advice on a full queue.
fn full(facts: &PoolFacts<'_>) -> Option<String> {
    let queue = &facts.config.policy.queue;
    (facts.counts.full > 0).then(|| {
        format!(
            "the queue was full: {} rejected or displaced in the last {} min. Raise queue.total_capacity ({}) or queue.total_bytes ({} MiB), or add servers.",
            facts.counts.full,
            minutes(),
            queue.total_capacity,
            queue.total_bytes >> 20
        )
    })
}

/// Advice on flows at their limit.
fn flow_capacity(facts: &PoolFacts<'_>) -> Option<String> {
    (facts.counts.flow_capacity > 0).then(|| {
        let last = facts.recent.and_then(PoolStats::last_flow_rejection);
        let last = last.map_or_else(String::new, |labels| {
            let flow = if labels.private { "other" } else { facts.pool.shown(&labels.flow) };
            format!(", the last of flow `{flow}`")
        });
        format!(
            "{} rejected in the last {} min{last}: a flow may have {} waiting requests. That protects the other flows; raise queue.flow_capacity or flows.capacities to allow more.",
            facts.counts.flow_capacity,
            minutes(),
            facts.config.policy.queue.flow_capacity
        )
    })
}

/// Advice on classes at their limit.
fn class_capacity(facts: &PoolFacts<'_>) -> Option<String> {
    (facts.counts.class_capacity > 0).then(|| {
        format!(
            "{} rejected in the last {} min because their class's queue limit was reached (policy_classes[].*_limit_per_worker).",
            facts.counts.class_capacity,
            minutes()
        )
    })
}

/// Advice on a short ttl. More than one in a hundred waited for the whole ttl: the p99 of the wait is the ttl or more.
fn ttl(facts: &PoolFacts<'_>) -> Option<String> {
    let counts = &facts.counts;
    let expired = counts.expired + counts.expired_at_filters;
    let left = counts.granted + expired;
    (expired * 100 > left).then(|| {
        let at_filters = match counts.expired_at_filters {
            0 => String::new(),
            count => format!(" (of {count} of these, the filters heard of no decision in time: was a companion away?)"),
        };
        format!(
            "queue.ttl ({}) is below the p99 of the wait: {expired} of {left} requests that left the queue in the last {} min had waited that long and were rejected{at_filters}. Raise queue.ttl if clients wait longer, or add servers.",
            seconds(facts.config.policy.queue.ttl),
            minutes()
        )
    })
}

/// Advice on a band that gets nothing while other bands are served.
fn starved(facts: &PoolFacts<'_>, band: Band) -> Option<String> {
    let in_band = &facts.pool.snapshot.bands[band as usize];
    // A share for the band would free no request that its flow's budget or `max_in_flight` holds back.
    let waiting = in_band.waiting.saturating_sub(in_band.held_by_flow);
    let recent = facts.recent?;
    let since = recent.passed_over_since(band)?;
    let served = Band::ALL
        .into_iter()
        .filter(|other| *other != band)
        .filter(|other| recent.last_grant(*other).is_some_and(|grant| grant > since));
    let names: Vec<&str> = served.map(Band::as_str).collect();
    let waited = facts.now.since(since);
    (waiting > 0 && waited >= STARVED && !names.is_empty()).then(|| {
        format!(
            "band {} starves: {waiting} wait and none was granted for {}s, while {} requests were. Give it a share (arbitration.bands.mode: weighted), limit the other bands (bands.ceiling), or add servers.",
            band.as_str(),
            waited.as_secs(),
            names.join(" and ")
        )
    })
}

/// Advice on servers that other clients use as well.
fn foreign(facts: &PoolFacts<'_>) -> Vec<String> {
    let busy = facts.pool.snapshot.endpoints.iter().filter(|endpoint| {
        let all = endpoint.stock + endpoint.foreign;
        endpoint.ready && endpoint.foreign > 0 && endpoint.foreign * 100 >= FOREIGN_PERCENT * all
    });
    busy.take(NAMED)
        .map(|endpoint| {
            format!(
                "{} runs {} requests that didn't come through Penstock; they count towards its bound. Send them through the gateway too.",
                facts.pool.address(endpoint.id),
                endpoint.foreign
            )
        })
        .collect()
}

/// Advice on servers with unreadable metrics.
fn unread(facts: &PoolFacts<'_>) -> Option<String> {
    let scrape = facts.config.scrape.as_ref()?;
    if facts.uptime < scrape.stale_after.saturating_add(scrape.interval) {
        return None;
    }
    let is_unread = |endpoint: &&EndpointSnapshot| {
        let server = facts.pool.server(endpoint.id);
        endpoint.ready && server.is_some_and(|server| server.scraped.is_none())
    };
    let unread: Vec<&str> = facts
        .pool
        .snapshot
        .endpoints
        .iter()
        .filter(is_unread)
        .map(|endpoint| facts.pool.address(endpoint.id))
        .collect();
    (!unread.is_empty()).then(|| {
        let named = unread.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let more = unread.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            "no known metrics are read from {} of {named}{more}, so their queue, their cache and the load from other clients are unknown. Correct scrape.path, or set it to null.",
            scrape.path
        )
    })
}

fn minutes() -> u64 {
    WINDOW.as_secs() / 60
}

fn seconds(duration: Duration) -> String {
    if duration.subsec_millis() == 0 {
        format!("{}s", duration.as_secs())
    } else {
        format!("{}ms", duration.as_millis())
    }
}
