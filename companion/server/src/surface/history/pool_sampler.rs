//! Makes the samples of one pool from its status and the totals of its counters.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use penstock_config::Config;
use penstock_control::PoolStatus;
use penstock_engine::Outcome;
use penstock_engine::policy::StockUnit;
use penstock_engine::snapshot::EndpointSnapshot;
use penstock_engine::units::thousandths;
use penstock_model::Traffic;

use super::limits::{Room, WINDOW_SAMPLES};
use super::quantile::QuantileWindow;
use super::sample::{EndpointSample, PoolSample, REASONS, Refused, ReplicaCounts};
use super::tenants::{Tenants, requests};
use crate::metrics::{Buckets, EndpointTotals, PoolTotals};

/// One pool at the sample before.
#[derive(Debug)]
pub(super) struct PoolSampler {
    name: Arc<str>,
    decided: [u64; Outcome::ALL.len()],
    queue: QuantileWindow,
    ttft: QuantileWindow,
    tenants: Tenants,
    endpoints: HashMap<Box<str>, EndpointSampler>,
    traffic: TrafficWindow,
}

/// One endpoint at the sample before.
#[derive(Debug)]
struct EndpointSampler {
    address: Arc<str>,
    ttft: QuantileWindow,
    /// The totals at the last samples, the oldest first.
    recent: VecDeque<EndpointTotals>,
}

/// The average request of a pool in the last minute; of an earlier one, while none ends.
#[derive(Debug)]
struct TrafficWindow {
    /// Completed requests, prompt tokens and output tokens at the last samples, the oldest first.
    recent: VecDeque<[u64; 3]>,
    traffic: Option<Traffic>,
}

impl PoolSampler {
    pub(super) fn new(name: &Arc<str>) -> Self {
        Self {
            name: name.clone(),
            decided: [0; Outcome::ALL.len()],
            queue: QuantileWindow::default(),
            ttft: QuantileWindow::default(),
            tenants: Tenants::default(),
            endpoints: HashMap::new(),
            traffic: TrafficWindow {
                // The totals begin at 0.
                recent: VecDeque::from([[0; 3]]),
                traffic: None,
            },
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The sample of the pool at this moment.
    pub(super) fn sample(
        &mut self,
        status: &PoolStatus,
        unit: StockUnit,
        totals: &PoolTotals,
        room: Room,
    ) -> PoolSample {
        let snapshot = &status.snapshot;
        let decided = increases(&mut self.decided, &totals.decided);
        let granted = Outcome::ALL.into_iter().filter(|outcome| outcome.is_grant());
        let granted = granted.map(|outcome| decided[outcome as usize]).sum();
        let (tenants, other) = self.tenants.advance(status, room.tenants);
        let mut in_flight = [0_u32; 3];
        for flow in &snapshot.flows {
            let band = &mut in_flight[flow.band as usize];
            *band = band.saturating_add(requests(flow.in_flight));
        }
        let mut waiting = [0; 3];
        for band in &snapshot.bands {
            waiting[band.band as usize] = requests(band.waiting);
        }
        let traffic = self.traffic.advance(totals);
        let (endpoints, left_out) =
            self.endpoints(status, totals, traffic.filter(|_| unit != StockUnit::Tokens), room.endpoints);
        #[expect(clippy::cast_possible_truncation, reason = "for a chart")]
        PoolSample {
            name: self.name.clone(),
            unit,
            waiting,
            in_flight,
            saturation: thousandths(snapshot.saturation_milli) as f32,
            stock: snapshot.stock,
            lower: bound(snapshot.lower),
            upper: bound(snapshot.upper),
            granted,
            refused: refused(&decided),
            queue: self.queue.advance(&totals.queue),
            ttft: self.ttft.advance(&all_endpoints(totals)),
            replicas: replicas(status),
            endpoints,
            endpoints_left_out: left_out,
            tenants,
            other,
        }
    }

    /// The samples of the first `most` endpoints, and the number of the remaining ones.
    fn endpoints(
        &mut self,
        status: &PoolStatus,
        totals: &PoolTotals,
        traffic: Option<Traffic>,
        most: usize,
    ) -> (Box<[EndpointSample]>, u32) {
        let all = &status.snapshot.endpoints;
        let mut before = std::mem::take(&mut self.endpoints);
        let mut samples = Vec::with_capacity(most.min(all.len()));
        for snapshot in all.iter().take(most) {
            let address = status.address(snapshot.id);
            let mut sampler = before.remove(address).unwrap_or_else(|| EndpointSampler::new(address));
            let totals = totals.endpoints.get(address).copied().unwrap_or_default();
            samples.push(sampler.sample(snapshot, &totals, iteration_ms(status, snapshot, traffic)));
            self.endpoints.insert(address.into(), sampler);
        }
        let left_out = all.len().saturating_sub(most);
        (samples.into(), u32::try_from(left_out).unwrap_or(u32::MAX))
    }
}

impl EndpointSampler {
    fn new(address: &str) -> Self {
        Self {
            address: address.into(),
            ttft: QuantileWindow::default(),
            // The totals begin at 0.
            recent: VecDeque::from([EndpointTotals::default()]),
        }
    }

    fn sample(
        &mut self,
        snapshot: &EndpointSnapshot,
        totals: &EndpointTotals,
        iteration_ms: Option<f32>,
    ) -> EndpointSample {
        let oldest = self.recent.front().copied().unwrap_or_default();
        self.recent.push_back(*totals);
        if self.recent.len() > WINDOW_SAMPLES {
            self.recent.pop_front();
        }
        let responses = totals.itl_responses.saturating_sub(oldest.itl_responses);
        let seconds = totals.itl_seconds - oldest.itl_seconds;
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "a mean for a chart"
        )]
        let itl_ms = (responses > 0).then(|| (seconds * 1_000.0 / responses as f64) as f32);
        EndpointSample {
            address: self.address.clone(),
            ready: snapshot.ready,
            stock: snapshot.stock,
            bound: bound(snapshot.bound),
            iteration_ms,
            itl_ms,
            ttft: self.ttft.advance(&totals.ttft),
        }
    }
}

