//! Slow start: an endpoint that is new or becomes ready again takes one request at a time. After one served request it
//! takes two, after two more four, and so on, up to its bound. Its caches are cold, and a failing server shows it on one
//! request instead of a whole bound of them.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ramp {
    /// Requests at a time.
    bound: u64,
    /// Requests served at this bound.
    served: u64,
}

#[derive(Debug, Default)]
pub(super) struct SlowStart {
    /// `None`: no slow start limits the endpoint.
    ramp: Option<Ramp>,
    /// The endpoint starts slowly when it is next ready, unless the pool itself is starting.
    is_due: bool,
}

impl SlowStart {
    /// The most requests at a time; `None`: any number.
    pub(super) fn limit(&self) -> Option<u64> {
        self.ramp.map(|ramp| ramp.bound)
    }

    /// Discovery lists an endpoint that it didn't list before. `starting`: the pool has just started, and its endpoints
    /// count as warm.
    pub(super) const fn listed(&mut self, starting: bool) {
        self.is_due = !starting;
    }

    /// The endpoint becomes ready.
    pub(super) fn ready(&mut self, starting: bool) {
        let slowly = self.is_due && !starting;
        self.ramp = slowly.then_some(Ramp { bound: 1, served: 0 });
        self.is_due = true;
    }

    pub(super) const fn served(&mut self) {
        if let Some(ramp) = &mut self.ramp {
            ramp.served += 1;
            if ramp.served >= ramp.bound {
                *ramp = Ramp { bound: ramp.bound.saturating_mul(2), served: 0 };
            }
        }
    }

    /// Ends a slow start whose limit doesn't lower the endpoint's bound.
    pub(super) fn end_unless(&mut self, lowers: impl FnOnce(u64) -> bool) {
        self.ramp = self.ramp.filter(|ramp| lowers(ramp.bound));
    }
}
