//! The engine's decisions: grants go to servers, and refused requests leave.

use penstock_autopilot::ExpectedUsage;
use penstock_engine::effect::{Grant, Reject};
use penstock_engine::input::{EndpointId, Service};
use penstock_engine::{Effect, Input, Instant, Outcome, RequestId};
use penstock_model_server::{Job, JobId};

use super::super::prefixes;
use super::super::record::Refused;
use super::{ClosedLoop, Prefill};

impl ClosedLoop<'_> {
    pub(super) fn apply_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Grant(Grant { id, endpoints, prompt, cached, output, extra, prefill, .. }) => {
                let granted = ExpectedUsage {
                    endpoint: endpoints[0],
                    prompt: prompt.0,
                    cached: cached.0,
                    output: output.0,
                    sequences: 1,
                    is_streamed: self.scenario.is_streamed,
                    is_extra: extra,
                };
                self.grant(id, granted, prefill);
            }
            Effect::Reject(Reject { id, outcome, .. }) => {
                self.waiting -= 1;
                let pending = self.pending.get(&id.0);
                let counted = pending.filter(|pending| !pending.is_limited && outcome.is_no_demand());
                if let Some(pending) = counted {
                    self.autopilot.refused_after_waiting(pending.arrived);
                }
                self.refused(id, Some(outcome));
            }
            Effect::Cancelled { id, .. } => {
                self.waiting -= 1;
                self.refused(id, None);
            }
            // The policy of a simulation has no evictions.
            Effect::Evict(_)
            | Effect::Traced(_)
            | Effect::UsageSettled(_)
            | Effect::UsageRunning(_)
            | Effect::Budget(_)
            | Effect::Settled { .. } => {}
        }
    }

    /// Sends a request to its server.
    fn grant(&mut self, id: RequestId, granted: ExpectedUsage, prefill: Option<EndpointId>) {
        self.waiting -= 1;
        let server = granted.endpoint.0 as usize;
        let prefill = prefill.map(|endpoint| Prefill { server: endpoint.0 as usize, then: server });
        match prefill {
            None => self.autopilot.granted(self.now, id, granted),
            Some(_) => self.autopilot.granted_apart(self.now, id, granted),
        }
        let pending = self.pending.get_mut(&id.0).expect("invariant: a granted request is pending");
        pending.granted = self.now;
        if core::mem::take(&mut pending.is_limited) {
            self.autopilot.arrived(self.now);
        }
        self.in_flight[server] += 1;
        if let Some(prefill) = prefill {
            pending.prefill = Some(prefill);
            self.in_flight[prefill.server] += 1;
            self.record.prefilled_elsewhere += 1;
        }
        let first = prefill.map_or(server, |prefill| prefill.server);
        let shared = self.scenario.shared_prefix.filter(|shared| shared.is_cached);
        if let Some(shared) = shared.filter(|_| self.has_cached[first]) {
            pending.cached = prefixes::cached_tokens(&shared, pending.drawn.input);
        }
        let job = Job {
            id: JobId(id.0),
            input: pending.drawn.input,
            cached: pending.cached,
            // A prompt alone ends when it is computed.
            output: if prefill.is_some() { 0 } else { pending.drawn.output },
        };
        self.note_peaks();
        self.submit(first, server, job);
    }

    /// The servers of a request whose prompt has just been computed at a server of its own.
    pub(super) fn prefilled(&self, server: usize, id: u64) -> Option<Prefill> {
        let prefill = self.pending.get(&id)?.prefill?;
        (prefill.server == server).then_some(prefill)
    }

    /// The server that answers gets a computed prompt. The transfer takes no time.
    pub(super) fn decode(&mut self, server: usize, id: u64) {
        let Some(pending) = self.pending.get(&id) else { return };
        let drawn = &pending.drawn;
        let job = Job { id: JobId(id), input: drawn.input, cached: drawn.input, output: drawn.output };
        self.submit(server, server, job);
    }

    /// Sends a job to a server. `answers`: the server that answers the request, where it counts until its end.
    fn submit(&mut self, server: usize, answers: usize, job: Job) {
        match self.servers[server].submit(self.now, job) {
            Ok(()) => self.server_timers.set(server, self.servers[server].poll_timeout()),
            Err(_) => self.refused_by(answers, RequestId(job.id.0)),
        }
    }

    /// Records the most requests that each server has had.
    fn note_peaks(&mut self) {
        self.record.peaks.resize(self.in_flight.len(), 0);
        for (peak, &now) in self.record.peaks.iter_mut().zip(&self.in_flight) {
            *peak = now.max(*peak);
        }
    }

    /// A request ends without an answer. `outcome`: the engine's reason.
    fn refused(&mut self, id: RequestId, outcome: Option<Outcome>) {
        self.record.rejected += 1;
        if let Some(pending) = self.pending.remove(&id.0) {
            self.record.refused.push(Refused {
                kind: pending.drawn.kind,
                arrived: pending.arrived.since(Instant::ZERO),
                waited: self.now.since(pending.arrived),
                outcome,
            });
        }
    }

    /// The server doesn't take a request: its cache or its own queue is too small.
    fn refused_by(&mut self, server: usize, id: RequestId) {
        self.in_flight[server] -= 1;
        if let Some(prefill) = self.pending.get_mut(&id.0).and_then(|pending| pending.prefill.take()) {
            self.in_flight[prefill.server] -= 1;
        }
        self.autopilot.dropped(self.now, id);
        self.refused(id, None);
        let service = Service::Nothing;
        self.engine.handle(self.now, Input::Completed { id, service });
    }
}
