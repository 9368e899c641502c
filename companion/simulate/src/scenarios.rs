//! Made-up traffic, in proportion to the capacity of the servers, for those who have no trace.
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

use penstock_engine::input::Band;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::closed_loop::{Mix, Planned};

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
    tenant: Arc<str>,
    mix: Mix,
    schedule: Schedule,
    /// Its part of the schedule's load.
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

/// The requests of a scenario, in order of their arrivals. `capacity` is that of all servers for a mix, in requests per second; `scale`
/// multiplies the rate.
#[must_use]
pub fn requests(
    kind: Kind,
    duration: Duration,
    scale: f64,
    seed: u64,
    capacity: impl Fn(&Mix) -> f64,
) -> Vec<Planned> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut requests = Vec::new();
    for source in sources(kind) {
        let full = capacity(&source.mix) * source.share * scale;
        source.arrive(duration, full, &mut rng, &mut requests);
    }
    requests.sort_by(|left, right| (left.at, &left.tenant).cmp(&(right.at, &right.tenant)));
    requests
}

fn sources(kind: Kind) -> Vec<Source> {
    let named = |name: &str, mix: Mix, schedule: Schedule, share: f64| Source {
        tenant: name.into(),
        mix,
        schedule,
        share,
    };
    let four = |mix: fn() -> Mix, schedule: Schedule| {
        let names = ["t1", "t2", "t3", "t4"].into_iter();
        names
            .map(|name| named(name, mix(), schedule, 0.25))
            .collect::<Vec<_>>()
    };
    match kind {
        Kind::Steady => four(Mix::chat, STEADY),
        Kind::Burst => four(Mix::chat, BURST),
        Kind::Alternate => {
            let mut sources = four(Mix::chat, FIRST_MINUTE);
            sources.extend(four(Mix::long, SECOND_MINUTE));
            sources
        }
        Kind::Greedy => {
            let small = (1..=9).map(|index| named(&format!("small-{index}"), Mix::chat(), WHOLE, 0.05));
            let mut sources: Vec<_> = small.collect();
            sources.push(named("greedy", Mix::chat(), WHOLE, 1.5));
            sources
        }
    }
}

impl Source {
    /// Draws the arrivals up to `duration`. `full`: the rate at a load of 1.
    fn arrive(&self, duration: Duration, full: f64, rng: &mut ChaCha8Rng, requests: &mut Vec<Planned>) {
        let mut begin = Duration::ZERO;
        for (length, load) in self.schedule.iter().cycle() {
            if begin >= duration {
                return;
            }
            let end = (begin + *length).min(duration);
            let rate = full * load;
            let mut at = begin;
            while rate > 0.0 {
                let unit: f64 = rng.random();
                at += Duration::from_secs_f64(-(1.0 - unit).ln() / rate);
                if at >= end {
                    break;
                }
                let drawn = self.mix.draw(rng);
                requests.push(Planned {
                    at,
                    tenant: self.tenant.clone(),
                    flow: self.tenant.clone(),
                    band: Band::Default,
                    input: drawn.input,
                    output: drawn.output,
                });
            }
            begin += *length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTES: Duration = secs(600);

    fn drawn(kind: Kind, scale: f64) -> Vec<Planned> {
        requests(kind, MINUTES, scale, 3, |mix| {
            if mix.name == "long" { 2.0 } else { 20.0 }
        })
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
        let inside = burst
            .iter()
            .filter(|request| request.at.as_secs() % 60 < 10)
            .count();
        assert!(inside * 2 > burst.len(), "600 a burst, 500 between two");
        let alternate = drawn(Kind::Alternate, 1.0);
        let mean = |minute: u64| {
            let of_minute = |request: &&Planned| request.at.as_secs() / 60 % 2 == minute;
            let inputs: Vec<u64> = alternate
                .iter()
                .filter(of_minute)
                .map(|request| request.input)
                .collect();
            inputs.iter().sum::<u64>() / inputs.len() as u64
        };
        assert!(
            mean(0).abs_diff(512) < 50 && mean(1).abs_diff(8_000) < 800,
            "{} {}",
            mean(0),
            mean(1)
        );
    }

    #[test]
    fn arrivals_are_in_order_and_the_seed_decides() {
        let first = drawn(Kind::Alternate, 1.0);
        assert!(first.is_sorted_by_key(|request| request.at));
        assert_eq!(first, drawn(Kind::Alternate, 1.0));
        let other = requests(Kind::Alternate, MINUTES, 1.0, 4, |_| 2.0);
        assert_ne!(first.len(), other.len());
    }
}
