//! A pool's stream as this companion has read it: where it goes on reading, and what it has found and not delivered.

use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_engine::input::{PastUsage, QuotaRunning, QuotaUsage, RunningUsage};
use tokio::sync::oneshot;

use super::elsewhere::Elsewhere;
use super::entry::{self, DuplicateFilter, Position};
use crate::stores::message::Windows;
use crate::stores::quota_buffer::{RunningKey, running_of};
use crate::stores::write_buffer::{SharedUsage, UsageKey};

/// A pool's stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) key: String,
    pub(super) windows: Windows,
    pub(super) writer_id: Arc<str>,
    /// The last entry that was read.
    pub(super) last_read: Option<Position>,
    pub(super) duplicates: DuplicateFilter,
    /// Receives the usage that is in the stream already.
    pub(super) past_usage: Option<oneshot::Sender<Vec<PastUsage>>>,
    pub(super) found: Vec<PastUsage>,
    pub(super) elsewhere: Elsewhere<UsageKey>,
    /// Changes of the usage that runs elsewhere, waiting for delivery.
    pub(super) changed: Vec<RunningUsage>,
    pub(super) quotas: Quotas,
    /// The log has a line about an entry that can't be parsed.
    pub(super) warned: bool,
}

/// What the stream has of the pool's budgets.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// Entries after this one count; `None`: what was used before isn't known yet.
    pub(super) from: Option<Position>,
    pub(super) duplicates: DuplicateFilter,
    pub(super) found: Vec<QuotaUsage>,
    pub(super) elsewhere: Elsewhere<RunningKey>,
    pub(super) changed: Vec<QuotaRunning>,
}

impl Quotas {
    /// These sums have changed.
    pub(super) fn change(&mut self, changed: Vec<(RunningKey, u64)>) {
        let flows: BTreeSet<Box<str>> = changed.into_iter().map(|((flow, _), _)| flow).collect();
        for flow in flows {
            self.changed.push(running_of(flow, |key| self.elsewhere.sum(key)));
        }
    }
}

impl Stream {
    /// These sums have changed.
    pub(super) fn change(&mut self, changed: Vec<(UsageKey, u64)>) {
        self.changed
            .extend(changed.into_iter().map(|(key, sum)| key.runs(sum)));
    }

    /// Everything found since the last call; `None`: nothing.
    pub(super) fn take_found(&mut self, pool: &Arc<str>) -> Option<SharedUsage> {
        let settled = std::mem::take(&mut self.found);
        let running = std::mem::take(&mut self.changed);
        let quotas = self.take_quotas(pool);
        let usage = SharedUsage {
            settled,
            running,
            ..quotas.unwrap_or_else(|| SharedUsage::none(pool.clone()))
        };
        (!usage.is_empty()).then_some(usage)
    }

    /// The part of it about budgets.
    pub(super) fn take_quotas(&mut self, pool: &Arc<str>) -> Option<SharedUsage> {
        let usage = SharedUsage {
            quotas: std::mem::take(&mut self.quotas.found),
            quotas_running: std::mem::take(&mut self.quotas.changed),
            ..SharedUsage::none(pool.clone())
        };
        (!usage.is_empty()).then_some(usage)
    }

    /// The changes of what runs elsewhere; `None`: there are none.
    pub(super) fn take_changed(&mut self, pool: &Arc<str>) -> Option<SharedUsage> {
        let usage = SharedUsage {
            running: std::mem::take(&mut self.changed),
            quotas_running: std::mem::take(&mut self.quotas.changed),
            ..SharedUsage::none(pool.clone())
        };
        (!usage.is_empty()).then_some(usage)
    }

    /// What was used of budgets up to this entry is known.
    pub(super) fn count_quotas_from(&mut self, position: Position) {
        self.quotas.from = Some(position);
        self.quotas.duplicates = DuplicateFilter::default();
        self.quotas.found.clear();
        // Usage windows that aren't read yet begin later than the hashes end, if there is an entry in between.
        if self.last_read.is_some() || self.windows.usage.is_none() {
            self.last_read = Some(
                self.last_read
                    .map_or(position, |last_read| last_read.min(position)),
            );
        }
    }

    pub(super) fn add(&mut self, id: &::redis::streams::StreamId, (pool, companion): (&str, &str), now: u64) {
        let position = entry::parse_position(&id.id);
        self.last_read = self.last_read.max(position);
        match entry::parse(id) {
            Some(mut entry) => {
                let is_own = entry.companion.as_deref() == Some(companion);
                let is_later = self.quotas.from.is_some_and(|from| position > Some(from));
                if is_later && self.quotas.duplicates.is_new(&entry) && !is_own {
                    let quotas = std::mem::take(&mut entry.quotas).into_iter();
                    self.quotas
                        .found
                        .extend(quotas.map(|counted| counted.exact_usage(now)));
                }
                if self.duplicates.is_new(&entry) && entry.writer_id != *self.writer_id {
                    self.found.extend(entry.past_usage(now));
                }
            }
            None if !self.warned => {
                self.warned = true;
                tracing::warn!(
                    pool,
                    key = self.key,
                    "entries of the stream ignored: a program other than this version of Penstock wrote them"
                );
            }
            None => {}
        }
    }
}
