//! Usage that engines tell each other: what they settle, and what they run.

use alloc::vec::Vec;
use core::time::Duration;

use crate::input::{QuotaRunning, QuotaUsage, UsedAt};
use crate::policy::{CostUnit, QuotaPeriod};
use crate::units::Tokens;

use super::flow::Amount;
use super::moment::{kept, unit};
use super::table::Settled;
use super::{Now, Table};

impl Table {
    /// A settled request as the windows of its flow count it. Another engine that adds the same counts the same.
    pub(crate) fn report(&mut self, name: &str, settled: &Settled, now: &Now<'_>) -> Vec<QuotaUsage> {
        let Some(flow) = self.get(name, now) else {
            return Vec::new();
        };
        let index = flow.quota;
        let mut reports = Vec::new();
        for window in &self.quota(index).windows {
            let dispatched = &settled.reservation.moment;
            let step = dispatched.step(window.period);
            let has_left = step.saturating_add(kept(window.period)) <= now.moment.step(window.period);
            let (amount, ago, step) = if has_left {
                let estimate = Amount::request(settled.reservation.tokens).of(window.unit);
                let excess = settled.real.of(window.unit).saturating_sub(estimate);
                (excess, Duration::ZERO, now.moment.step(window.period))
            } else {
                let ago = now.moment.at.since(dispatched.at);
                (settled.real.of(window.unit), ago, step)
            };
            if amount == 0 {
                continue;
            }
            let used_at = match unit(window.period) {
                None => UsedAt::Ago(ago),
                Some(unit) => UsedAt::Since(now.calendar.first_second(unit, step)),
            };
            reports.push(QuotaUsage {
                flow: name.into(),
                unit: window.unit,
                period: window.period,
                used_at,
                amount,
            });
        }
        reports
    }

    /// What the flow runs here that isn't settled.
    pub(crate) fn running(&self, name: &str) -> Option<QuotaRunning> {
        let running = self.flows.get(name)?.running;
        Some(QuotaRunning {
            flow: name.into(),
            tokens: Tokens(running.tokens),
            requests: running.requests,
        })
    }

    /// Adds usage that was settled elsewhere, or before. `index` is the flow's quota.
    pub(crate) fn add_used(&mut self, usage: &QuotaUsage, index: usize, now: &Now<'_>) {
        let Some((flow, quota)) = self.entry_with_quota(&usage.flow, index, now) else {
            return;
        };
        let is_same = |unit: CostUnit, period: QuotaPeriod| (unit, period) == (usage.unit, usage.period);
        let position = quota
            .windows
            .iter()
            .position(|window| is_same(window.unit, window.period));
        let Some(position) = position else {
            return;
        };
        let window = &mut flow.windows[position];
        match usage.used_at {
            UsedAt::Ago(ago) => {
                if let QuotaPeriod::Sliding(duration) = usage.period {
                    window.add_used(now.moment.step_ago(duration, ago), usage.amount);
                }
            }
            UsedAt::Since(seconds) => {
                if let Some(unit) = unit(usage.period) {
                    window.add_used(now.calendar.step_of(unit, seconds), usage.amount);
                }
            }
            UsedAt::Debt => window.add_debt(usage.amount),
        }
    }

    /// What the flow runs at other engines now. `index` is its quota.
    pub(crate) fn set_elsewhere(&mut self, running: &QuotaRunning, index: usize, now: &Now<'_>) {
        let amount = Amount {
            tokens: running.tokens.0,
            requests: running.requests,
        };
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
