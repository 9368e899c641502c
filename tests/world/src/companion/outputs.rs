//! A control's outputs: frames and observations, each checked against the invariants.

use penstock_control::{Decided, Observation, Output, Refused, RequestNews};
use penstock_engine::Outcome;
use penstock_wire::command::Kind;

use super::super::World;
use super::records::Key;

impl World {
    /// Applies all outputs, and checks the companion's state now and then.
    pub(super) fn apply_outputs(&mut self, index: usize) {
        self.take_outputs(index);
        self.companions[index].batches += 1;
        if self.traced || self.companions[index].batches.is_multiple_of(16) {
            self.audit_companion(index);
        }
        self.set_timer(index);
    }

    pub(super) fn take_outputs(&mut self, index: usize) {
        let generation = self.companions[index].generation;
        let Some(control) = &mut self.companions[index].control else {
            return;
        };
        let outputs: Vec<Output> = core::iter::from_fn(|| control.poll_output()).collect();
        if self.companions[index].election.is_some() {
            self.record_accepted_hellos(index, &outputs);
        }
        let mut granted = Vec::new();
        for output in outputs {
            match output {
                Output::Send(conn, frame) => {
                    let root = self.stream_roots.get(&conn.0).copied();
                    for command in &frame.commands {
                        if let (Some(Kind::Grant(grant)), Some(root)) = (&command.kind, root) {
                            granted.push(((root, grant.sequence), conn));
                        }
                    }
                    self.note(|| format!("companion {generation} sends on {}: {frame:?}", conn.0));
                    self.send_frame(conn.0, &frame);
                }
                Output::Close(conn, reason) => {
                    self.note(|| format!("companion {generation} closes {}: {reason}", conn.0));
                    self.orphan(index, conn);
                    self.close_at_companion(conn.0);
                }
                Output::Observe(observation) => self.observe(index, &observation),
                Output::Election(report) => self.report_to_election(index, report),
            }
        }
        for (key, conn) in granted {
            self.check_leader_grants(index, key, conn);
            self.record_grant(index, key);
        }
    }

    /// Records the sessions that the acknowledgements of Hellos in these outputs open. The decisions come before the frames.
    fn record_accepted_hellos(&mut self, index: usize, outputs: &[Output]) {
        for output in outputs {
            let Output::Send(conn, frame) = output else {
                continue;
            };
            for command in &frame.commands {
                if let Some(Kind::HelloAck(ack)) = &command.kind
                    && ack.version > 0
                {
                    self.accept_hello(index, *conn, ack.term);
                }
            }
        }
    }

    fn record_grant(&mut self, index: usize, key: Key) {
        let (root, sequence) = key;
        let ended = self
            .roots
            .get(&root)
            .is_some_and(|root| root.attachments[index].reported_ends.contains(&sequence));
        if ended {
            self.fail(|| format!("request {sequence} of root {root} is granted after its reported end"));
        }
        if let Some(id) = self.http_of(key) {
            self.check_flow_order(index, id);
            self.check_bound(index, id);
            if let Some(http) = self.http_streams.get_mut(&id) {
                http.counted_by = Some(self.companions[index].tenure);
            }
        }
    }

    fn observe(&mut self, index: usize, observation: &Observation) {
        if let Observation::Request(
            labels,
            RequestNews::Decided(Decided { outcome: Outcome::Bypassed | Outcome::Dispatched, extra, .. }),
        ) = observation
        {
            self.summary.extra_grants += u64::from(*extra);
            self.check_grant_allowed(index, &labels.request_id);
        }
        let (labels, arrived, left, requeued) = match observation {
            Observation::Request(labels, RequestNews::Arrived(_)) => (labels, 1, 0, 0),
            Observation::Request(labels, RequestNews::Decided(_))
            | Observation::Request(labels, RequestNews::Refused(Refused { was_granted: false, .. })) => {
                (labels, 0, 1, 0)
            }
            Observation::Request(labels, RequestNews::Requeued) => (labels, 0, 0, 1),
            _ => return self.check_second_outcome(index, observation),
        };
        let generation = self.companions[index].generation;
        self.note(|| format!("companion {generation} observes {observation:?}"));
        self.check_counted_once(index, &labels.request_id, arrived > 0, left > 0);
        let counts = &mut self.companions[index].counts;
        let counts = counts.entry(labels.pool.to_string()).or_default();
        counts.arrived += arrived;
        counts.left += left;
        counts.requeued += requeued;
        if counts.left > counts.arrived {
            let pool = labels.pool.clone();
            self.fail(|| format!("pool {pool} has more outcomes than arrivals"));
        }
        self.summary.requeues += requeued;
    }
}
