//! Another configuration while requests wait and run.
//!
//! A pool is identified by its name. A pool that stays keeps its engine, and so the requests in it. A pool that the
//! configuration no longer has is retired: it takes no requests, and is forgotten when its last request has ended. If it is
//! configured again before that, it goes on as before.

use penstock_engine::Instant;
use penstock_wire::command::Kind;

use super::Control;
use crate::event::PoolEvent;
use crate::pool::PoolInput;
use crate::settings::Settings;

impl Control {
    /// Applies other settings. Term and seed stay as they were.
    pub(super) fn reload(&mut self, now: Instant, settings: Settings) {
        let settings = Settings { term: self.settings.term, seed: self.settings.seed, ..settings };
        let old = core::mem::replace(&mut self.settings, settings);
        if self.settings.policy != old.policy {
            // Filters need the policy before the endpoints of pools that only it names.
            for epoch in self.open_epochs() {
                self.send(epoch, Kind::Policy(self.settings.policy.clone()));
            }
        }
        if self.settings.flows_shown < old.flows_shown {
            for pool in self.pools.ids() {
                self.drive_pool(now, pool, PoolInput::HideFlows);
            }
        }
        self.configure_pools(now);
        for pool in self.pools.ids() {
            self.drive_pool(now, pool, PoolInput::EvictUnserved);
        }
        self.start_if_gathered(now);
        self.announce_changes();
    }

    /// Makes, changes and retires pools by the settings in force.
    pub(super) fn configure_pools(&mut self, now: Instant) {
        // The pools' settings are moved out and back, because handing them to a pool borrows all of `self`.
        let settings = core::mem::take(&mut self.settings.pools);
        let arranged = self.pools.arrange(&settings, self.settings.seed, now);
        for (&(pool, is_new), settings) in arranged.configured.iter().zip(&settings) {
            if !is_new {
                self.drive_pool(now, pool, PoolInput::Reload(settings));
                continue;
            }
            if self.is_started && self.leadership.may_grant() {
                self.drive_pool(now, pool, PoolInput::Ready);
            }
            if let Some((then, utc)) = self.utc {
                let utc = utc.saturating_add(now.since(then));
                self.drive_pool(now, pool, PoolInput::Utc(utc));
            }
            if self.is_draining {
                self.drive_pool(now, pool, PoolInput::Drain(true));
            }
            let (endpoints, pending) = (settings.endpoints.clone(), settings.pending.clone());
            let list = PoolInput::Event(PoolEvent::Endpoints { endpoints, pending });
            self.drive_pool(now, pool, list);
        }
        for pool in arranged.retired {
            self.drive_pool(now, pool, PoolInput::Retire);
        }
        self.settings.pools = settings;
    }
}
