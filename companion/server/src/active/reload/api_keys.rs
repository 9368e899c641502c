//! The log lines of changed secrets.

use std::collections::BTreeSet;
use std::path::Path;

use penstock_config::{ApiKeyTable, Config};

/// Logs for which pools the credentials or certificates differ, and no secret.
pub(super) fn log_upstreams(before: &Config, after: &Config) {
    for pool in &after.pools {
        let namesake = before.pools.iter().find(|before| before.name == pool.name);
        if namesake.is_some_and(|before| before.upstream != pool.upstream) {
            tracing::info!(pool = pool.name, "credentials or certificates for model servers changed");
        }
    }
}

/// Logs a change of the keys: how many, and no digest.
pub(super) fn log(file: &Path, before: &ApiKeyTable, after: &ApiKeyTable) {
    let before: BTreeSet<_> = before.iter().collect();
    let after: BTreeSet<_> = after.iter().collect();
    let tenants: BTreeSet<_> = after.iter().map(|(_, tenant)| tenant).collect();
    tracing::info!(
        file = %file.display(),
        added = after.difference(&before).count(),
        removed = before.difference(&after).count(),
        keys = after.len(),
        tenants = tenants.len(),
        "API keys changed"
    );
}
