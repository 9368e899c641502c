//! Builds the Hello of a stream, in parts of limited size.

use core::num::NonZeroU64;

use penstock_wire::limits::{HELLO_PART_REQUESTS, VERSION_MAX, VERSION_MIN};
use penstock_wire::{Hello, Register, Running};

use super::Settings;

/// The fields that all parts share.
pub(super) struct HelloHeader<'a> {
    pub(super) settings: &'a Settings,
    pub(super) pool: &'a str,
    pub(super) stream: u32,
    pub(super) policy_digest: &'a str,
    pub(super) term: u64,
    pub(super) unreachable_term: Option<NonZeroU64>,
}

impl HelloHeader<'_> {
    /// A Hello without requests, which asks whether the companion leads.
    pub(super) fn probe(&self) -> Hello {
        Hello { probe: true, ..self.empty_part() }
    }

    /// The parts that list these requests; one part if there are none.
    pub(super) fn parts(&self, waiting: Vec<Register>, running: Vec<Running>) -> Vec<Hello> {
        let mut parts = Vec::new();
        let (mut waiting, mut running) = (waiting.into_iter(), running.into_iter());
        loop {
            let mut part = self.empty_part();
            part.part = u32::try_from(parts.len()).unwrap_or(u32::MAX);
            part.waiting = waiting.by_ref().take(HELLO_PART_REQUESTS).collect();
            let room = HELLO_PART_REQUESTS.saturating_sub(part.waiting.len());
            part.running = running.by_ref().take(room).collect();
            let last = waiting.len() == 0 && running.len() == 0;
            part.last = last;
            parts.push(part);
            if last {
                return parts;
            }
        }
    }

    fn empty_part(&self) -> Hello {
        Hello {
            epoch_hi: self.settings.epoch.hi,
            epoch_lo: self.settings.epoch.lo,
            stream: self.stream,
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            policy_digest: self.policy_digest.to_owned(),
            node: self.settings.node.clone(),
            envoy: self.settings.envoy.map_or(0, NonZeroU64::get),
            no_requeue: !self.settings.can_requeue,
            term: self.term,
            unreachable_term: self.unreachable_term.map_or(0, NonZeroU64::get),
            pool: self.pool.to_owned(),
            picker: self.settings.is_picker,
            ..Hello::default()
        }
    }
}
