//! The endpoints that take no request until their next probe, by the time and the number of answers after which it is due.

use alloc::collections::BTreeSet;

use crate::input::EndpointId;
use crate::time::Instant;

/// When an endpoint is probed: at this time, once the pool has had so many answers.
type Due = (Instant, u64);

/// The endpoints that are out.
#[derive(Debug, Default)]
pub(crate) struct EjectedEndpoints {
    by_time: BTreeSet<(Instant, EndpointId, u64)>,
    /// Those whose time has come.
    by_answers: BTreeSet<(u64, EndpointId, Instant)>,
}

impl EjectedEndpoints {
    /// The pause of `endpoint` ended at `before`, and now ends at `after`.
    pub(crate) fn set(&mut self, endpoint: EndpointId, before: Option<Due>, after: Option<Due>) {
        if before == after {
            return;
        }
        if let Some((until, answers)) = before {
            self.by_time.remove(&(until, endpoint, answers));
            self.by_answers.remove(&(answers, endpoint, until));
        }
        if let Some((until, answers)) = after {
            self.by_time.insert((until, endpoint, answers));
        }
    }

    /// When the first pause ends by time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|&(until, _, _)| until)
    }

    /// An endpoint whose probe is due at `now`, after so many answers of the pool.
    #[inline]
    pub(crate) fn due(&mut self, now: Instant, answers: u64) -> Option<EndpointId> {
        while let Some(&(until, endpoint, least)) = self.by_time.first().filter(|(until, _, _)| *until <= now)
        {
            if least <= answers {
                return Some(endpoint);
            }
            self.by_time.remove(&(until, endpoint, least));
            self.by_answers.insert((least, endpoint, until));
        }
        let &(least, endpoint, _) = self.by_answers.first()?;
        (least <= answers).then_some(endpoint)
    }

    /// Some endpoint waits for answers alone.
    pub(crate) fn waits_for_answers(&self) -> bool {
        !self.by_answers.is_empty()
    }

    /// All, the one that is due first before the others.
    pub(crate) fn iter(&self) -> impl Iterator<Item = EndpointId> {
        let timed = self.by_time.iter().map(|&(_, endpoint, _)| endpoint);
        self.by_answers.iter().map(|&(_, endpoint, _)| endpoint).chain(timed)
    }
}
