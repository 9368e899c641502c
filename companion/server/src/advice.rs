//! Advice: what an operator would want to know at this moment, in sentences that name the key to change.
//!
//! Made when somebody asks, from the state of the moment and from what happened in the last minutes; nothing watches.
//! What is as it should be says nothing, so that no advice means none is needed.

mod model;
#[cfg(test)]
mod tests;

use std::time::Duration;

use penstock_config::{Config, Pool as PoolConfig};
use penstock_control::{PoolStatus, Status};
use penstock_data_plane::policy::band_name;
use penstock_engine::Instant;
use penstock_engine::input::Band;
use penstock_engine::snapshot::EndpointSnapshot;

use crate::recent::{Counts, PoolRecent, Recent, WINDOW};

/// What waits for so long while others go is starved.
const STARVED: Duration = Duration::from_secs(10);
/// The gate is open and something waits for so long: it is held by something else.
const STUCK: Duration = Duration::from_secs(5);
/// Endpoints that are named one by one; of the others there is a count.
const NAMED: usize = 3;
/// Load that isn't ours counts from this part of all that runs there.
const FOREIGN_PERCENT: u64 = 10;
/// What the endless bounds of an open gate are.
const ENDLESS: u64 = u64::MAX;
const BANDS: [Band; 3] = [Band::Critical, Band::Default, Band::Sheddable];

/// What advice goes by.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The whole as it is.
    pub status: &'a Status,
    /// What happened in the last minutes.
    pub recent: &'a Recent,
    /// The configuration in force.
    pub config: &'a Config,
    /// Why the configuration file isn't in force as it stands; `None`: it is.
    pub config_error: Option<&'a str>,
    /// The time of all this.
    pub now: Instant,
    /// Since the companion started.
    pub uptime: Duration,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// On the whole.
    pub overall: Vec<String>,
    /// On each pool, in the order of the status.
    pub pools: Vec<Vec<String>>,
}

/// Of one pool.
#[derive(Clone, Copy, Debug)]
struct PoolFacts<'a> {
    pool: &'a PoolStatus,
    config: &'a PoolConfig,
    recent: Option<&'a PoolRecent>,
    counts: Counts,
    now: Instant,
    uptime: Duration,
}

/// What follows from the facts.
#[must_use]
pub fn of(facts: &Facts<'_>) -> Advice {
    let pools = facts.status.pools.iter();
    Advice {
        overall: overall(facts),
        pools: pools.map(|pool| of_pool(facts, pool)).collect(),
    }
}

fn overall(facts: &Facts<'_>) -> Vec<String> {
    let status = facts.status;
    let mut advice = Vec::new();
    if let Some(why) = facts.config_error {
        advice.push(format!(
            "the configuration file isn't in force as it stands, the one before it is: {why}. Mend the file; it is read again when it changes."
        ));
    }
    if status.draining {
        advice.push(
            "new requests are refused: this companion drains. POST /drain with {\"off\": true} takes it back.".into(),
        );
    }
    if !status.sessions.iter().any(|it| it.open) && facts.uptime >= STUCK {
        advice.push(
            "no Envoy worker speaks to this companion. Check that Envoy runs, has Penstock's filter, and reaches listen.grpc."
                .into(),
        );
    }
    advice
}

fn of_pool(facts: &Facts<'_>, pool: &PoolStatus) -> Vec<String> {
    let mut configured = facts.config.pools.iter().filter(|_| !pool.retired);
    let Some(config) = configured.find(|it| it.name == *pool.name) else {
        let left = "this pool is no longer configured; it goes when what runs in it has ended.";
        return vec![left.into()];
    };
    let recent = facts.recent.pool(&pool.name);
    let of = PoolFacts {
        pool,
        config,
        recent,
        counts: recent.map(|it| it.counts(facts.now)).unwrap_or_default(),
        now: facts.now,
        uptime: facts.uptime,
    };
    let mut advice = Vec::new();
    advice.extend(endpoints(&of));
    advice.extend(stuck(&of));
    advice.extend(orphaned(&of));
    advice.extend(full(&of));
    advice.extend(flow_capacity(&of));
    advice.extend(class_capacity(&of));
    advice.extend(ttl(&of));
    advice.extend(BANDS.into_iter().filter_map(|band| starved(&of, band)));
    advice.extend(foreign(&of));
    advice.extend(unread(&of));
    advice.extend(model::advice(&of));
    advice
}

