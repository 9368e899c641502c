//! The bounds of endpoints by measurement: when a bound is judged, and the status that says what sets it.

use core::time::Duration;

use penstock_engine::{Instant, RequestId};

use super::Autopilot;
use crate::bound_search::{Ceilings, Found, earlier};
use crate::endpoint::Endpoint;
use crate::types::{Backlog, GateSource, GateStatus};

/// Bounds rise no sooner after each other.
const JUDGED_EVERY: Duration = Duration::from_millis(20);

impl Autopilot {
    /// A streamed answer has begun: its first token has arrived.
    pub fn first_token(&mut self, now: Instant, id: RequestId) {
        let Some(request) = self.in_flight.get(&id) else {
            return;
        };
        let (index, number, after) = (request.endpoint, request.number, now.since(request.granted_at));
        if number == 0 || request.has_started {
            return;
        }
        self.begin(now, id, after);
        while let Some(whole) = self.endpoints[index].whole_before(number, is_unstarted(&self.in_flight)) {
            self.begin(now, whole, after);
        }
        self.plan_judgement(now, index);
    }

    /// `id` has begun to answer, so long after its grant.
    fn begin(&mut self, now: Instant, id: RequestId, after: Duration) {
        if let Some(request) = self.in_flight.get_mut(&id) {
            let endpoint = &mut self.endpoints[request.endpoint];
            endpoint.start(request);
            endpoint.search.started(now, request.number, after, &endpoint.present());
        }
    }

    /// A server's metrics: so many requests run there, and so many wait.
    pub(super) fn take_page(&mut self, now: Instant, index: usize, running: u64, waiting: u64) {
        let endpoint = &mut self.endpoints[index];
        endpoint.search.fill(now, &endpoint.present());
        endpoint.search.paged(now, running, waiting);
        self.plan_judgement(now, index);
    }

    /// Measured times have to meet explicit targets while no model predicts them.
    fn ceilings(&self, endpoint: &Endpoint) -> Option<Ceilings> {
        let targets = self.slo_policy.explicit.filter(|_| !self.variants[endpoint.variant].predicts())?;
        Some(Ceilings {
            first_token_ms: targets.ttft_ms.unwrap_or(f64::INFINITY),
            itl_ms: targets.itl_ms.unwrap_or(f64::INFINITY),
        })
    }

    /// The bounds are judged at `due`, or before.
    pub(super) fn judge_by(&mut self, due: Option<Instant>) {
        self.judge_at = earlier(self.judge_at, due);
    }

    /// A bound may rise. Ripe endpoints of a large pool in which nothing waits would otherwise be judged at every event.
    pub(super) fn judge_soon(&mut self, now: Instant) {
        let soon = self.judged_at.map_or(now, |judged_at| now.max(judged_at.after(JUDGED_EVERY)));
        self.judge_by(Some(soon));
    }

    /// Something has happened at an endpoint, which may be judged because of it.
    pub(super) fn plan_judgement(&mut self, now: Instant, index: usize) {
        if !self.gates {
            return;
        }
        let (due, is_ripe) = self.judgement(now, index);
        self.is_any_ripe |= is_ripe;
        if is_ripe {
            self.judge_soon(now);
        } else {
            self.judge_by(due);
        }
    }

    /// When an endpoint has to be judged, and whether its bound could rise now.
    fn judgement(&mut self, now: Instant, index: usize) -> (Option<Instant>, bool) {
        let ceilings = self.ceilings(&self.endpoints[index]);
        let oldest = self.oldest_unstarted(index);
        let endpoint = &self.endpoints[index];
        let is_full = endpoint.search.is_full(&endpoint.present());
        let is_ripe = is_full && endpoint.is_usable() && endpoint.search.is_ripe(now, ceilings.as_ref());
        (endpoint.search.due(now, oldest, &endpoint.present(), ceilings.as_ref()), is_ripe)
    }

    /// The grant of the streamed request that has waited longest for its first token.
    fn oldest_unstarted(&mut self, index: usize) -> Option<Instant> {
        let oldest = self.endpoints[index].oldest_unstarted(is_unstarted(&self.in_flight))?;
        Some(self.in_flight.get(&oldest)?.granted_at)
    }

