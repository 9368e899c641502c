//! The engine's decisions: grants go to servers, and refused requests leave.

use penstock_autopilot::ExpectedUsage;
use penstock_engine::effect::{Grant, Reject};
use penstock_engine::input::Service;
use penstock_engine::{Effect, Input, Instant, Outcome, RequestId};
use penstock_model_server::{Job, JobId};

use super::super::prefixes;
use super::super::record::Refused;
use super::ClosedLoop;

impl ClosedLoop<'_> {
    pub(super) fn apply_effect(&mut self, effect: Effect) {
        match effect {
            Effect::Grant(Grant { id, endpoints, prompt, cached, output, extra, .. }) => {
                let granted = ExpectedUsage {
                    endpoint: endpoints[0],
                    prompt: prompt.0,
                    cached: cached.0,
                    output: output.0,
                    sequences: 1,
                    is_streamed: self.scenario.is_streamed,
                    is_extra: extra,
                };
                self.grant(id, granted);
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
    fn grant(&mut self, id: RequestId, granted: ExpectedUsage) {
        self.waiting -= 1;
        let server = granted.endpoint.0 as usize;
        self.autopilot.granted(self.now, id, granted);
        let pending = self.pending.get_mut(&id.0).expect("invariant: a granted request is pending");
        pending.granted = self.now;
        if core::mem::take(&mut pending.is_limited) {
            self.autopilot.arrived(self.now);
        }
        self.in_flight[server] += 1;
        let shared = self.scenario.shared_prefix.filter(|shared| shared.is_cached);
        if let Some(shared) = shared.filter(|_| self.has_cached[server]) {
            pending.cached = prefixes::cached_tokens(&shared, pending.drawn.input);
        }
        let job = Job {
            id: JobId(id.0),
            input: pending.drawn.input,
            cached: pending.cached,
            output: pending.drawn.output,
        };
        match self.servers[server].submit(self.now, job) {
            Ok(()) => self.server_timers.set(server, self.servers[server].poll_timeout()),
            Err(_) => self.refused_by(server, id),
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
        self.autopilot.dropped(self.now, id);
        self.refused(id, None);
        let service = Service::Nothing;
        self.engine.handle(self.now, Input::Completed { id, service });
    }
}
