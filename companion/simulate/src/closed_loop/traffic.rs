//! Traffic: kinds of requests, mixes of kinds, and arrival processes.

use std::sync::Arc;
use std::time::Duration;

use penstock_engine::input::Band;
use penstock_model::Traffic;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Requests of one kind. Sizes are log-normal around their means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestKind {
    /// The name, which is also the requests' flow.
    pub name: &'static str,
    /// Mean prompt tokens; at least 1.
    pub input: f64,
    /// Mean output tokens; at least 2.
    pub output: f64,
    /// Standard deviation of the logarithm of both; with 0 all requests have the same size.
    pub spread: f64,
}

/// A mix of kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// The name in reports.
    pub name: &'static str,
    /// Kinds and their shares of the requests; the shares add up to 1.
    pub parts: Vec<(f64, RequestKind)>,
}

impl Mix {
    fn single(name: &'static str, input: f64, output: f64) -> Self {
        let kind = RequestKind { name, input, output, spread: 0.5 };
        Self { name, parts: vec![(1.0, kind)] }
    }

    /// Conversations: 512 prompt tokens, 128 output tokens.
    #[must_use]
    pub fn chat() -> Self {
        Self::single("chat", 512.0, 128.0)
    }

    /// Questions about documents: 8,000 prompt tokens, 150 output tokens.
    #[must_use]
    pub fn long() -> Self {
        Self::single("long", 8_000.0, 150.0)
    }

    /// Programs: 2,000 prompt tokens, 400 output tokens.
    #[must_use]
    pub fn code() -> Self {
        Self::single("code", 2_000.0, 400.0)
    }

    /// 60 % chat, 10 % long, 30 % code.
    #[must_use]
    pub fn mixed() -> Self {
        let part = |share, mix: Self| (share, mix.parts[0].1);
        Self {
            name: "mixed",
            parts: vec![part(0.6, Self::chat()), part(0.1, Self::long()), part(0.3, Self::code())],
        }
    }

    /// This mix with requests of one size per kind.
    #[must_use]
    pub fn uniform(mut self) -> Self {
        for (_, kind) in &mut self.parts {
            kind.spread = 0.0;
        }
        self
    }

    /// The mean request; the rate is 0.
    #[must_use]
    pub fn mean(&self) -> Traffic {
        let mean =
            |size: fn(&RequestKind) -> f64| self.parts.iter().map(|(share, kind)| share * size(kind)).sum();
        Traffic { rate: 0.0, input: mean(|kind| kind.input), output: mean(|kind| kind.output) }
    }

    pub(crate) fn draw(&self, rng: &mut ChaCha8Rng) -> Drawn {
        let mut rest: f64 = rng.random();
        let chosen = self.parts.iter().find(|(share, _)| {
            rest -= share;
            rest < 0.0
        });
        let kind = chosen.unwrap_or(&self.parts[0]).1;
        let sized = |mean: f64, rng: &mut ChaCha8Rng| mean * factor(rng, kind.spread);
        Drawn {
            kind: kind.name.into(),
            flow: kind.name.into(),
            band: Band::Default,
            input: sized(kind.input, rng).round().max(1.0) as u64,
            output: sized(kind.output, rng).round().max(2.0) as u64,
        }
    }
}

/// The kind and sizes of one request.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) kind: Arc<str>,
    pub(crate) flow: Arc<str>,
    pub(crate) band: Band,
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// A random log-normal factor with mean 1.
pub(super) fn factor(rng: &mut ChaCha8Rng, sigma: f64) -> f64 {
    if sigma == 0.0 {
        return 1.0;
    }
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    (sigma * normal - sigma * sigma / 2.0).exp()
}

/// A period of constant traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The mix of requests.
    pub mix: Mix,
    /// Requests per second; 0 for none.
    pub rate: f64,
    /// Length of the period.
    pub duration: Duration,
}

/// A tenant of listed requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// The tenant's name, under which the results count its requests.
    pub name: Arc<str>,
    /// The flow of its requests in the engine.
    pub flow: Arc<str>,
    /// The band of its requests.
    pub band: Band,
}

/// A request whose arrival and sizes are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The request's arrival, from the start of the run.
    pub at: Duration,
    /// The index of its tenant.
    pub tenant: u32,
    /// Prompt tokens; at least 1.
    pub input: u64,
    /// Output tokens; at least 1.
    pub output: u64,
}

/// How requests arrive.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// As listed. The run ends when all have ended.
    Listed {
        /// In order of their arrivals.
        requests: Arc<[Planned]>,
        /// Their tenants, to which the requests refer by index.
        tenants: Arc<[Tenant]>,
    },
    /// As a Poisson process. The phases repeat.
    Poisson(Vec<Phase>),
    /// From clients that each send the next request when the previous one is answered.
    Closed {
        /// Number of clients.
        clients: usize,
        /// The mix of requests.
        mix: Mix,
    },
}

impl Arrivals {
    /// A Poisson process of constant rate.
    #[must_use]
    pub fn steady(mix: Mix, rate: f64) -> Self {
        let duration = Duration::from_secs(1 << 30);
        Self::Poisson(vec![Phase { mix, rate, duration }])
    }
}