impl TrafficWindow {
    #[expect(clippy::cast_precision_loss, reason = "means")]
    fn advance(&mut self, totals: &PoolTotals) -> Option<Traffic> {
        let completed = totals.endpoints.values().map(|endpoint| endpoint.completed);
        let now = [completed.sum(), totals.input_tokens, totals.output_tokens];
        let oldest = self.recent.front().copied().unwrap_or_default();
        self.recent.push_back(now);
        if self.recent.len() > WINDOW_SAMPLES {
            self.recent.pop_front();
        }
        let [completed, input, output] = [0, 1, 2].map(|index| now[index].saturating_sub(oldest[index]));
        if completed > 0 {
            self.traffic = Some(Traffic {
                rate: 0.0,
                input: input as f64 / completed as f64,
                output: output as f64 / completed as f64,
            });
        }
        self.traffic
    }
}

/// The unit of stock of a pool.
pub(super) fn stock_unit(config: &Config, pool: &str) -> StockUnit {
    let configured = config.pools.iter().find(|known| *known.name == *pool);
    configured.map_or(StockUnit::Requests, |pool| pool.policy.gate.unit())
}

/// The duration of an iteration of the endpoint with its present stock, by the learned model of its variant.
fn iteration_ms(status: &PoolStatus, snapshot: &EndpointSnapshot, traffic: Option<Traffic>) -> Option<f32> {
    let variant = &status.server(snapshot.id)?.variant;
    let mut variants = status.model.iter().flat_map(|model| &model.variants);
    let parameters = variants.find(|known| known.name == *variant)?.parameters?;
    #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "for a chart")]
    Some(parameters.iteration_ms(&traffic?, snapshot.stock as f64) as f32)
}

/// The increases of counters since the last call. A counter that was removed begins again at 0.
fn increases<const N: usize>(before: &mut [u64; N], now: &[u64; N]) -> [u32; N] {
    let mut increases = [0; N];
    for ((increase, before), now) in increases.iter_mut().zip(before.iter()).zip(now) {
        *increase = requests(now.checked_sub(*before).unwrap_or(*now));
    }
    *before = *now;
    increases
}

fn refused(decided: &[u32; Outcome::ALL.len()]) -> Refused {
    REASONS.map(|reason| decided[reason as usize])
}

/// The times to the first byte of all endpoints of a pool.
fn all_endpoints(totals: &PoolTotals) -> Buckets {
    let mut sum = Buckets::default();
    for endpoint in totals.endpoints.values() {
        for (sum, more) in sum.iter_mut().zip(endpoint.ttft) {
            *sum += more;
        }
    }
    sum
}

fn replicas(status: &PoolStatus) -> ReplicaCounts {
    let variants = || status.model.iter().flat_map(|model| &model.variants);
    let wanted = variants().filter_map(|variant| variant.desired).map(|desired| desired.replicas);
    ReplicaCounts {
        wanted: wanted.map(requests).reduce(u32::saturating_add),
        ready: requests(variants().map(|variant| variant.current).sum()),
        pending: requests(variants().map(|variant| variant.pending).sum()),
    }
}

/// The largest number stands for no bound.
fn bound(bound: u64) -> Option<u64> {
    (bound != u64::MAX).then_some(bound)
}

/// The increase of the refusals that no pool took.
#[derive(Debug, Default)]
pub(super) struct Unrouted([u64; Outcome::ALL.len()]);

impl Unrouted {
    pub(super) fn advance(&mut self, totals: &PoolTotals) -> Refused {
        refused(&increases(&mut self.0, &totals.decided))
    }
}
