//! The document of `/history`.

use std::sync::Arc;
use std::time::Duration;

use penstock_engine::input::Band;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};

use super::History;
use super::limits::{INTERVAL, SAMPLES_MAX};
use super::sample::{EndpointSample, PoolSample, Quantiles, REASONS, Refused, ReplicaCounts, Sample, Use};
use crate::surface::visibility::FlowVisibility;

/// `?since=12&instance=18b2-3f1&pool=chat`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HistoryQuery {
    /// Only samples with a larger number, if `instance` is this companion's.
    since: u64,
    /// The companion that numbered the samples; without it, this one.
    instance: Option<String>,
    /// Only this pool.
    pool: Option<String>,
}

#[derive(Serialize)]
struct Document<'a> {
    instance: &'a str,
    interval_ms: u64,
    samples_max: usize,
    bands: [&'static str; 3],
    last: u64,
    /// The age of the last sample.
    age_ms: Option<u64>,
    samples: Vec<SampleView<'a>>,
}

#[derive(Serialize)]
struct SampleView<'a> {
    number: u64,
    time_ms: u64,
    unrouted: Reasons,
    pools: Vec<PoolView<'a>>,
}

#[derive(Serialize)]
struct PoolView<'a> {
    name: &'a str,
    unit: &'static str,
    waiting: [u32; 3],
    in_flight: [u32; 3],
    saturation: f32,
    stock: u64,
    lower: Option<u64>,
    upper: Option<u64>,
    granted: u32,
    refused: Reasons,
    queue_s: Option<Quantiles>,
    ttft_s: Option<Quantiles>,
    replicas: ReplicaCounts,
    endpoints: Vec<EndpointView<'a>>,
    endpoints_left_out: u32,
    tenants: Vec<TenantView<'a>>,
    other: Use,
}

#[derive(Serialize)]
struct EndpointView<'a> {
    address: &'a str,
    ready: bool,
    stock: u64,
    bound: Option<u64>,
    iteration_ms: Option<f32>,
    itl_ms: Option<f32>,
    ttft_s: Option<Quantiles>,
}

#[derive(Serialize)]
struct TenantView<'a> {
    name: &'a str,
    weight: Option<f32>,
    #[serde(flatten)]
    used: Use,
}

/// Refused requests by reason, without reasons that refused none.
struct Reasons(Refused);

impl Serialize for Reasons {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (reason, count) in REASONS.iter().zip(self.0) {
            if count > 0 {
                map.serialize_entry(reason.as_str(), &count)?;
            }
        }
        map.end()
    }
}

impl History {
    /// The document for a request.
    ///
    /// # Errors
    /// When it can't be written as JSON, which is a defect.
    pub(crate) fn document(
        &self,
        query: &HistoryQuery,
        visibility: FlowVisibility,
    ) -> serde_json::Result<Vec<u8>> {
        let is_same = |instance: &String| **instance == *self.instance;
        let since = match &query.instance {
            Some(instance) if !is_same(instance) => 0,
            Some(_) | None => query.since,
        };
        // The samples are shared, so that the lock isn't held while they are written.
        let (last, age, samples) = self.with_ring(|ring| (ring.last(), ring.age(), ring.after(since)));
        let pool = query.pool.as_deref();
        let samples = samples.iter();
        serde_json::to_vec(&Document {
            instance: &self.instance,
            interval_ms: millis(INTERVAL),
            samples_max: SAMPLES_MAX,
            bands: Band::ALL.map(Band::as_str),
            last,
            age_ms: age.map(millis),
            samples: samples.map(|(number, sample)| view(*number, sample, pool, visibility)).collect(),
        })
    }
}

fn view<'a>(
    number: u64,
    sample: &'a Arc<Sample>,
    pool: Option<&str>,
    visibility: FlowVisibility,
) -> SampleView<'a> {
    let is_wanted = |sample: &&PoolSample| pool.is_none_or(|name| *name == *sample.name);
    SampleView {
        number,
        time_ms: sample.time_ms,
        unrouted: Reasons(sample.unrouted),
        pools: sample.pools.iter().filter(is_wanted).map(|sample| of_pool(sample, visibility)).collect(),
    }
}

/// Private tenants are a part of `other` unless all flows are visible.
fn of_pool(sample: &PoolSample, visibility: FlowVisibility) -> PoolView<'_> {
    let mut other = sample.other;
    let mut tenants = Vec::with_capacity(sample.tenants.len());
    for tenant in &sample.tenants {
        if tenant.is_private && visibility == FlowVisibility::Public {
            other.add(&tenant.used);
        } else {
            tenants.push(TenantView { name: &tenant.name, weight: tenant.weight, used: tenant.used });
        }
    }
    PoolView {
        name: &sample.name,
        unit: sample.unit.as_str(),
        waiting: sample.waiting,
        in_flight: sample.in_flight,
        saturation: sample.saturation,
        stock: sample.stock,
        lower: sample.lower,
        upper: sample.upper,
        granted: sample.granted,
        refused: Reasons(sample.refused),
        queue_s: sample.queue,
        ttft_s: sample.ttft,
        replicas: sample.replicas,
        endpoints: sample.endpoints.iter().map(of_endpoint).collect(),
        endpoints_left_out: sample.endpoints_left_out,
        tenants,
        other,
    }
}

fn of_endpoint(sample: &EndpointSample) -> EndpointView<'_> {
    EndpointView {
        address: &sample.address,
        ready: sample.ready,
        stock: sample.stock,
        bound: sample.bound,
        iteration_ms: sample.iteration_ms,
        itl_ms: sample.itl_ms,
        ttft_s: sample.ttft,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
