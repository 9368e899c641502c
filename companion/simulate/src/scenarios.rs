//! Made-up traffic in proportion to the capacity of the servers, where there is no trace.
//!
//! | scenario | traffic |
//! |---|---|
//! | `steady` | four equal tenants with chats at 80 % of the capacity |
//! | `burst` | the same at 50 %, and at 300 % for 10 s of each minute |
//! | `alternate` | four equal tenants; a minute of chats and a minute of long prompts in turn, each at 90 % of its own capacity |
//! | `greedy` | one tenant with chats at 150 % of the capacity, and nine tenants with 5 % each |
//!
//! Arrivals are a Poisson process; sizes are log-normal. The capacity is that of the closed form within the targets.

use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::closed_loop::{Mix, Planned};
use crate::limits::REQUESTS_MAX;

/// A kind of made-up traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Constant traffic below the capacity.
    Steady,
    /// Short bursts far above the capacity.
    Burst,
    /// Short and long prompts in turn.
    Alternate,
    /// One tenant with more traffic than the capacity, beside small ones.
    Greedy,
}

/// How the rate changes over time: the part of a minute, and the load in it as a part of the capacity.
type Schedule = &'static [(Duration, f64)];

/// The traffic of one tenant.
struct Source {
    tenant: u32,
    mix: Mix,
    schedule: Schedule,
    /// The tenant's part of the schedule's load.
    share: f64,
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const STEADY: Schedule = &[(secs(60), 0.8)];
const BURST: Schedule = &[(secs(10), 3.0), (secs(50), 0.5)];
const FIRST_MINUTE: Schedule = &[(secs(60), 0.9), (secs(60), 0.0)];
const SECOND_MINUTE: Schedule = &[(secs(60), 0.0), (secs(60), 0.9)];
const WHOLE: Schedule = &[(secs(60), 1.0)];

/// Made-up requests of some tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// In order of their arrivals.
    pub requests: Vec<Planned>,
    /// The names of the tenants.
    pub tenants: Vec<Arc<str>>,
}

/// The traffic would have more than [`REQUESTS_MAX`] requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scenario has more than {REQUESTS_MAX} requests; shorten it, or lower the load")]
pub struct TooMany;

/// The traffic of a scenario. `capacity` is that of all servers for a mix, in requests per second; `scale` multiplies the rate.
///
/// # Errors
/// The traffic has too many requests.
pub fn traffic(
    kind: Kind,
    duration: Duration,
    scale: f64,
    seed: u64,
    capacity: impl Fn(&Mix) -> f64,
) -> Result<Traffic, TooMany> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut requests = Vec::new();
    let (tenants, sources) = sources(kind);
    for source in sources {
        let full = capacity(&source.mix) * source.share * scale;
        source.arrive(duration, full, &mut rng, &mut requests)?;
    }
    requests.sort_by_key(|request| (request.at, request.tenant));
    Ok(Traffic { requests, tenants })
}

/// The names of a scenario's tenants, and their traffic.
fn sources(kind: Kind) -> (Vec<Arc<str>>, Vec<Source>) {
    let source =
        |tenant: u32, mix: Mix, schedule: Schedule, share: f64| Source { tenant, mix, schedule, share };
    let four = |mix: fn() -> Mix, schedule: Schedule| {
        let sources = (0..4).map(|tenant| source(tenant, mix(), schedule, 0.25));
        sources.collect::<Vec<_>>()
    };
    let named = ["t1", "t2", "t3", "t4"].map(Arc::from).to_vec();
    match kind {
        Kind::Steady => (named, four(Mix::chat, STEADY)),
        Kind::Burst => (named, four(Mix::chat, BURST)),
        Kind::Alternate => {
            let mut sources = four(Mix::chat, FIRST_MINUTE);
            sources.extend(four(Mix::long, SECOND_MINUTE));
            (named, sources)
        }
        Kind::Greedy => {
            let small = (1..=9).map(|tenant| source(tenant, Mix::chat(), WHOLE, 0.05));
            let mut sources = vec![source(0, Mix::chat(), WHOLE, 1.5)];
            sources.extend(small);
            let names = (1..=9).map(|index| format!("small-{index}").into());
            (std::iter::once("greedy".into()).chain(names).collect(), sources)
        }
    }
}

