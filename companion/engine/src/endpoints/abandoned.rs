//! Requests whose clients have left, at all endpoints. Each [`crate::endpoint::Endpoint`] keeps its own.

use core::time::Duration;

use super::Endpoints;
use crate::endpoint::abandoned_kept;
use crate::ids::EndpointIndex;
use crate::load::Load;
use crate::rng::Rng;
use crate::time::Instant;

impl Endpoints {
    /// For how long an abandoned request counts at most.
    pub(crate) const fn set_release_after(&mut self, release_after: Option<Duration>) {
        self.release_after = release_after;
    }

    /// The client of a request with this load has left. `served`: its server processed it.
    pub(crate) fn left(
        &mut self,
        now: Instant,
        index: EndpointIndex,
        load: Load,
        served: bool,
        rng: &mut Rng,
    ) {
        let release_after = self.release_after;
        self.change_load(index, rng, |endpoint| endpoint.abandon(now, load, served, release_after));
        self.remove_unused(index);
    }

    /// When the first abandoned request counts no longer.
    pub(crate) fn next_release(&self) -> Option<Instant> {
        let (since, _) = self.abandoned.first()?;
        Some(since.after(abandoned_kept(self.release_after)))
    }

    /// Ends the abandoned requests of one endpoint that are due by `now`. Returns whether there were any.
    pub(crate) fn release_due(&mut self, now: Instant, rng: &mut Rng) -> bool {
        let Some(&(since, index)) = self.abandoned.first().filter(|_| self.next_release() <= Some(now))
        else {
            return false;
        };
        self.change_load(index, rng, |endpoint| endpoint.release_abandoned_until(since));
        true
    }

    /// The oldest abandoned request of the endpoint was that of `before`.
    pub(super) fn update_abandoned(&mut self, index: EndpointIndex, before: Option<Instant>) {
        let since = self.all[index].abandoned.since();
        if before == since {
            return;
        }
        if let Some(before) = before {
            self.abandoned.remove(&(before, index));
        }
        if let Some(since) = since {
            self.abandoned.insert((since, index));
        }
    }

    /// The endpoints with abandoned requests are listed by their oldest ones.
    pub(super) fn audit_abandoned(&self) -> bool {
        let since = |(index, endpoint): (EndpointIndex, &crate::endpoint::Endpoint)| {
            Some((endpoint.abandoned.since()?, index))
        };
        let mut all: alloc::vec::Vec<_> = self.all.iter().filter_map(since).collect();
        all.sort_unstable();
        let sums = self.iter().all(|endpoint| {
            let abandoned = &endpoint.abandoned;
            abandoned.sequences() == abandoned.loads().map(|load| load.sequences).sum::<u64>()
                && (endpoint.listed || abandoned.len() == 0)
        });
        sums && self.abandoned.iter().copied().eq(all)
    }
}
