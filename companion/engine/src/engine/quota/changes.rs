//! Changes of quotas that no request of this engine makes: by hand, at other engines, and before the start.

use alloc::vec::Vec;

use super::super::Engine;
use super::named;
use crate::effect::{Effect, QuotaReport};
use crate::input::{QuotaReset, QuotaRunning, QuotaUsage};
use crate::units::Tokens;

impl Engine {
    pub(in crate::engine) fn add_quota_usage(
        &mut self,
        settled: Vec<QuotaUsage>,
        running: Vec<QuotaRunning>,
    ) {
        for mut usage in settled {
            usage.flow = named(&usage.flow).into();
            if let Some(index) = self.policy.flows.quota_of(&usage.flow)
                && let Some((table, now)) = self.quotas.table()
            {
                table.add_used(&usage, index, &now);
                self.update_hold_of(&usage.flow);
            }
        }
        for mut running in running {
            running.flow = named(&running.flow).into();
            if let Some(index) = self.policy.flows.quota_of(&running.flow)
                && let Some((table, now)) = self.quotas.table()
            {
                table.set_elsewhere(&running, index, &now);
                self.update_hold_of(&running.flow);
            }
        }
    }

    pub(in crate::engine) fn replay_quotas(&mut self, mut past: Vec<QuotaUsage>) {
        for usage in &mut past {
            usage.flow = named(&usage.flow).into();
        }
        if let Some((table, now)) = self.quotas.read() {
            past.retain(|usage| !table.is_forgotten(usage, &now));
        }
        past.sort_by(|a, b| a.flow.cmp(&b.flow));
        for past in past.chunk_by(|a, b| a.flow == b.flow) {
            if let Some(first) = past.first()
                && let Some(index) = self.policy.flows.quota_of(&first.flow)
                && let Some((table, now)) = self.quotas.table()
            {
                table.replay(&first.flow, index, past, &now);
                self.update_hold_of(&first.flow);
            }
        }
    }

    pub(in crate::engine) fn apply_quota_resets(&mut self, resets: Vec<QuotaReset>) {
        for reset in resets {
            let name = named(&reset.flow);
            if self.policy.flows.quota_of(name).is_some()
                && let Some((table, now)) = self.quotas.table()
                && table.reset_elsewhere(name, reset.ago, &now)
            {
                self.report_reset(QuotaReport::Forgotten(name.into()), name);
            }
        }
    }

    pub(in crate::engine) fn top_up(&mut self, flow: &str, tokens: Tokens) {
        let name = named(flow);
        let Some(index) = self.policy.flows.quota_of(name) else {
            return;
        };
        let Some((table, now)) = self.quotas.table() else {
            return;
        };
        table.top_up(name, index, tokens.0, &now);
        if self.reports_quotas {
            let reports = table.report_top_up(name, index, tokens.0, &now).into_iter();
            self.effects.extend(reports.map(|report| Effect::Quota(QuotaReport::Used(report))));
        }
        self.update_hold_of(name);
    }

    pub(in crate::engine) fn reset_quota(&mut self, flow: &str) {
        let name = named(flow);
        if self.policy.flows.quota_of(name).is_some()
            && let Some((table, now)) = self.quotas.table()
        {
            table.reset(name, &now);
            self.report_reset(QuotaReport::Reset(name.into()), name);
        }
    }

    /// Nothing of the flow's quota is used any more, and nothing that runs is reserved.
    fn report_reset(&mut self, report: QuotaReport, name: &str) {
        if self.reports_quotas {
            self.effects.push_back(Effect::Quota(report));
        }
        if let Some(flow) = self.tree.flow_named(name) {
            self.report_quota_running(flow);
        }
        self.update_hold_of(name);
    }
}
