//! Carries out the effects of the pools: commands for the filters, observations, and the routes of requests.

use std::sync::Arc;

use penstock_engine::RequestId;

use super::Control;
use crate::ids::{PoolId, RequestKey, Route};
use crate::labels::Labels;
use crate::pool::PoolEffect;
use crate::rejection::Rejection;
use crate::wire_out;

impl Control {
    /// Carries out all effects of a pool, in order.
    pub(super) fn apply_effects(&mut self, pool: PoolId) {
        while let Some(effect) = self.pools.poll_effect(pool) {
            match effect {
                PoolEffect::Opened { key, id, labels, previous_key } => {
                    self.open_request(key, Route { pool, id }, &labels);
                    if let Some(previous_key) = previous_key {
                        self.aliases.insert(previous_key, id);
                    }
                }
                PoolEffect::Grant { key, labels, grant, rate_limit } => {
                    let message = self.spent_frames.take_grant();
                    let command = wire_out::grant(key.sequence, &labels, &grant, rate_limit, message);
                    self.send(key.epoch, command);
                }
                PoolEffect::Reject { key, rejection } => self.reject(key, rejection),
                PoolEffect::Evict { key, rejection } => {
                    self.send(key.epoch, wire_out::evict(key.sequence, &rejection));
                }
                PoolEffect::Ended { key, id, labels } => self.end_request(key, id, &labels),
                PoolEffect::Counted(key) => {
                    self.record_end(key);
                }
                PoolEffect::GiveCredit(given) => {
                    let command = wire_out::credit(self.pool_name(pool), &given);
                    self.send(given.credit.epoch, command);
                }
                PoolEffect::Recall(credit) => {
                    let command = wire_out::recall(self.pool_name(pool), credit);
                    self.send(credit.epoch, command);
                    self.await_return(pool, credit);
                }
                PoolEffect::Observe(observation) => self.observe(observation),
            }
        }
    }

    fn pool_name(&self, pool: PoolId) -> &str {
        self.pools.get(pool).map_or("", |pool| pool.name())
    }

    fn open_request(&mut self, key: RequestKey, route: Route, labels: &Arc<Labels>) {
        if let Some(context) = self.contexts.get_mut(&key.epoch) {
            context.requests.insert(key.sequence, route);
        }
        self.request_index.insert(labels, route);
        self.open_requests += 1;
    }

    /// Forgets a request that has ended, and remembers its key: its filter may still send messages about it.
    fn end_request(&mut self, key: RequestKey, id: RequestId, labels: &Labels) {
        if let Some(context) = self.contexts.get_mut(&key.epoch) {
            context.requests.remove(&key.sequence);
            context.ended.record(key.sequence);
        }
        let contexts = &self.contexts;
        self.aliases.end_request(id, |epoch| contexts.contains_key(&epoch));
        self.request_index.remove(&labels.request_id, id);
        self.open_requests -= 1;
    }

    /// Sends a rejection, and keeps it until the filter acknowledges it.
    pub(super) fn reject(&mut self, key: RequestKey, rejection: Rejection) {
        let rejection = Arc::new(rejection);
        if let Some(context) = self.contexts.get_mut(&key.epoch) {
            context.ended.keep_rejection(key.sequence, &rejection);
        }
        self.send(key.epoch, wire_out::reject(key.sequence, &rejection));
    }
}
