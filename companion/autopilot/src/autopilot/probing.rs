//! Allowances of the endpoints, and other loads than the allowances allow, to learn more.
//!
//! A gate that only follows the learned parameters sees one load, and parameters that one load can't tell apart are forgotten. So
//! one endpoint at a time is *probed*: it gets less load for a window. Endpoints of a variant without known parameters are
//! *explored*: their load changes several times in a window.

use core::time::Duration;

use penstock_engine::input::Input;
use penstock_engine::{Allowance, Instant};
use penstock_model::workload::Observed;

use super::{Autopilot, millis};
use crate::allowances::{self, AllowanceInputs, Limits};
use crate::endpoint::Endpoint;

/// One endpoint in one of so many windows is probed.
const PROBED_EVERY: u64 = 10;
/// [`PROBED_EVERY`] while the parameters of a variant are in doubt.
const PROBED_EVERY_UNSURE: u64 = 3;
/// An endpoint is probed for so many times the duration of its requests, because requests show the load under which they ran,
const LIVES: f64 = 2.0;
/// for at least one window, and for no more windows than this.
const PROBED_MAX: u64 = 12;
/// How often in a window explored endpoints may change between their full load and a quarter of it.
const EXPLORED_PER_WINDOW: u32 = 4;
/// How often explored endpoints change their load in all. If so many changes don't identify the parameters, more won't.
const EXPLORED_MAX: u32 = 40;

#[derive(Debug)]
pub(super) struct Exploration {
    /// When explored endpoints may change their load next; `None` if no endpoint is explored.
    pub(super) next_at: Option<Instant>,
    /// Changes so far.
    changes: u32,
    /// An even and an odd phase give less load to different endpoints.
    phase: usize,
    changed_at: Instant,
}

impl Exploration {
    pub(super) const fn new(now: Instant) -> Self {
        Self { next_at: None, changes: 0, phase: 0, changed_at: now }
    }
}

impl Autopilot {
    /// The parameters of this endpoint's variant aren't known, and there are changes of load left to try.
    fn is_explored(&self, endpoint: &Endpoint) -> bool {
        self.gates
            && endpoint.is_listed
            && self.exploration.changes < EXPLORED_MAX
            && self.variants[endpoint.variant].parameters().is_none()
    }

    pub(super) fn plan_exploration(&mut self, now: Instant) {
        let is_any_explored = self.endpoints.iter().any(|endpoint| self.is_explored(endpoint));
        let explores = self.window_since.is_some() && is_any_explored;
        self.exploration.next_at = explores.then(|| now.after(self.window / EXPLORED_PER_WINDOW));
    }

    /// Inside a window: fits variants without known parameters, and changes the load of their endpoints.
    pub(super) fn explore(&mut self, now: Instant, since: Instant) {
        for index in 0..self.variants.len() {
            if self.variants[index].parameters().is_some() {
                continue;
            }
            let own = self.endpoints.iter().filter(|endpoint| endpoint.variant == index);
            let so_far: Vec<Observed> =
                own.filter_map(|endpoint| endpoint.window_so_far(now.since(since))).collect();
            self.variants[index].explore(millis(now), &so_far, &self.slo_policy);
        }
        self.alternate_load(now);
        self.update_allowances();
        self.plan_exploration(now);
    }

    /// Changes the load of explored endpoints, once the requests under the present load have had time to end.
    pub(super) fn alternate_load(&mut self, now: Instant) {
        let explored = || self.endpoints.iter().filter(|endpoint| self.is_explored(endpoint));
        let durations = explored().map(|endpoint| self.variants[endpoint.variant].decode_duration());
        let longest: Duration = durations.max().unwrap_or_default();
        if now.since(self.exploration.changed_at) < longest {
            return;
        }
        let is_any_explored = explored().next().is_some();
        let exploration = &mut self.exploration;
        exploration.changes = exploration.changes.saturating_add(u32::from(is_any_explored));
        exploration.phase = exploration.phase.wrapping_add(1);
        exploration.changed_at = now;
    }