    /// Judges the bounds of all endpoints. Those of full ones rise if requests wait for room: other endpoints may have some that these requests
    /// can't use.
    pub(super) fn judge_bounds(&mut self, now: Instant, backlog: Backlog) {
        let is_wanted = backlog.requests > 0;
        let mut has_changed = core::mem::take(&mut self.has_adopted);
        (self.judge_at, self.judged_at, self.is_any_ripe) = (None, Some(now), false);
        for index in 0..self.endpoints.len() {
            let ceilings = self.ceilings(&self.endpoints[index]);
            let oldest = self.oldest_unstarted(index);
            let endpoint = &mut self.endpoints[index];
            let present = endpoint.present();
            let is_wanted = is_wanted && endpoint.is_usable() && endpoint.search.is_full(&present);
            has_changed |= endpoint.search.advance(now, oldest, &present, (ceilings.as_ref(), is_wanted));
            let (due, is_ripe) = self.judgement(now, index);
            self.is_any_ripe |= is_ripe;
            self.judge_by(due);
        }
        if has_changed {
            self.update_allowances(now);
        }
    }

    /// A new endpoint begins with what others of its variant have found.
    pub(super) fn start_from_siblings(&mut self, now: Instant) {
        for index in 0..self.endpoints.len() {
            let endpoint = &self.endpoints[index];
            if endpoint.search.found() != Found::Nothing || endpoint.search.bound() != endpoint.bound_initial
            {
                continue;
            }
            let siblings =
                self.endpoints.iter().filter(|other| other.is_listed && other.variant == endpoint.variant);
            let found = siblings.filter(|other| other.search.found() != Found::Nothing);
            if let Some(bound) = found.map(|other| other.search.bound()).min() {
                let endpoint = &mut self.endpoints[index];
                endpoint.search.start_from(now, bound, &endpoint.present());
            }
        }
    }

    /// What sets the bounds.
    pub(super) fn gate_status(&self) -> Option<GateStatus> {
        if !self.gates {
            return None;
        }
        let ready = self.endpoints.iter().filter(|endpoint| endpoint.is_usable());
        let each = ready.map(|endpoint| self.source_of(endpoint));
        let least_known = each.min_by_key(|status| status.source);
        Some(least_known.unwrap_or_else(|| GateStatus {
            source: GateSource::Exploring,
            reason: "no server is ready".into(),
        }))
    }

    fn source_of(&self, endpoint: &Endpoint) -> GateStatus {
        let bound = endpoint.search.bound();
        if self.variants[endpoint.variant].predicts() {
            let typical = endpoint.allowance.map_or(bound, |allowance| allowance.typical);
            let is_limit = typical < bound || endpoint.search.found() != Found::Nothing;
            if is_limit {
                let reason = match (&self.slo_policy.explicit, self.slo_policy.multiplier) {
                    (Some(_), _) => format!(
                        "about {typical} requests at a time meet the targets, as the learned model predicts"
                    ),
                    (None, Some(_)) => format!(
                        "about {typical} requests at a time keep iterations within slo_multiplier, as the learned model predicts"
                    ),
                    (None, None) => format!(
                        "about {typical} requests at a time keep the throughput of a full server, as the learned model predicts"
                    ),
                };
                return GateStatus { source: GateSource::Model, reason };
            }
        }
        let (source, reason) = match endpoint.search.found() {
            Found::Nothing => (
                GateSource::Exploring,
                format!(
                    "{bound} requests at a time have not been too many; the bound rises while requests wait and none wait inside the server"
                ),
            ),
            Found::Full => (
                GateSource::Measured,
                format!("the server computes {bound} requests at a time, and queues more"),
            ),
            Found::NoGain => {
                (GateSource::Measured, format!("more than {bound} requests at a time give no more tokens"))
            }
            Found::Target => {
                (GateSource::Measured, format!("more than {bound} requests at a time miss a target"))
            }
        };
        GateStatus { source, reason }
    }
}

/// Whether the request with this number is in flight and hasn't begun to answer.
fn is_unstarted(
    in_flight: &hashbrown::HashMap<RequestId, crate::endpoint::InFlight>,
) -> impl Fn(RequestId, u64) -> bool {
    |id, number| in_flight.get(&id).is_some_and(|request| request.number == number && !request.has_started)
}
