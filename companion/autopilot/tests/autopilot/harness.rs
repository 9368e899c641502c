//! The harness: endpoints of known parameters, which serve requests in rounds with the times that the model predicts.

use std::time::Duration;

use penstock_autopilot::{
    Autopilot, AutopilotEndpoint, AutopilotSettings, Backlog, ExpectedUsage, Kept, Served, VariantStatus,
};
use penstock_engine::input::{EndpointId, Input};
use penstock_engine::policy::ExtraPlaces;
use penstock_engine::{Allowance, Instant, RequestId};
use penstock_model::Parameters;
use penstock_model::slo::Policy;

pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Computed tokens of a prompt; the rest is in the server's cache. They are so few that they hardly delay decoding.
pub(crate) const COMPUTED: u64 = 4;
pub(crate) const TRUE: Parameters = Parameters { alpha_ms: 8.0, beta_ms: 0.5, gamma_ms: 0.001 };

/// An autopilot, a clock, and the autopilot's allowances.
pub(crate) struct World {
    pub(crate) autopilot: Autopilot,
    pub(crate) now: Instant,
    pub(crate) backlog: u64,
    /// By the endpoint's number.
    pub(crate) allowances: Vec<Option<Allowance>>,
    next: u64,
}

pub(crate) fn settings(variants: &[&str]) -> AutopilotSettings {
    let endpoint = |(id, variant): (u32, &&str)| AutopilotEndpoint {
        id: EndpointId(id),
        variant: (*variant).into(),
        max_batch: 256,
        bound_initial: 8,
    };
    AutopilotSettings {
        endpoints: (0..).zip(variants).map(endpoint).collect(),
        pending: Vec::new(),
        slo: Policy { multiplier: Some(3.0), explicit: None },
        gates: true,
        extra_places: ExtraPlaces::NONE,
        ttl: Duration::from_secs(30),
        window: WINDOW,
        transient: Duration::from_secs(120),
        kept: Vec::new(),
    }
}

/// [`settings`] with parameters that are known from the start.
pub(crate) fn sure(variants: &[&str]) -> AutopilotSettings {
    let mut settings = settings(variants);
    settings.kept = variants.iter().map(|variant| ((*variant).into(), known())).collect();
    settings
}

/// Stored parameters.
pub(crate) const fn known() -> Kept {
    Kept { parameters: TRUE, ttft_bias: 1.0 }
}

impl World {
    pub(crate) fn new(settings: AutopilotSettings) -> Self {
        let endpoints = settings.endpoints.len();
        let mut world = Self {
            autopilot: Autopilot::new(settings, Instant::ZERO),
            now: Instant::ZERO,
            backlog: 0,
            allowances: vec![None; endpoints],
            next: 0,
        };
        world.hear();
        world
    }

    fn hear(&mut self) {
        while let Some(input) = self.autopilot.poll_input() {
            let Input::Allowance { id, allowance } = input else {
                panic!("{input:?}");
            };
            self.allowances[usize::try_from(id.0).expect("small")] = allowance;
        }
    }

    /// Lets time pass, with all windows on the way.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let until = self.now.after(duration);
        while let Some(due) = self.autopilot.poll_timeout().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            let backlog = Backlog { requests: self.backlog, is_full: self.backlog > 0 };
            self.autopilot.handle_timeout(self.now, backlog);
            self.hear();
        }
        self.now = until;
    }

    /// Lets the window that runs end.
    pub(crate) fn close(&mut self) {
        let due = self.autopilot.poll_timeout().expect("a window runs");
        self.pass(due.since(self.now));
    }

    pub(crate) fn name(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    pub(crate) fn grant(&mut self, endpoint: u32, prompt: u64, output: u64) -> RequestId {
        let id = self.name();
        self.autopilot.arrived(self.now);
        let granted = ExpectedUsage {
            endpoint: EndpointId(endpoint),
            prompt,
            cached: prompt - COMPUTED,
            output,
            sequences: 1,
            is_streamed: true,
            is_extra: false,
        };
        self.autopilot.granted(self.now, id, granted);
        id
    }

    /// `n` requests of that size at once, from their grants to their ends.
    pub(crate) fn round(&mut self, endpoint: u32, truth: &Parameters, n: u64, prompt: u64, output: u64) {
        let ids: Vec<RequestId> = (0..n).map(|_| self.grant(endpoint, prompt, output)).collect();
        let served = times(truth, n, prompt, output);
        self.pass(served.last.expect("it has ended"));
        for id in ids {
            self.autopilot.served(self.now, id, served);
        }
    }

    /// Rounds of several loads until so many requests were served.
    pub(crate) fn traffic(&mut self, endpoint: u32, truth: &Parameters, requests: u64) {
        let mut left = requests;
        for round in 0.. {
            let n = (1 + round * 5 % 11).min(left);
            self.round(endpoint, truth, n, 100 + round * 331 % 900, 40 + round * 17 % 60);
            left -= n;
            if left == 0 {
                return;
            }
        }
    }

    pub(crate) fn variant(&self, name: &str) -> VariantStatus {
        let status = self.autopilot.status();
        let found = status.variants.into_iter().find(|variant| variant.name == name);
        found.expect("the settings name it")
    }
}

/// The result of each of `n` requests that run together: their prompts in one iteration, then their decodes.
pub(crate) fn times(truth: &Parameters, n: u64, prompt: u64, output: u64) -> Served {
    let [n, i, o] = [n, prompt, output].map(|count| f64::from(u32::try_from(count).expect("small")));
    let ms = |millis: f64| Duration::from_nanos((millis * 1e6) as u64);
    let computed = f64::from(u32::try_from(COMPUTED).expect("small"));
    let prefill_ms = truth.alpha_ms + truth.beta_ms * n * computed + truth.gamma_ms * n * i;
    let itl_ms = truth.alpha_ms + truth.beta_ms * n + truth.gamma_ms * n * (i + o / 2.0);
    Served {
        first: Some(ms(prefill_ms)),
        last: Some(ms(prefill_ms + itl_ms * (o - 1.0))),
        streamed: true,
        prompt: Some(prompt),
        cached: Some(prompt - COMPUTED),
        output: Some(output),
    }
}

/// The desired replicas of a variant, from whatever source.
pub(crate) fn replicas(variant: &VariantStatus) -> Option<u64> {
    variant.desired.map(|desired| desired.replicas)
}

pub(crate) fn near(value: f64, truth: f64, within: f64) -> bool {
    (value - truth).abs() <= within * truth.abs()
}
