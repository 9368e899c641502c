//! What is asked: kinds of requests, mixes of them, and when they come.

use std::time::Duration;

use penstock_model::Traffic;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Requests of one kind. Sizes are log-normal around their means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kind {
    /// Its flow.
    pub name: &'static str,
    /// Mean prompt tokens; at least 1.
    pub input: f64,
    /// Mean output tokens; at least 2.
    pub output: f64,
    /// Standard deviation of the logarithm of both; 0: all are alike.
    pub spread: f64,
}

/// A mix of kinds.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// As reports call it.
    pub name: &'static str,
    /// Parts and how often each comes; the parts add up to 1.
    pub parts: Vec<(f64, Kind)>,
}

impl Mix {
    fn of(name: &'static str, input: f64, output: f64) -> Self {
        let kind = Kind {
            name,
            input,
            output,
            spread: 0.5,
        };
        Self {
            name,
            parts: vec![(1.0, kind)],
        }
    }

    /// A conversation: 512 tokens in, 128 out.
    #[must_use]
    pub fn chat() -> Self {
        Self::of("chat", 512.0, 128.0)
    }

    /// Questions about documents: 8,000 in, 150 out.
    #[must_use]
    pub fn long() -> Self {
        Self::of("long", 8_000.0, 150.0)
    }

    /// Programs: 2,000 in, 400 out.
    #[must_use]
    pub fn code() -> Self {
        Self::of("code", 2_000.0, 400.0)
    }

    /// Six of ten chat, one long, three code.
    #[must_use]
    pub fn mixed() -> Self {
        let part = |share, of: Self| (share, of.parts[0].1);
        Self {
            name: "mixed",
            parts: vec![
                part(0.6, Self::chat()),
                part(0.1, Self::long()),
                part(0.3, Self::code()),
            ],
        }
    }

    /// The same, all requests of a kind alike.
    #[must_use]
    pub fn uniform(mut self) -> Self {
        for (_, kind) in &mut self.parts {
            kind.spread = 0.0;
        }
        self
    }

    /// Its mean request; the rate is 0.
    #[must_use]
    pub fn mean(&self) -> Traffic {
        let mean = |of: fn(&Kind) -> f64| self.parts.iter().map(|(share, kind)| share * of(kind)).sum();
        Traffic {
            rate: 0.0,
            input: mean(|kind| kind.input),
            output: mean(|kind| kind.output),
        }
    }

    pub(super) fn draw(&self, rng: &mut ChaCha8Rng) -> Drawn {
        let mut lot: f64 = rng.random();
        let chosen = self.parts.iter().find(|(share, _)| {
            lot -= share;
            lot < 0.0
        });
        let kind = chosen.unwrap_or(&self.parts[0]).1;
        let sized = |mean: f64, rng: &mut ChaCha8Rng| mean * factor(rng, kind.spread);
        Drawn {
            kind: kind.name,
            input: sized(kind.input, rng).round().max(1.0) as u64,
            output: sized(kind.output, rng).round().max(2.0) as u64,
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    pub(super) kind: &'static str,
    pub(super) input: u64,
    pub(super) output: u64,
}

/// A log-normal factor of mean 1.
pub(super) fn factor(rng: &mut ChaCha8Rng, sigma: f64) -> f64 {
    if sigma == 0.0 {
        return 1.0;
    }
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
    (sigma * normal - sigma * sigma / 2.0).exp()
}

/// A time of one kind of traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// What comes.
    pub mix: Mix,
    /// Requests per second; 0: none.
    pub rate: f64,
    /// How long.
    pub lasts: Duration,
}

/// When requests come.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// Independently of each other, in phases that repeat.
    Poisson(Vec<Phase>),
    /// So many clients, each of which sends its next request when it has its answer.
    Closed {
        /// Clients.
        clients: usize,
        /// What they ask.
        mix: Mix,
    },
}

impl Arrivals {
    /// One kind of traffic for ever.
    #[must_use]
    pub fn steady(mix: Mix, rate: f64) -> Self {
        let lasts = Duration::from_secs(1 << 30);
        Self::Poisson(vec![Phase { mix, rate, lasts }])
    }
}