/// Endpoints that aren't ready.
fn endpoints(of: &PoolFacts<'_>) -> Vec<String> {
    let listed = || of.pool.snapshot.endpoints.iter().filter(|it| it.listed);
    let all = listed().count();
    let away: Vec<&EndpointSnapshot> = listed().filter(|it| !it.ready).collect();
    if all == 0 {
        return vec![
            "the pool has no endpoint. Add one to its endpoints, or look at what discovery finds.".into(),
        ];
    }
    let mut advice = Vec::new();
    if away.len() == all {
        advice.push(format!(
            "none of its {all} endpoints is ready: what comes waits for at most {}s (queue.no_endpoint_ttl).",
            of.config.policy.queue.no_endpoint_ttl.as_secs()
        ));
    }
    advice.extend(away.iter().take(NAMED).map(|it| {
        let address = of.pool.address(it.id);
        match it.down_until {
            Some(until) => format!(
                "{address} is marked down, requests failed there; it is tried again in {:.1}s. Look at its server's log (down.first and down.max say for how long it is left alone).",
                until.since(of.now).as_secs_f64()
            ),
            None => format!(
                "{address} isn't ready, its health check fails. Look at its server, or at health.path."
            ),
        }
    }));
    if away.len() > NAMED {
        advice.push(format!("and {} more endpoints aren't ready.", away.len() - NAMED));
    }
    advice
}

/// Something waits, the gate is open, and nothing goes.
fn stuck(of: &PoolFacts<'_>) -> Option<String> {
    let now = &of.pool.snapshot;
    let waiting = now.waiting.saturating_sub(of.pool.orphaned_waiting);
    let recent = of.recent?;
    let waits = BANDS
        .into_iter()
        .filter_map(|band| recent.passed_over_since(band));
    let waited = of.now.since(waits.min()?);
    let went = BANDS.into_iter().filter_map(|band| recent.went(band)).max();
    let quiet = went.is_none_or(|it| of.now.since(it) >= STUCK);
    let open = now.ready_endpoints > 0 && now.stock < now.lower && now.dispatching;
    (waiting > 0 && open && quiet && waited >= STUCK).then(|| {
        let bound = match now.lower {
            ENDLESS => "there is no bound".to_owned(),
            lower => format!("stock {} is below its bound {lower}", now.stock),
        };
        format!(
            "{waiting} wait though {bound}, and none has gone for {}s: each is held by a limit of its own (flows.max_in_flight, a class's prefill threshold, queue.max_rate, bands.ceiling, the endpoints that it may go to). GET /requests/{{x-request-id}} of one says which.",
            waited.as_secs()
        )
    })
}

fn orphaned(of: &PoolFacts<'_>) -> Option<String> {
    let (waiting, running) = (of.pool.orphaned_waiting, of.pool.orphaned_stock);
    (waiting + running > 0).then(|| {
        format!(
            "{waiting} that wait and {running} that run are of Envoy workers that aren't heard of; they are released some seconds later. Check that Envoy lives and reaches listen.grpc."
        )
    })
}

/// The queue was full.
fn full(of: &PoolFacts<'_>) -> Option<String> {
    let queue = &of.config.policy.queue;
    (of.counts.full > 0).then(|| {
        format!(
            "the queue was full: {} refused or displaced in the last {} min. Raise queue.total_capacity ({}) or queue.total_bytes ({} MiB), or add servers.",
            of.counts.full,
            minutes(),
            queue.total_capacity,
            queue.total_bytes >> 20
        )
    })
}

