//! Spreads pools over the companions, where each pool has a leader of its own. A pool prefers some companions: they take its free
//! lease first, and ask a leader that the pool prefers less to leave it to them.

use core::time::Duration;

use penstock_engine::Instant;

use super::{Candidate, Leading, Phase};
use crate::limits::{CLAIM_DOUBLINGS, CLAIM_WAIT, HESITATIONS, YIELD_WAIT};
use crate::messages::{Holder, Output};
use crate::preference::{prefers, score};

/// The part of a candidate that spreads pools.
#[derive(Clone, Debug, Default)]
pub(super) struct Spreading {
    /// The lease is free, as far as is known.
    is_free: bool,
    /// Before this time the free lease is left to companions that the pool prefers.
    pub(super) hesitates_until: Option<Instant>,
    /// When the leader is asked to leave the pool to this companion.
    claims_at: Option<Instant>,
    /// How often it was asked since this companion led the pool.
    claims: u32,
    /// When this companion last left the pool to another one.
    yielded_at: Option<Instant>,
}

impl Candidate {
    /// Whether this leader would leave the pool to the companion at this address. It doesn't while the store can't be reached,
    /// because then no other companion could lead.
    #[must_use]
    pub fn yields_to(&self, now: Instant, address: &str) -> bool {
        let has_rested = (self.spreading.yielded_at).is_none_or(|yielded| yielded.after(YIELD_WAIT) <= now);
        let reaches_store = |leading: &Leading| {
            !leading.unreachable_reported && now < self.renewal_due(leading).after(self.answer_max())
        };
        let is_settled = self.leading.as_ref().is_some_and(|leading| {
            leading.is_complete && leading.record.taking_over_from.is_none() && reaches_store(leading)
        });
        let pool = self.settings.pool.as_deref();
        let is_preferred = pool.is_some_and(|pool| prefers(pool, address, &self.settings.address));
        self.phase == Phase::Running && has_rested && is_settled && is_preferred
    }

    /// Another companion asks for the pool.
    pub(super) fn yield_to(&mut self, now: Instant, address: &str) {
        if self.yields_to(now, address) {
            self.spreading.yielded_at = Some(now);
            // The other companion has this time to take the lease.
            self.not_before = Some(now.after(self.settings.duration));
            self.step_down(None, 0);
        }
    }

    /// Takes the present state into account. Called after every input.
    pub(super) fn update_spreading(&mut self, now: Instant) {
        let Some(delay) = self.delay() else { return };
        let is_free = self.leading.is_none() && self.holder() == Some(Holder::None);
        if is_free && !self.spreading.is_free {
            self.spreading.hesitates_until = Some(now.after(delay));
        }
        self.spreading.is_free = is_free;
        if self.leading.as_ref().is_some_and(|leading| leading.is_complete) {
            self.spreading.claims = 0;
        }
        if self.leader_to_ask().is_none() {
            self.spreading.claims_at = None;
        } else if self.spreading.claims_at.is_none() {
            let wait = CLAIM_WAIT.saturating_mul(1 << self.spreading.claims.min(CLAIM_DOUBLINGS));
            self.spreading.claims_at = Some(now.after(wait).after(delay));
        }
    }

    /// The free lease is left to other companions for now.
    pub(super) fn hesitates(&self, now: Instant) -> bool {
        self.spreading.hesitates_until.is_some_and(|until| now < until)
    }

    /// When the leader is to be asked.
    pub(super) const fn claims_at(&self) -> Option<Instant> {
        self.spreading.claims_at
    }

    /// Asks the leader, if it is time.
    pub(super) fn claim_if_due(&mut self, now: Instant) {
        if self.spreading.claims_at.is_none_or(|due| due > now) {
            return;
        }
        self.spreading.claims_at = None;
        if let Some(leader) = self.leader_to_ask() {
            self.spreading.claims = self.spreading.claims.saturating_add(1);
            self.outputs.push_back(Output::Claim { leader });
        }
    }

    /// A leader that the pool prefers less than this companion.
    fn leader_to_ask(&self) -> Option<String> {
        let pool = self.settings.pool.as_deref()?;
        let own = &self.settings.address;
        let view = self.view.as_ref().filter(|view| view.holder == Holder::Other)?;
        let record = view.record.as_ref()?;
        let is_settled = !record.released && record.taking_over_from.is_none();
        let may_ask = self.phase == Phase::Running && self.leading.is_none() && is_settled;
        let is_other = !record.leader.is_empty() && record.leader != *own;
        (may_ask && is_other && prefers(pool, own, &record.leader)).then(|| record.leader.clone())
    }

    /// How much later than the most preferred companion this one acts: the less the pool prefers it, the later.
    fn delay(&self) -> Option<Duration> {
        let pool = self.settings.pool.as_deref()?;
        let longest = self.settings.duration / HESITATIONS;
        // In 1024 steps, the highest score first.
        let steps = 1023 - u32::try_from(score(pool, &self.settings.address) >> 54).unwrap_or(0);
        Some(longest * steps / 1024)
    }
}
