//! Attempts of requests that their servers refused or cut, that never left Envoy, or whose time ran out, by the request.
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

/// By granted request, its latest attempt that a server refused or cut, that never left Envoy, or whose time may run out. Clones share the
/// attempts, so that all workers of one wasm module know them.
#[derive(Clone, Debug, Default)]
pub struct FailedAttempts(Rc<RefCell<Attempts>>);

/// By epoch and sequence of the request.
type Attempts = BTreeMap<(u64, u64, u64), Attempt>;

#[derive(Clone, Debug)]
struct Attempt {
    failure: AttemptFailed,
    /// Envoy hasn't logged its end. `failure` is what it means if the request comes in again before that.
    is_running: bool,
    /// The request has come in again while the attempt was running.
    is_overtaken: bool,
}

const fn key(epoch: Epoch, sequence: u64) -> (u64, u64, u64) {
    (epoch.hi, epoch.lo, sequence)
}

impl FailedAttempts {
    pub(crate) fn insert(&self, epoch: Epoch, failure: AttemptFailed) {
        self.put(epoch, Attempt { failure, is_running: false, is_overtaken: false });
    }

    /// An attempt begins that goes on when its time is over. `failure`: what that means.
    pub(crate) fn watch(&self, epoch: Epoch, failure: AttemptFailed) {
        self.put(epoch, Attempt { failure, is_running: true, is_overtaken: false });
    }

    fn put(&self, epoch: Epoch, attempt: Attempt) {
        if let Ok(mut attempts) = self.0.try_borrow_mut() {
            attempts.insert(key(epoch, attempt.failure.sequence), attempt);
        }
    }

    /// Envoy has logged the end of an attempt that says nothing of the server, or nothing that isn't known.
    pub(crate) fn end(&self, epoch: Epoch, sequence: u64) {
        if let Ok(mut attempts) = self.0.try_borrow_mut()
            && attempts
                .get(&key(epoch, sequence))
                .is_some_and(|attempt| attempt.is_running && !attempt.is_overtaken)
        {
            attempts.remove(&key(epoch, sequence));
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
        let mut attempts = self.0.try_borrow_mut().ok()?;
        let logged = attempts.get_mut(&key(epoch, sequence));
        let logged = logged.filter(|attempt| (attempt.failure.status != UNSENT) == was_refused);
        let logged = logged.map(|attempt| {
            attempt.is_overtaken = attempt.is_running;
            attempt.failure.clone()
        });
        logged.or_else(|| {
            was_refused.then(|| AttemptFailed { sequence, status: REFUSED, ..AttemptFailed::default() })
        })
    }

    /// Whether the request has come in again while its attempt was running.
    pub(crate) fn is_overtaken(&self, epoch: Epoch, sequence: u64) -> bool {
        let attempts = self.0.try_borrow();
        attempts.is_ok_and(|attempts| {
            attempts.get(&key(epoch, sequence)).is_some_and(|attempt| attempt.is_overtaken)
        })
    }

    pub(crate) fn remove(&self, epoch: Epoch, sequence: u64) {
        if let Ok(mut attempts) = self.0.try_borrow_mut() {
            attempts.remove(&key(epoch, sequence));
        }
    }

    /// How many requests have a failed attempt, or one that is watched.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.try_borrow().map_or(0, |attempts| attempts.len())
    }
}
