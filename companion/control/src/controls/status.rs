//! The status of all controls as one.

use std::sync::Arc;

use penstock_engine::Instant;

use super::{Controls, Scope};
use crate::request_status::RequestStatus;
use crate::status::Status;

impl Controls {
    /// Everything at this moment, in time proportional to it. Dispatch counts as begun if it has in every pool that this
    /// companion leads.
    #[must_use]
    pub fn status(&self, now: Instant) -> Status {
        let mut all = self.iter().map(|(scope, control)| {
            let mut status = control.status(now);
            for session in &mut status.sessions {
                session.pool = scope.pool().map(Arc::clone);
            }
            (scope, control, status)
        });
        let (_, _, mut sum) = all.next().expect("invariant: the gateway's control is never removed");
        // Without a pool that this companion leads, the first control's count.
        let mut led: Option<(bool, bool)> = None;
        for (_, control, status) in all {
            if control.leads() {
                let (started, gathered) = led.unwrap_or((true, true));
                led = Some((started && status.started, gathered && status.gathered));
            }
            sum.sessions.extend(status.sessions);
            sum.pools.extend(status.pools);
            sum.draining |= status.draining;
            sum.envoys = sum.envoys.max(status.envoys);
            sum.requests += status.requests;
        }
        (sum.started, sum.gathered) = led.unwrap_or((sum.started, sum.gathered));
        sum
    }

    /// The request with this `x-request-id` that hasn't ended; of several, one that came last in its pool.
    #[must_use]
    pub fn request(&self, now: Instant, request_id: &str) -> Option<RequestStatus> {
        self.iter().find_map(|(_, control)| control.request(now, request_id))
    }

    /// Whether this companion leads the scope; `None`: it is unknown.
    #[must_use]
    pub fn leads(&self, scope: &Scope) -> Option<bool> {
        self.control(scope).map(crate::control::Control::leads)
    }
}
