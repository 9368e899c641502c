//! The invariants of the endpoints, recomputed from all of them.

use alloc::vec::Vec;

use super::Endpoints;
use crate::audit::{AuditError, check, check_equal};
use crate::endpoint::Endpoint;
use crate::gate::{Bounds, Share};
use crate::input::EndpointId;
use crate::load::Load;
use crate::scores::EndpointScorer;
use crate::time::Instant;

/// Sums over the endpoints.
#[derive(Default)]
struct Sums {
    stock: u64,
    filled: u64,
    draining: u64,
    listed: u64,
    ready: u64,
    running: u64,
    share: Share,
}

impl Endpoints {
    /// Checks every invariant against all running requests, sorted by endpoint.
    pub(crate) fn audit(&self, now: Instant, running: &[(EndpointId, Load)]) -> Result<(), AuditError> {
        check("every change was passed on", self.changed.is_empty())?;
        self.audit_ejected(now)?;
        let mut sums = Sums::default();
        for (index, endpoint) in self.all.iter() {
            check("an endpoint's id leads to its entry", self.indices.get(&endpoint.id) == Some(&index))?;
            self.audit_endpoint(endpoint, running, &mut sums)?;
        }
        check_equal("requests that run", sums.running, running.len() as u64)?;
        check_equal("stock", self.stock, sums.stock)?;
        check_equal("stock within the bounds", self.filled, sums.filled)?;
        check("abandoned requests are listed", self.audit_abandoned())?;
        check("endpoints with requests that were asked to end are listed", self.audit_evicting())?;
        check_equal("draining stock", self.draining, sums.draining)?;
        check_equal("endpoints listed", self.listed as u64, sums.listed)?;
        check_equal("endpoints ready", self.ready as u64, sums.ready)?;
        check("the share is the sum over ready endpoints", self.share == sums.share)?;
        let bounds = Bounds::over(self.gate, sums.share);
        check("bounds follow from gate and share", bounds == self.bounds)?;
        self.audit_with_room()?;
        self.audit_with_extra_room()?;
        self.audit_roles()?;
        let mut recounted = EndpointScorer::default();
        let all = self.iter().map(|endpoint| &endpoint.stats);
        recounted.set_weights(self.scorer.weights(), false, all);
        check_equal("endpoints that vote", self.scorer.voting() as u64, recounted.voting() as u64)
    }

    fn audit_endpoint(
        &self,
        endpoint: &Endpoint,
        running: &[(EndpointId, Load)],
        sums: &mut Sums,
    ) -> Result<(), AuditError> {
        let first = running.partition_point(|&(id, _)| id < endpoint.id);
        let count = running[first..].partition_point(|&(id, _)| id == endpoint.id);
        let loads = running[first..first + count].iter().map(|&(_, load)| load);
        let abandoned = endpoint.abandoned.len() as u64;
        check_equal("requests of an endpoint", endpoint.requests, count as u64 + abandoned)?;
        let sum = loads.chain(endpoint.abandoned.loads()).fold(Load::default(), |mut sum, load| {
            sum += load;
            sum
        });
        let running = &endpoint.running;
        check_equal("tokens of an endpoint", running.tokens, sum.tokens)?;
        check_equal("output of an endpoint", running.output, sum.output)?;
        check_equal("uncached tokens of an endpoint", running.prefill, sum.prefill)?;
        check_equal("tokens in prefill of an endpoint", running.in_prefill, sum.in_prefill)?;
        check_equal("sequences of an endpoint", running.sequences, sum.sequences)?;
        check("load above the bound of an endpoint", running.extra == sum.extra)?;
        check_equal("requests of an endpoint that were asked to end", running.evicted, sum.evicted)?;
        let stock = endpoint.stock_in(self.gate);
        check_equal("stock of an endpoint", endpoint.stock, stock)?;
        check_equal("filled part of a bound", endpoint.filled, endpoint.filled_in(self.gate))?;
        check("an endpoint is listed or in use", endpoint.listed || endpoint.taken() > 0)?;
        let share = endpoint.share_within(self.gate, endpoint.limits());
        check("an endpoint's share follows from the gate", endpoint.share == share)?;
        let bound = endpoint.bound_in(self.gate);
        check_equal("bound of an endpoint", endpoint.bound, bound)?;
        check(
            "every reserved endpoint is on the list of reservations",
            !endpoint.reserved || self.reserved.contains(&endpoint.id),
        )?;
        sums.running += count as u64;
        sums.listed += u64::from(endpoint.listed);
        if endpoint.ready {
            sums.stock += endpoint.stock;
            sums.filled += endpoint.filled;
            sums.ready += 1;
            sums.share += share;
        } else {
            sums.draining += endpoint.stock;
        }
        Ok(())
    }

    fn audit_with_room(&self) -> Result<(), AuditError> {
        self.with_room.audit()?;
        let mut with_room = 0;
        for (index, endpoint) in self.all.iter() {
            let key = (endpoint.prefills_for_others(), endpoint.stock, endpoint.tie, index);
            let expected = endpoint.has_room().then_some(key);
            with_room += u64::from(endpoint.has_room());
            check("the index holds the endpoints with room", self.with_room.key(index) == expected)?;
        }
        check_equal("endpoints with room", self.with_room.len() as u64, with_room)
    }

    fn audit_ejected(&self, now: Instant) -> Result<(), AuditError> {
        for endpoint in self.iter() {
            let is_down = endpoint.health.is_out();
            check(
                "only listed endpoints are healthy or marked down",
                endpoint.listed || !(endpoint.healthy || is_down),
            )?;
            check(
                "a ready endpoint is healthy and not marked down",
                endpoint.ready == (endpoint.healthy && !is_down),
            )?;
            check("the last ready endpoint is never marked down", self.ready > 0 || !endpoint.healthy)?;
        }
        let out = self.iter().filter(|endpoint| endpoint.health.is_out());
        let mut out: Vec<EndpointId> = out.map(|endpoint| endpoint.id).collect();
        let mut ejected: Vec<EndpointId> = self.ejected.iter().collect();
        out.sort_unstable();
        ejected.sort_unstable();
        check("the endpoints that are out are listed by the time of their probes", out == ejected)?;
        check("no mark outlasts its end", self.next_probe().is_none_or(|until| until > now))
    }
}
