//! Announces the endpoints of the pools, and the models that clients may name, to the sessions.

use std::sync::Arc;

use penstock_wire as wire;
use penstock_wire::command::Kind;

use super::Control;
use crate::ids::{Epoch, PoolId};
use crate::pool::AnnouncementChange;
use crate::wire_out;

impl Control {
    /// Ends an event: looks after the pools that it touched.
    pub(super) fn finish_event(&mut self) {
        for index in 0..self.pools.touched().len() {
            let id = self.pools.touched()[index];
            if let Some(pool) = self.pools.get_mut(id) {
                pool.forget_unlisted();
            }
            self.pools.remove_if_over(id);
        }
        self.announce_changes();
        while self.pools.take_touched().is_some() {}
    }

    /// Announces the endpoints of touched pools where they have changed.
    pub(super) fn announce_changes(&mut self) {
        for index in 0..self.pools.touched().len() {
            let id = self.pools.touched()[index];
            if self.pools.get(id).is_some_and(crate::pool::Pool::is_announcement_due) {
                self.announce(id, None);
            }
        }
    }

    /// Announces the endpoints of all pools where they have changed. Done when the number of Envoys changes, which share the
    /// bounds.
    pub(super) fn announce_all(&mut self) {
        for pool in self.pools.ids() {
            self.announce(pool, None);
        }
    }

    /// Announces the endpoints of all pools to a root context that has opened a session, unless it knows them.
    pub(super) fn announce_to_newcomer(&mut self, newcomer: Epoch, known_digest: u64) {
        // The number of Envoys changes with nearly every Hello of a takeover, and with it the bounds.
        if !self.leadership.awaited.is_empty() {
            if let Some(context) = self.contexts.get_mut(&newcomer) {
                context.endpoints_digest = known_digest;
            }
            return;
        }
        for pool in self.pools.ids() {
            self.announce(pool, Some(newcomer));
        }
        self.send_endpoints(newcomer, known_digest);
    }

    /// Announces what has changed while this companion waited for Hellos.
    pub(super) fn announce_deferred(&mut self) {
        for pool in self.pools.ids() {
            self.renew_announcement(pool);
        }
        for epoch in self.open_epochs() {
            let known = self.contexts.get(&epoch).map(|context| context.endpoints_digest);
            self.send_endpoints(epoch, known.unwrap_or_default());
        }
    }

    fn send_endpoints(&mut self, epoch: Epoch, known_digest: u64) {
        let pools = || self.pools.iter().filter(|(_, pool)| !pool.is_retired());
        let digests = pools().map(|(_, pool)| pool.announcement_digest());
        let digest = digests.fold(0, u64::wrapping_add);
        let commands: Vec<_> = if digest == known_digest {
            Vec::new()
        } else {
            pools().map(|(_, pool)| wire_out::endpoints(&pool.announcement())).collect()
        };
        for command in commands {
            self.send(epoch, command);
        }
        if let Some(context) = self.contexts.get_mut(&epoch) {
            context.endpoints_digest = digest;
        }
    }

    fn renew_announcement(&mut self, id: PoolId) -> AnnouncementChange {
        let envoys = self.envoys.len();
        let change =
            self.pools.get_mut(id).map_or(AnnouncementChange::None, |pool| pool.renew_announcement(envoys));
        self.apply_effects(id);
        change
    }

    /// Announces the endpoints of a pool where they have changed, but not to `except`.
    fn announce(&mut self, id: PoolId, except: Option<Epoch>) {
        if !self.leadership.awaited.is_empty() {
            return;
        }
        let change = self.renew_announcement(id);
        if change == AnnouncementChange::None {
            return;
        }
        let Some(pool) = self.pools.get(id).filter(|pool| !pool.is_retired()) else {
            return;
        };
        let command = if change == AnnouncementChange::Bound {
            wire_out::fallback_bound(&pool.announcement())
        } else {
            wire_out::endpoints(&pool.announcement())
        };
        for epoch in self.open_epochs() {
            if except != Some(epoch) {
                self.send(epoch, command.clone());
            }
        }
    }

    /// Sends the list of the models that clients may name to every filter.
    pub(super) fn announce_models(&mut self, list: Arc<wire::ModelList>) {
        if self.model_list.as_ref() == Some(&list) {
            return;
        }
        for epoch in self.open_epochs() {
            self.send(epoch, Kind::ModelList((*list).clone()));
        }
        self.model_list = Some(list);
    }

    /// The root contexts that have a stream, in order.
    pub(super) fn open_epochs(&self) -> Vec<Epoch> {
        let open = self.contexts.iter().filter(|(_, context)| context.is_open());
        let mut epochs: Vec<Epoch> = open.map(|(epoch, _)| *epoch).collect();
        epochs.sort_unstable();
        epochs
    }
}
