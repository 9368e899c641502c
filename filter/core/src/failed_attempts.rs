//! Attempts of requests that their servers refused or cut, or that never left Envoy, by the request.
//!
//! The gateway's worker learns of such an attempt, and the requeue listener's worker registers the request again. Each reports over
//! a session of its own, so the companion may receive the registration before the report and take the attempt for a failure of the
//! server. So the registration carries the report as well.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use penstock_wire::AttemptFailed;

use crate::session::Epoch;

/// The status of an attempt that no server answered.
const UNSENT: u32 = 0;
/// The status of a refusal of which no more is known.
const REFUSED: u32 = 429;

/// By granted request, its latest attempt that a server refused or cut, or that never left Envoy. Clones share the attempts, so that all workers of
/// one wasm module know them.
#[derive(Clone, Debug, Default)]
pub struct FailedAttempts(Rc<RefCell<Attempts>>);

/// By epoch and sequence of the request.
type Attempts = BTreeMap<(u64, u64, u64), AttemptFailed>;

const fn key(epoch: Epoch, sequence: u64) -> (u64, u64, u64) {
    (epoch.hi, epoch.lo, sequence)
}

impl FailedAttempts {
    pub(crate) fn insert(&self, epoch: Epoch, attempt: AttemptFailed) {
        if let Ok(mut attempts) = self.0.try_borrow_mut() {
            attempts.insert(key(epoch, attempt.sequence), attempt);
        }
    }

    /// The attempt after which a request is requeued; `None`: the server failed it. `was_refused`: Envoy knows from the stream that a
    /// server has answered it. The log of attempts may have meant another request with the same `x-request-id`.
    pub(crate) fn before_requeue(
        &self,
        epoch: Epoch,
        sequence: u64,
        was_refused: bool,
    ) -> Option<AttemptFailed> {
        let attempts = self.0.try_borrow().ok()?;
        let logged = attempts.get(&key(epoch, sequence));
        let logged = logged.filter(|attempt| (attempt.status != UNSENT) == was_refused).cloned();
        logged.or_else(|| {
            was_refused.then(|| AttemptFailed { sequence, status: REFUSED, ..AttemptFailed::default() })
        })
    }

    pub(crate) fn remove(&self, epoch: Epoch, sequence: u64) {
        if let Ok(mut attempts) = self.0.try_borrow_mut() {
            attempts.remove(&key(epoch, sequence));
        }
    }

    /// How many requests have a failed attempt.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.try_borrow().map_or(0, |attempts| attempts.len())
    }
}
