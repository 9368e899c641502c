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
use crate::time::Instant;

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
    /// Until Envoy has logged its end: from when on a request that comes in again has left the attempt behind, because its time is over.
    runs_until: Option<Instant>,
    /// It was watched, so that the request may come in again more than once: in any but the first return, Envoy takes the one before for an
    /// attempt that ran out of time.
    is_watched: bool,
    /// The request has come in again.
    has_returned: bool,
    /// The request is registered again while the attempt goes on.
    is_overtaken: bool,
}

const fn key(epoch: Epoch, sequence: u64) -> (u64, u64, u64) {
    (epoch.hi, epoch.lo, sequence)
}

impl FailedAttempts {
    /// Envoy has logged that an attempt failed. One that is watched at another endpoint goes on: the log may mean another request with the
    /// same `x-request-id`.
    pub(crate) fn insert(&self, epoch: Epoch, failure: AttemptFailed) {
        let Ok(mut attempts) = self.0.try_borrow_mut() else {
            return;
        };
        let place = key(epoch, failure.sequence);
        let attempt = attempts.entry(place).or_insert_with(|| Attempt::new(failure.clone(), None));
        if attempt.runs_until.is_none() || attempt.failure.endpoint == failure.endpoint {
            attempt.failure = failure;
            attempt.runs_until = None;
        }
    }

    /// An attempt begins that goes on when its time is over. `failure`: what that means.
    pub(crate) fn watch(&self, epoch: Epoch, runs_until: Instant, failure: AttemptFailed) {
        if let Ok(mut attempts) = self.0.try_borrow_mut() {
            let place = key(epoch, failure.sequence);
            attempts.insert(place, Attempt::new(failure, Some(runs_until)));
        }
    }

    /// Envoy has logged the end of an attempt at `endpoint` after which no request is sent again.
    pub(crate) fn end(&self, epoch: Epoch, sequence: u64, endpoint: Option<&str>) {
        let Ok(mut attempts) = self.0.try_borrow_mut() else {
            return;
        };
        let place = key(epoch, sequence);
        let is_ended = attempts.get(&place).is_some_and(|attempt| {
            let is_it = Some(attempt.failure.endpoint.as_str()) == endpoint;
            // A late answer is reported as one.
            attempt.runs_until.is_some() && !attempt.is_overtaken && is_it
        });
        if is_ended {
            attempts.remove(&place);
        }
    }

    /// The attempt after which a request is requeued, as far as it is known. Without one, the connection to the server failed.
    /// `was_refused`: Envoy knows from the stream that a server has answered it. The log of attempts may have meant another request with the
    /// same `x-request-id`.
    pub(crate) fn before_requeue(
        &self,
        now: Instant,
        epoch: Epoch,
        sequence: u64,
        was_refused: bool,
    ) -> Option<AttemptFailed> {
        let attempts = self.0.try_borrow().ok()?;
        let logged = attempts.get(&key(epoch, sequence));
        let logged = logged.filter(|attempt| attempt.runs_until.is_none_or(|until| until <= now));
        let logged = logged.filter(|attempt| (attempt.failure.status != UNSENT) == was_refused);
        logged.map(|attempt| attempt.failure.clone()).or_else(|| {
            was_refused.then(|| AttemptFailed { sequence, status: REFUSED, ..AttemptFailed::default() })
        })
    }

    /// A request comes in again. Returns `false` if its attempt was watched and it has come in before.
    pub(crate) fn is_first_return(&self, epoch: Epoch, sequence: u64) -> bool {
        let Ok(mut attempts) = self.0.try_borrow_mut() else {
            return true;
        };
        let attempt = attempts.get_mut(&key(epoch, sequence));
        attempt.is_none_or(|attempt| {
            !(core::mem::replace(&mut attempt.has_returned, true) && attempt.is_watched)
        })
    }

    /// A request is registered again, after the attempt under this key.
    pub(crate) fn overtake(&self, epoch: Epoch, sequence: u64) {
        if let Ok(mut attempts) = self.0.try_borrow_mut()
            && let Some(attempt) = attempts.get_mut(&key(epoch, sequence))
        {
            attempt.is_overtaken = true;
        }
    }

    /// Whether the request was registered again while its attempt went on.
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

impl Attempt {
    const fn new(failure: AttemptFailed, runs_until: Option<Instant>) -> Self {
        let is_watched = runs_until.is_some();
        Self { failure, runs_until, is_watched, has_returned: false, is_overtaken: false }
    }
}
