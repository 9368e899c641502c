//! Resync: a Hello lists all requests of its root context, and both sides agree on each.
//!
//! | the Hello lists it as | not known here | queued here | granted here |
//! |---|---|---|---|
//! | waiting | enqueue at its first arrival | continue | the grant was lost: send it again, or requeue the request if its endpoints are gone |
//! | running | adopt | adopt | keep |
//! | not listed | | cancel at the next beat, unless its end is reported before | release at the next beat, unless its end is reported before |
//!
//! A request that was rejected here and waits at its filter is rejected again. If it runs there, it is adopted and keeps the
//! outcome that was counted. An alias stays an alias while its request is listed as running.

use hashbrown::HashSet;
use penstock_engine::Instant;

use super::Control;
use crate::host_clocks::SentAt;
use crate::ids::{Epoch, RequestKey};
use crate::pool::PoolInput;
use crate::registration::{Arrival, Registration, Running};
use crate::session::Greeting;
use crate::{trust, wire_in};

impl Control {
    /// Brings both sides to the same state.
    pub(super) fn resync(&mut self, now: Instant, epoch: Epoch, greeting: Greeting) {
        let Greeting { waiting, running, sent_at, .. } = greeting;
        let age_now = |age| sent_at.map_or(age, |sent_at: SentAt| sent_at.age(now, age));
        let running_sequences: HashSet<u64> =
            running.iter().filter_map(|running| Some(running.register.as_ref()?.sequence)).collect();
        let waiting_sequences: HashSet<u64> = waiting.iter().map(|register| register.sequence).collect();
        // A request that waits was not requeued under another key.
        self.aliases.retain(epoch, |_, sequence, _| running_sequences.contains(&sequence));
        self.settle_unlisted(now, epoch, |sequence| {
            running_sequences.contains(&sequence) || waiting_sequences.contains(&sequence)
        });
        for running in &running {
            if let Some(register) = &running.register {
                let mut registration = wire_in::registration(epoch, register);
                registration.age = age_now(registration.age);
                let mut running = wire_in::running(running);
                running.age = age_now(running.age);
                self.still_runs(now, registration, running);
            }
        }
        self.end_credits(now, epoch);
        for register in &waiting {
            let sequence = register.sequence;
            match self.find(RequestKey { epoch, sequence }) {
                None => {
                    let mut registration = wire_in::registration(epoch, register);
                    registration.age = age_now(registration.age);
                    self.register(now, registration, Arrival::Waiting);
                }
                Some(route) => self.drive_pool(now, route.pool, PoolInput::StillWaits(route.id)),
            }
        }
    }

    /// Requests that the filter no longer has. The end of each may still be reported: its filter may have answered it by itself.
    /// Until then a waiting request isn't granted.
    fn settle_unlisted(&mut self, now: Instant, epoch: Epoch, is_listed: impl Fn(u64) -> bool) {
        let Some(context) = self.contexts.get(&epoch) else {
            return;
        };
        let mut unlisted: Vec<_> = context
            .requests
            .iter()
            .filter(|(sequence, _)| !is_listed(**sequence))
            .map(|(_, route)| *route)
            .collect();
        unlisted.sort_unstable_by_key(|route| route.id);
        for route in unlisted {
            let Some(pool) = self.pools.get(route.pool).filter(|pool| pool.contains(route.id)) else {
                continue;
            };
            if pool.is_waiting(route.id) {
                self.drive_pool(now, route.pool, PoolInput::Suspend(route.id));
            }
            if let Some(context) = self.contexts.get_mut(&epoch) {
                context.unconfirmed.push(route);
            }
        }
    }

    fn still_runs(&mut self, now: Instant, mut registration: Registration<'_>, running: Running<'_>) {
        let key = registration.key;
        if self.aliases.contains(key) {
            if let Some(previous) = registration.previous_key {
                self.extend_alias(now, key, previous);
            }
            return;
        }
        let Some(route) = self.find(key) else {
            return self.register(now, registration, Arrival::Running(running));
        };
        let objective = |name: &str| self.pools.get(route.pool)?.objective(name);
        trust::apply(&mut registration, objective, &self.settings.max_priority);
        let input = PoolInput::StillRuns { id: route.id, registration: &registration, running };
        self.drive_pool(now, route.pool, input);
    }

    /// The filter has repeated all reports that its Hello left open. Every other unconfirmed request has
    /// ended: a waiting one is cancelled, and the cost of a granted one is settled at the estimate.
    pub(super) fn release_unconfirmed(&mut self, now: Instant, epoch: Epoch) {
        let Some(context) = self.contexts.get_mut(&epoch) else {
            return;
        };
        for route in core::mem::take(&mut context.unconfirmed) {
            self.drive_pool(now, route.pool, PoolInput::Release(route.id));
        }
    }
}
