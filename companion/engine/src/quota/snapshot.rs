//! The usage of flows, for display and for headers.

use alloc::vec::Vec;

use super::flow::FlowQuota;
use super::window::Window;
use super::{Now, Table};
use crate::policy::{Quota, QuotaWindow};
use crate::snapshot::{FlowQuotaSnapshot, QuotaWindowSnapshot};

fn of_window(window: &Window, definition: &QuotaWindow, now: &Now<'_>) -> QuotaWindowSnapshot {
    QuotaWindowSnapshot {
        unit: definition.unit,
        period: definition.period,
        limit: window.limit(),
        used: window.used(),
        reserved: window.reserved(),
        debt: window.debt(),
        remaining: window.room(),
        resets_at: now.begins(definition.period, window.is_empty_in()),
    }
}

impl FlowQuota {
    fn windows<'a>(
        &'a self,
        quota: &'a Quota,
        now: &'a Now<'_>,
    ) -> impl Iterator<Item = QuotaWindowSnapshot> + 'a {
        let windows = self.windows.iter().zip(&quota.windows);
        windows.map(|(window, definition)| of_window(window, definition, now))
    }

    /// At this moment.
    fn snapshot(mut self, name: &str, quota: &Quota, now: &Now<'_>) -> FlowQuotaSnapshot {
        self.advance(quota, &now.moment);
        FlowQuotaSnapshot {
            flow: name.into(),
            over: quota.over,
            shadow: quota.shadow,
            windows: self.windows(quota, now).collect(),
        }
    }
}

impl Table {
    /// Every flow with an entry, in time proportional to their number.
    pub(crate) fn snapshots(&self, now: &Now<'_>) -> Vec<FlowQuotaSnapshot> {
        let flows = self.flows.iter().map(|(name, flow)| {
            let quota = self.quota(flow.quota);
            flow.clone().snapshot(name, quota, now)
        });
        let mut flows: Vec<FlowQuotaSnapshot> = flows.collect();
        flows.sort_unstable_by(|a, b| a.flow.cmp(&b.flow));
        flows
    }

    /// One flow, whether it has an entry or not. `index` is its quota.
    pub(crate) fn snapshot(&self, name: &str, index: usize, now: &Now<'_>) -> FlowQuotaSnapshot {
        let quota = self.quota(index);
        let flow = self.flows.get(name).cloned();
        flow.unwrap_or_else(|| FlowQuota::new(index, quota, 0, &now.moment)).snapshot(name, quota, now)
    }

    /// The window of the flow of which the smallest part is left; `None`: its quota, `index`, decides nothing.
    pub(crate) fn tightest_deciding(
        &mut self,
        name: &str,
        index: usize,
        now: &Now<'_>,
    ) -> Option<QuotaWindowSnapshot> {
        if self.quota(index).shadow {
            return None;
        }
        self.tightest(name, index, now)
    }

    fn tightest(&mut self, name: &str, index: usize, now: &Now<'_>) -> Option<QuotaWindowSnapshot> {
        if self.get(name, now).is_none() {
            let unused = FlowQuota::new(index, self.quota(index), 0, &now.moment);
            return tightest(unused.windows(self.quota(index), now));
        }
        let flow = self.flows.get(name)?;
        tightest(flow.windows(self.quota(flow.quota), now))
    }
}

fn tightest(windows: impl Iterator<Item = QuotaWindowSnapshot>) -> Option<QuotaWindowSnapshot> {
    // The smaller of the parts remaining / limit, compared without division.
    let left =
        |a: &QuotaWindowSnapshot, b: &QuotaWindowSnapshot| u128::from(a.remaining) * u128::from(b.limit);
    windows.reduce(
        |tightest, other| {
            if left(&other, &tightest) < left(&tightest, &other) { other } else { tightest }
        },
    )
}
