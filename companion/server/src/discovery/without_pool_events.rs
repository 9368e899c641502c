//! Replaces the Events about InferencePools in a binary without the feature `kubernetes`, which rejects such pools.

use crate::active::reload;
use crate::base::role::RoleReceiver;
use crate::decisions::driver::Handle;

/// Does nothing.
pub(crate) fn spawn(_config: reload::Handle, _driver: Handle, _roles: RoleReceiver) {}