/// A flow had as many waiting as it may.
fn flow_capacity(of: &PoolFacts<'_>) -> Option<String> {
    (of.counts.flow_capacity > 0).then(|| {
        let last = of.recent.and_then(PoolRecent::last_over);
        let last = last.map_or_else(String::new, |labels| {
            let shown = if labels.private { "other" } else { of.pool.shown(&labels.flow) };
            format!(", the last of flow `{shown}`")
        });
        format!(
            "{} refused in the last {} min{last}: a flow may have {} waiting. That is its own doing; raise queue.flow_capacity or flows.capacities if it may have more.",
            of.counts.flow_capacity,
            minutes(),
            of.config.policy.queue.flow_capacity
        )
    })
}

fn class_capacity(of: &PoolFacts<'_>) -> Option<String> {
    (of.counts.class_capacity > 0).then(|| {
        format!(
            "{} refused in the last {} min for their class's queue limit (policy_classes[].*_limit_per_worker).",
            of.counts.class_capacity,
            minutes()
        )
    })
}

/// More than one in a hundred waited for as long as it may: the p99 of the wait is the ttl or more.
fn ttl(of: &PoolFacts<'_>) -> Option<String> {
    let counts = &of.counts;
    let left = counts.went + counts.expired;
    (counts.expired * 100 > left).then(|| {
        format!(
            "queue.ttl ({}) is below the p99 of the wait: {} of {left} that left the queue in the last {} min had waited that long and were refused. Raise queue.ttl if clients wait longer, or add servers.",
            seconds(of.config.policy.queue.ttl),
            counts.expired,
            minutes()
        )
    })
}

/// Nothing of `band` goes while others do.
fn starved(of: &PoolFacts<'_>, band: Band) -> Option<String> {
    let at = &of.pool.snapshot.bands[band as usize];
    let recent = of.recent?;
    let since = recent.passed_over_since(band)?;
    let others = BANDS.into_iter().filter(|other| *other != band);
    let went = others.filter(|other| recent.went(*other).is_some_and(|it| it > since));
    let names: Vec<&str> = went.map(band_name).collect();
    let waited = of.now.since(since);
    (at.waiting > 0 && waited >= STARVED && !names.is_empty()).then(|| {
        format!(
            "band {} starves: {} wait and none has gone for {}s, while {} did. Give it a share (arbitration.bands.mode: weighted), hold the others down (bands.ceiling), or add servers.",
            band_name(band),
            at.waiting,
            waited.as_secs(),
            names.join(" and ")
        )
    })
}

/// Servers work for others as well.
fn foreign(of: &PoolFacts<'_>) -> Vec<String> {
    let busy = of.pool.snapshot.endpoints.iter().filter(|it| {
        it.ready && it.foreign > 0 && it.foreign * 100 >= FOREIGN_PERCENT * (it.stock + it.foreign)
    });
    busy.take(NAMED)
        .map(|it| {
            format!(
                "{} runs {} requests that didn't come through Penstock; they take room from its bound. Send them through the gateway too.",
                of.pool.address(it.id),
                it.foreign
            )
        })
        .collect()
}

/// Servers that don't say how they are, though they are asked.
fn unread(of: &PoolFacts<'_>) -> Option<String> {
    let scrape = of.config.scrape.as_ref()?;
    if of.uptime < scrape.stale_after.saturating_add(scrape.interval) {
        return None;
    }
    let silent: Vec<&str> = of
        .pool
        .snapshot
        .endpoints
        .iter()
        .filter(|it| {
            it.ready
                && of
                    .pool
                    .server(it.id)
                    .is_some_and(|server| server.scraped.is_none())
        })
        .map(|it| of.pool.address(it.id))
        .collect();
    (!silent.is_empty()).then(|| {
        let named = silent.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let more = silent.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            "nothing that is understood is read from {} of {named}{more}: neither load that isn't ours nor queue and cache there are known. Mend scrape.path, or set it to null.",
            scrape.path
        )
    })
}

fn minutes() -> u64 {
    WINDOW.as_secs() / 60
}

fn seconds(of: Duration) -> String {
    if of.subsec_millis() == 0 {
        format!("{}s", of.as_secs())
    } else {
        format!("{}ms", of.as_millis())
    }
}
