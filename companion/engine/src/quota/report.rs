//! Usage that engines tell each other: what they settle, and what they run.

use alloc::vec::Vec;
use core::time::Duration;

use super::flow::Amount;
use super::moment::unit;
use super::restore::count;
use super::table::Settled;
use super::window::{Counted, StepNumber};
use super::{Now, Table};
use crate::input::{QuotaRunning, QuotaUsage, UsageKind, UsedAt};
use crate::policy::{CostUnit, QuotaPeriod, QuotaWindow};
use crate::units::Tokens;

/// `step` and `ago` are those of the same moment.
fn used_at(period: QuotaPeriod, step: StepNumber, ago: Duration, now: &Now<'_>) -> UsedAt {
    match unit(period) {
        None => UsedAt::Ago(ago),
        Some(unit) => UsedAt::Since(now.calendar.first_second(unit, step)),
    }
}

impl Table {
    /// A settled request as the windows of its flow count it. Another engine that adds the same counts the same.
    ///
    /// Of a request that has outlived a window, others count what is still filled or owed because of it: they have forgotten its step, and
    /// knew until now only that it runs.
    pub(crate) fn report(&mut self, name: &str, settled: &Settled, now: &Now<'_>) -> Vec<QuotaUsage> {
        let Some(flow) = self.get(name, now) else {
            return Vec::new();
        };
        let index = flow.quota;
        let dispatched = &settled.reservation.moment;
        let mut reports = Vec::new();
        for (window, counted) in self.quota(index).windows.iter().zip(&settled.counted) {
            let mut report = |step: StepNumber, ago: Duration, amount: u64| {
                reports.push(QuotaUsage {
                    flow: name.into(),
                    unit: window.unit,
                    period: window.period,
                    kind: UsageKind::Used,
                    used_at: used_at(window.period, step, ago, now),
                    settled_ago: Duration::ZERO,
                    amount,
                });
            };
            match counted {
                Counted::AtDispatch => {
                    let (step, real) = (dispatched.step(window.period), settled.real.of(window.unit));
                    if real > 0 {
                        report(step, now.moment.at.since(dispatched.at), real);
                    }
                }
                Counted::Later(steps) => {
                    for &(step, amount) in steps {
                        report(step, now.since_end(window.period, step), amount);
                    }
                }
            }
        }
        reports
    }

    /// What the flow runs here that isn't settled.
    pub(crate) fn running(&self, name: &str) -> Option<QuotaRunning> {
        let running = self.flows.get(name)?.running;
        Some(QuotaRunning { flow: name.into(), tokens: Tokens(running.tokens), requests: running.requests })
    }

    /// A top-up of now as the windows of a flow count it. `index` is its quota.
    pub(crate) fn report_top_up(
        &self,
        name: &str,
        index: usize,
        tokens: u64,
        now: &Now<'_>,
    ) -> Vec<QuotaUsage> {
        let of_tokens = |window: &&QuotaWindow| window.unit == CostUnit::Tokens;
        let windows = self.quota(index).windows.iter().filter(of_tokens);
        let reports = windows.map(|window| QuotaUsage {
            flow: name.into(),
            unit: window.unit,
            period: window.period,
            kind: UsageKind::ToppedUp,
            used_at: used_at(window.period, now.moment.step(window.period), Duration::ZERO, now),
            settled_ago: Duration::ZERO,
            amount: tokens,
        });
        reports.collect()
    }

    /// Adds usage that was settled elsewhere, or before, or a top-up there. `index` is the flow's quota.
    pub(crate) fn add_used(&mut self, usage: &QuotaUsage, index: usize, now: &Now<'_>) {
        if self.is_forgotten(usage, now) {
            return;
        }
        let Some((flow, quota)) = self.entry_with_quota(&usage.flow, index, now) else {
            return;
        };
        let is_same = |window: &QuotaWindow| (window.unit, window.period) == (usage.unit, usage.period);
        let Some(position) = quota.windows.iter().position(is_same) else {
            return;
        };
        let window = &mut flow.windows[position];
        match now.step_of(usage) {
            Some(step) => count(window, step, usage),
            None if usage.used_at == UsedAt::Debt => window.add_debt(usage.amount),
            None => {}
        }
    }

    /// What the flow runs at other engines now. `index` is its quota.
    pub(crate) fn set_elsewhere(&mut self, running: &QuotaRunning, index: usize, now: &Now<'_>) {
        let amount = Amount { tokens: running.tokens.0, requests: running.requests };
        if amount == Amount::default() && !self.flows.contains_key(&running.flow) {
            return;
        }
        if let Some((flow, quota)) = self.entry_with_quota(&running.flow, index, now) {
            for (window, definition) in flow.windows.iter_mut().zip(&quota.windows) {
                window.set_elsewhere(amount.of(definition.unit));
            }
        }
    }
}
