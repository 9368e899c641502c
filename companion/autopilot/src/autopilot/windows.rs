//! The end of a window: demand, the averages of each variant, and the analysis.

use core::time::Duration;

use penstock_engine::Instant;
use penstock_model::analysis::analyze;
use penstock_model::slo::Source;

use super::{Autopilot, millis};
use crate::endpoint::Window;
use crate::saturation::Load;
use crate::types::Backlog;
use crate::variant::Variant;
use crate::window_stats::count;

impl Autopilot {
    /// Closes the window that began at `since`, learns from it, and begins the next one unless nothing happens.
    pub(super) fn close_window(&mut self, now: Instant, since: Instant, backlog: Backlog) {
        let length = now.since(since);
        let arrivals = core::mem::take(&mut self.arrivals);
        // The backlog should be served within the ttl, but not in less than a window: under a ttl of 1.5 s, a rate of that time
        // would count requests that arrived and expire within the window several times.
        let offered = per_second(arrivals, length) + per_second(backlog.requests, self.ttl.max(length));
        self.demand = offered.min(self.max_rate.unwrap_or(f64::INFINITY));
        let windows: Vec<Option<Window>> =
            self.endpoints.iter_mut().map(|endpoint| endpoint.close_window(length)).collect();
        let is_idle = arrivals == 0
            && backlog.requests == 0
            && self.in_flight.is_empty()
            && windows.iter().all(Option::is_none);
        for index in 0..self.variants.len() {
            let own = self.windows_of(index, now, &windows);
            let cached = self.mean_cached(index, &windows);
            self.variants[index].has_established = self.endpoints.iter().any(|endpoint| {
                endpoint.variant == index && endpoint.is_ready && !endpoint.is_young(now, self.transient)
            });
            self.variants[index].close_window(millis(now), length, &own, cached, &self.slo_policy);
            if let Some(prompt_ms) = self.variants[index].prompt_ms() {
                let endpoints = self.endpoints.iter_mut();
                endpoints
                    .filter(|endpoint| endpoint.variant == index)
                    .for_each(|endpoint| endpoint.overlap_tracker.set_prompt_ms(prompt_ms));
            }
        }
        self.saturation.record(&Load {
            offered: self.demand,
            served: self.variants.iter().map(Variant::served_rate).sum(),
            is_full: backlog.is_full && backlog.requests > 0,
        });
        self.windows_closed += 1;
        self.forget_unlisted();
        self.window_since = (!is_idle).then_some(now);
        self.analyze();
        self.update_allowances(now);
        for variant in &mut self.variants {
            if let Some(kept) = variant.take_kept(now) {
                self.learned.push((variant.name.clone(), kept));
            }
        }
        self.plan_fit(now);
    }

    /// The windows of a variant's endpoints. An endpoint that has just come up isn't representative, and counts only if the
    /// variant has no other.
    fn windows_of(&self, variant: usize, now: Instant, windows: &[Option<Window>]) -> Vec<Window> {
        let own = || {
            let all = self.endpoints.iter().zip(windows);
            all.filter(|(endpoint, _)| endpoint.variant == variant)
        };
        let established: Vec<Window> = own()
            .filter(|(endpoint, _)| !endpoint.is_young(now, self.transient))
            .filter_map(|(_, window)| *window)
            .collect();
        if established.is_empty() { own().filter_map(|(_, window)| *window).collect() } else { established }
    }

    /// Mean prompt tokens in the caches of a variant's endpoints, weighted by the rates of their windows.
    fn mean_cached(&self, variant: usize, windows: &[Option<Window>]) -> f64 {
        let own = self.endpoints.iter().zip(windows).filter(|(endpoint, _)| endpoint.variant == variant);
        let rates = own
            .filter_map(|(endpoint, window)| Some((window.as_ref()?.observed.traffic.rate, endpoint.cached)));
        let (total, sum) =
            rates.fold((0.0, 0.0), |(total, sum), (rate, cached)| (total + rate, sum + rate * cached));
        if total > 0.0 { sum / total } else { 0.0 }
    }

    /// Analyzes all variants at the present demand.
    pub(super) fn analyze(&mut self) {
        let variants: Vec<_> = (0..self.variants.len())
            .map(|index| {
                let own = self.endpoints.iter().filter(|endpoint| endpoint.variant == index);
                let measured = own.clone().filter_map(|endpoint| endpoint.search.capacity()).max();
                let own = own.map(|endpoint| endpoint.max_batch.min(measured.unwrap_or(u64::MAX)));
                let starting = self.pending_of(index).map(|pending| pending.max_batch);
                let max_batch = own.chain(starting).min().unwrap_or(1);
                let (current, pending) = self.replicas(index);
                self.variants[index].for_analysis(max_batch, current, pending)
            })
            .collect();
        let analysis = analyze(&self.slo_policy, Some(self.demand), &variants);
        if analysis.slo.source != Source::None {
            // A lull doesn't remove the targets.
            self.slo = analysis.slo;
        }
        let mut results = analysis.variants.into_iter();
        for variant in &mut self.variants {
            variant.set_analysis(results.next());
        }
    }
}

fn per_second(events: u64, length: Duration) -> f64 {
    let seconds = length.as_secs_f64();
    if seconds > 0.0 { count(events) / seconds } else { 0.0 }
}