    /// The limits that the targets set; `None` if the gate has no targets.
    fn limits(&self) -> Option<Limits> {
        if let Some(targets) = &self.slo_policy.explicit {
            return Some(Limits::explicit(targets));
        }
        let known = self.variants.iter().filter_map(crate::variant::Variant::parameters);
        let greatest_ms = known.map(|parameters| parameters.alpha_ms).reduce(f64::max)?;
        Some(Limits::inferred(greatest_ms * self.slo_policy.multiplier))
    }

    /// Outputs the allowance of every endpoint where it has changed.
    pub(super) fn update_allowances(&mut self) {
        let limits = self.limits();
        let probed = self.probed();
        for index in 0..self.endpoints.len() {
            let has_less = probed == Some(index) || self.has_less_load(index);
            let allowance = self.allowance(index, limits, has_less);
            let endpoint = &mut self.endpoints[index];
            if endpoint.is_listed && endpoint.allowance != allowance {
                endpoint.allowance = allowance;
                self.inputs.push_back(Input::Allowance { id: endpoint.id, allowance });
            }
        }
    }

    /// The index of the endpoint that is probed in the window that begins. After a lull no endpoint is probed, so that the
    /// first requests find the whole capacity.
    fn probed(&self) -> Option<usize> {
        if !self.gates || self.window_since.is_none() {
            return None;
        }
        let busy = || {
            let all = self.endpoints.iter().enumerate();
            all.filter(|(_, endpoint)| {
                endpoint.is_ready && endpoint.observed.is_some() && !self.is_explored(endpoint)
            })
        };
        let is_in_doubt = |endpoint: &Endpoint| {
            let variant = &self.variants[endpoint.variant];
            variant.parameters().is_some() && !variant.is_sure()
        };
        let unsure: Vec<usize> =
            busy().filter(|(_, endpoint)| is_in_doubt(endpoint)).map(|(index, _)| index).collect();
        let (candidates, every) = if unsure.is_empty() {
            (busy().map(|(index, _)| index).collect(), PROBED_EVERY)
        } else {
            (unsure, PROBED_EVERY_UNSURE)
        };
        let turn = self.windows_closed / self.probe_windows(&candidates);
        if candidates.is_empty() || !turn.is_multiple_of(every) {
            return None;
        }
        let turn = usize::try_from(turn / every).unwrap_or(0);
        candidates.get(turn % candidates.len()).copied()
    }

    /// How many windows an endpoint is probed for, so that requests run under that load from their start to their end.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float saturates, and not a number becomes 0; the result is clamped from 1 to PROBED_MAX"
    )]
    fn probe_windows(&self, candidates: &[usize]) -> u64 {
        let duration_ms = candidates
            .iter()
            .filter_map(|index| self.endpoints[*index].observed)
            .map(|observed| observed.ttft_ms + observed.itl_ms * observed.traffic.output)
            .fold(0.0, f64::max);
        let window_ms = self.window.as_secs_f64() * 1_000.0;
        ((LIVES * duration_ms / window_ms).round() as u64).clamp(1, PROBED_MAX)
    }

    /// This endpoint is explored, and has less load in the present phase.
    fn has_less_load(&self, index: usize) -> bool {
        self.window_since.is_some()
            && self.is_explored(&self.endpoints[index])
            && self.exploration.phase.wrapping_add(index) % 2 == 1
    }

    /// The allowance of an endpoint; `None` if nothing is known of it.
    fn allowance(&self, index: usize, limits: Option<Limits>, has_less: bool) -> Option<Allowance> {
        let endpoint = &self.endpoints[index];
        let variant = &self.variants[endpoint.variant];
        match (variant.parameters(), limits) {
            (Some(parameters), Some(limits)) => {
                let inputs = AllowanceInputs {
                    parameters,
                    ttft_bias: variant.ttft_bias(),
                    traffic: variant.traffic(),
                    cached: variant.cached(),
                    limits,
                    max_batch: endpoint.max_batch,
                    kv_tokens: endpoint.kv_tokens,
                    divisor: if has_less { variant.probe_divisor() } else { 1 },
                };
                Some(inputs.allowance())
            }
            (None, _) | (_, None) => {
                let peak = endpoint.peak();
                (has_less && peak > 1).then(|| allowances::requests_only(peak / 4))
            }
        }
    }
}
