//! The settings of each control.

use std::sync::Arc;

use crate::settings::Settings;

/// The settings of all controls of a companion.
pub(super) struct Split {
    pub(super) gateway: Settings,
    /// By pool, in the order of the configuration. Empty if all pools have the same leader.
    pub(super) pools: Vec<(Arc<str>, Settings)>,
}

/// Splits the settings, if each pool has a leader of its own.
pub(super) fn split(mut settings: Settings) -> Split {
    if !settings.policy.session_per_pool {
        return Split { gateway: settings, pools: Vec::new() };
    }
    let own = core::mem::take(&mut settings.pools);
    let flows_shown = settings.flows_shown / own.len().max(1);
    let pools = own.into_iter().map(|pool| {
        let name: Arc<str> = pool.name.as_str().into();
        let mut policy = settings.policy.clone();
        // The filter reads only this pool's entry from its session, and the rest from the main one.
        policy.pools.retain(|entry| *entry.name == *name);
        let settings =
            Settings { pool: Some(name.clone()), pools: vec![pool], policy, flows_shown, ..settings.clone() };
        (name, settings)
    });
    Split {
        pools: pools.collect(),
        gateway: Settings {
            // The control without pools has no leader, so it has no term.
            is_replicated: false,
            term: 0,
            // Filters open this session to any companion.
            sessions_expected: None,
            ..settings
        },
    }
}

/// The settings of the control of a removed pool: its requests go on until they end.
pub(super) fn of_removed_pool(gateway: &Settings, pool: &Arc<str>) -> Settings {
    let mut policy = gateway.policy.clone();
    policy.pools.clear();
    Settings { pool: Some(pool.clone()), policy, is_replicated: true, ..gateway.clone() }
}