impl Source {
    /// Draws the arrivals up to `duration`. `full`: the rate at a load of 1.
    fn arrive(
        &self,
        duration: Duration,
        full: f64,
        rng: &mut ChaCha8Rng,
        requests: &mut Vec<Planned>,
    ) -> Result<(), TooMany> {
        let mut begin = Duration::ZERO;
        for (length, load) in self.schedule.iter().cycle() {
            if begin >= duration {
                break;
            }
            let end = (begin + *length).min(duration);
            let mut time = begin;
            while let Some(next) = next(time, full * load, rng).filter(|next| *next < end) {
                if requests.len() >= REQUESTS_MAX {
                    return Err(TooMany);
                }
                let drawn = self.mix.draw(rng);
                requests.push(Planned {
                    at: next,
                    tenant: self.tenant,
                    input: drawn.input,
                    output: drawn.output,
                });
                time = next;
            }
            begin += *length;
        }
        Ok(())
    }
}

/// The next arrival of a Poisson process; `None`: never.
fn next(time: Duration, rate: f64, rng: &mut ChaCha8Rng) -> Option<Duration> {
    if rate <= 0.0 {
        return None;
    }
    let unit: f64 = rng.random();
    let wait = Duration::try_from_secs_f64(-(1.0 - unit).ln() / rate).ok()?;
    time.checked_add(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTES: Duration = secs(600);

    fn drawn(kind: Kind, scale: f64) -> Vec<Planned> {
        all(kind, scale, 3).requests
    }

    fn all(kind: Kind, scale: f64, seed: u64) -> Traffic {
        let capacity = |mix: &Mix| if mix.name == "long" { 2.0 } else { 20.0 };
        traffic(kind, MINUTES, scale, seed, capacity).expect("few requests")
    }

    #[test]
    fn rates_follow_capacity_and_scale() {
        let rate = |requests: &[Planned]| requests.len() as f64 / MINUTES.as_secs_f64();
        assert!((rate(&drawn(Kind::Steady, 1.0)) / 16.0 - 1.0).abs() < 0.05);
        assert!((rate(&drawn(Kind::Steady, 0.5)) / 8.0 - 1.0).abs() < 0.05);
        assert!((rate(&drawn(Kind::Greedy, 1.0)) / 39.0 - 1.0).abs() < 0.05);
    }

    #[test]
    fn bursts_and_minutes_are_where_they_should_be() {
        let burst = drawn(Kind::Burst, 1.0);
        let inside = burst.iter().filter(|request| request.at.as_secs() % 60 < 10).count();
        assert!(inside * 2 > burst.len(), "600 a burst, 500 between two");
        let alternate = drawn(Kind::Alternate, 1.0);
        let mean = |minute: u64| {
            let of_minute = |request: &&Planned| request.at.as_secs() / 60 % 2 == minute;
            let inputs: Vec<u64> = alternate.iter().filter(of_minute).map(|request| request.input).collect();
            inputs.iter().sum::<u64>() / inputs.len() as u64
        };
        assert!(mean(0).abs_diff(512) < 50 && mean(1).abs_diff(8_000) < 800, "{} {}", mean(0), mean(1));
    }

    #[test]
    fn arrivals_are_in_order_and_the_seed_decides() {
        let first = drawn(Kind::Alternate, 1.0);
        assert!(first.is_sorted_by_key(|request| request.at));
        assert_eq!(first, drawn(Kind::Alternate, 1.0));
        assert_ne!(first, all(Kind::Alternate, 1.0, 4).requests);
    }

    #[test]
    fn traffic_is_limited_and_a_rate_of_nothing_is_nothing() {
        let capacity = |_: &Mix| 1e9;
        assert_eq!(traffic(Kind::Steady, MINUTES, 1.0, 1, capacity), Err(TooMany));
        let none = traffic(Kind::Greedy, MINUTES, 1.0, 1, |_| 0.0).expect("nothing");
        assert_eq!((none.requests.len(), none.tenants.len()), (0, 10));
    }
}
