//! Announces the endpoints of the pools to the sessions.

use super::Control;
use crate::ids::{Epoch, PoolId};
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
            if self
                .pools
                .get(id)
                .is_some_and(crate::pool::Pool::is_announcement_due)
            {
                self.announce(id, None);
            }
        }
    }

    /// Announces the endpoints of all pools: to every session where they have changed, and to `newcomer` in any case. Done
    /// when a session opens, and when the number of Envoys changes, which share the bounds.
    pub(super) fn announce_all(&mut self, newcomer: Option<Epoch>) {
        for pool in self.pools.ids() {
            self.announce(pool, newcomer);
        }
    }

    fn announce(&mut self, id: PoolId, newcomer: Option<Epoch>) {
        let envoys = self.envoys.len();
        let is_changed = self
            .pools
            .get_mut(id)
            .is_some_and(|pool| pool.renew_announcement(envoys));
        self.apply_effects(id);
        let Some(pool) = self.pools.get(id).filter(|pool| !pool.is_retired()) else {
            return;
        };
        let recipients = if is_changed {
            self.open_epochs()
        } else {
            newcomer.into_iter().collect()
        };
        if recipients.is_empty() {
            return;
        }
        let command = wire_out::endpoints(&pool.announcement());
        for epoch in recipients {
            self.send(epoch, command.clone());
        }
    }

    /// The root contexts that have a stream, in order.
    pub(super) fn open_epochs(&self) -> Vec<Epoch> {
        let open = self.contexts.iter().filter(|(_, context)| context.is_open());
        let mut epochs: Vec<Epoch> = open.map(|(epoch, _)| *epoch).collect();
        epochs.sort_unstable();
        epochs
    }
}
