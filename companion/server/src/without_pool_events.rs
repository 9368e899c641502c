//! Replaces the Events about InferencePools in a binary without the feature `kubernetes`, which rejects such pools.

use crate::driver::Handle;
use crate::reload;
use crate::role::RoleReceiver;

/// Does nothing.
pub(crate) fn spawn(_config: reload::Handle, _driver: Handle, _roles: RoleReceiver) {}
