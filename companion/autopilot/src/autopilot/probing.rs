//! What endpoints are told to take: budgets by what is known, and other loads than that to know more.
//!
//! A gate that only follows what was learned sees one load, and what one load can't tell apart is forgotten. So one
//! endpoint at a time is probed, and those of which nothing is known yet are explored.

use core::time::Duration;

use penstock_engine::input::Input;
use penstock_engine::{Budget, Instant};
use penstock_model::workload::Observed;

use super::{Autopilot, millis};
use crate::budgets::{self, Gauge, Limits};
use crate::server::Server;

/// One endpoint in one window of so many runs at half of what it may, so that more than one load is seen.
const PROBED_EVERY: u64 = 10;
/// The same, at a quarter, while what was known of a variant is in doubt.
const PROBED_EVERY_UNSURE: u64 = 3;
/// What is seen of a load is what requests saw that lived under it: those windows are so many lives long,
const LIVES: f64 = 2.0;
/// and at least one window, and no more than this.
const PROBED_MAX: u64 = 12;
/// While nothing is known of a variant it is explored: so often in a window its endpoints change between all and a
/// quarter of what was there, and what was seen is fitted,
const EXPLORED_PER_WINDOW: u32 = 4;
/// but they change no more often than this in all: what so many changes don't tell won't be told by more.
const EXPLORED_MAX: u32 = 40;

impl Autopilot {
    /// Nothing is known of this endpoint's variant, and there is more to try.
    pub(crate) fn is_explored(&self, server: &Server) -> bool {
        self.gates
            && server.listed
            && self.explored < EXPLORED_MAX
            && self.variants[server.variant].parameters().is_none()
    }

    pub(crate) fn plan_exploring(&mut self, now: Instant) {
        let explores = self.window_since.is_some() && self.servers.iter().any(|it| self.is_explored(it));
        self.explores_at = explores.then(|| now.after(self.window / EXPLORED_PER_WINDOW));
    }

    /// Fits variants of which nothing is known, inside a window, and changes the load of their endpoints.
    pub(crate) fn explore(&mut self, now: Instant, since: Instant) {
        for number in 0..self.variants.len() {
            if self.variants[number].parameters().is_some() {
                continue;
            }
            let own = self.servers.iter().filter(|it| it.variant == number);
            let so_far: Vec<Observed> = own.filter_map(|it| it.so_far(now.since(since))).collect();
            self.variants[number].explore(millis(now), &so_far, &self.slo_policy);
        }
        self.flip(now);
        self.steer();
        self.plan_exploring(now);
    }

    /// Lets endpoints that are explored change their load, when what came under the last one has had its time.
    pub(crate) fn flip(&mut self, now: Instant) {
        if now.since(self.flipped_at) >= self.lasting(|it| self.is_explored(it)) {
            let explores = self.servers.iter().any(|it| self.is_explored(it));
            self.explored = self.explored.saturating_add(u32::from(explores));
            self.flips = self.flips.wrapping_add(1);
            self.flipped_at = now;
        }
    }

    /// How long the requests of these endpoints last.
    fn lasting(&self, of: impl Fn(&Server) -> bool) -> Duration {
        let own = self.servers.iter().filter(|it| of(it));
        let each = own.map(|it| self.variants[it.variant].lasting());
        each.max().unwrap_or_default()
    }

    /// What the targets allow; `None`: there are none that the gate may go by.
    fn limits(&self) -> Option<Limits> {
        if let Some(targets) = &self.slo_policy.explicit {
            return Some(Limits::explicit(targets));
        }
        let alphas = self
            .variants
            .iter()
            .filter_map(|it| it.parameters())
            .map(|it| it.alpha_ms);
        let greatest_ms = alphas.reduce(f64::max)?;
        Some(Limits::inferred(greatest_ms * self.slo_policy.multiplier))
    }

    /// Says every endpoint's budget where that has changed.
    pub(crate) fn steer(&mut self) {
        let limits = self.limits();
        let probed = self.probed();
        for number in 0..self.servers.len() {
            let budget = self.budget(number, limits, probed == Some(number) || self.explores(number));
            let server = &mut self.servers[number];
            if server.listed && server.budget != budget {
                server.budget = budget;
                self.inputs.push_back(Input::Budget {
                    id: server.id,
                    budget,
                });
            }
        }
    }

    /// The endpoint that is probed in the window that begins; without one, nobody: what comes after a lull finds all
    /// that there is.
    fn probed(&self) -> Option<usize> {
        if !self.gates || self.window_since.is_none() {
            return None;
        }
        let busy = || {
            let all = self.servers.iter().enumerate();
            all.filter(|(_, it)| it.ready && it.observed.is_some() && !self.is_explored(it))
        };
        let in_doubt = |server: &Server| {
            let variant = &self.variants[server.variant];
            variant.parameters().is_some() && !variant.is_sure()
        };
        let unsure: Vec<usize> = busy()
            .filter(|(_, it)| in_doubt(it))
            .map(|(number, _)| number)
            .collect();
        let (of, every) = if unsure.is_empty() {
            (busy().map(|(number, _)| number).collect(), PROBED_EVERY)
        } else {
            (unsure, PROBED_EVERY_UNSURE)
        };
        let turn = self.turn / self.probe_windows(&of);
        if of.is_empty() || !turn.is_multiple_of(every) {
            return None;
        }
        let turn = usize::try_from(turn / every).unwrap_or(0);
        of.get(turn % of.len()).copied()
    }

    /// How many windows an endpoint is probed for, so that requests live under that load and no other.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "of a float as saturates, and not a number is 0; what is asked for is from 1 to PROBED_MAX"
    )]
    fn probe_windows(&self, servers: &[usize]) -> u64 {
        let life_ms = servers
            .iter()
            .filter_map(|number| self.servers[*number].observed)
            .map(|seen| seen.ttft_ms + seen.itl_ms * seen.traffic.output)
            .fold(0.0, f64::max);
        let window_ms = self.window.as_secs_f64() * 1_000.0;
        ((LIVES * life_ms / window_ms).round() as u64).clamp(1, PROBED_MAX)
    }

    /// This endpoint is explored, and it is its turn to have less.
    fn explores(&self, number: usize) -> bool {
        self.window_since.is_some()
            && self.is_explored(&self.servers[number])
            && self.flips.wrapping_add(number) % 2 == 1
    }

    fn budget(&self, number: usize, limits: Option<Limits>, probed: bool) -> Option<Budget> {
        let server = &self.servers[number];
        let variant = &self.variants[server.variant];
        match (variant.parameters(), limits) {
            (Some(parameters), Some(limits)) => {
                let gauge = Gauge {
                    parameters,
                    ttft_bias: variant.ttft_bias(),
                    traffic: variant.traffic(),
                    cached: variant.cached(),
                    limits,
                    max_batch: server.max_batch,
                    kv_tokens: server.kv_tokens,
                    probed_by: if probed { variant.probed_by() } else { 1 },
                };
                Some(gauge.budget())
            }
            (None, _) | (_, None) => {
                let peak = server.peak();
                (probed && peak > 1).then(|| budgets::count_only(peak / 4))
            }
        }
    }
}
