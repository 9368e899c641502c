//! Which model the servers are asked for instead of the one that a client asked for.
//!
//! The target follows from the request's name alone, so whoever is told of the request again comes to the same one. The
//! names that a filter gives are numbered; multiples of the golden ratio spread them so evenly that of any run of them
//! each target has its share, give or take one or two.

use wildmatch::WildMatch;

use crate::register::Name;
use crate::settings::Rewrite;

/// 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A pool's rewrites, in order.
#[derive(Debug)]
pub(crate) struct Rewriter(Vec<Rule>);

#[derive(Debug)]
struct Rule {
    model: WildMatch,
    /// With the sum of the weights up to and including it.
    targets: Vec<(Box<str>, f64)>,
}

impl Rewriter {
    pub(crate) fn new(rewrites: &[Rewrite]) -> Self {
        let rule = |rewrite: &Rewrite| {
            let mut sum = 0.0;
            let targets = rewrite.targets.iter().map(|(name, weight)| {
                sum += weight;
                (name.as_str().into(), sum)
            });
            Rule {
                model: WildMatch::new(&rewrite.model),
                targets: targets.collect(),
            }
        };
        Self(rewrites.iter().map(rule).collect())
    }

    /// What this request's server is asked for; `None`: the model that was asked for.
    pub(crate) fn target(&self, model: &str, name: Name) -> Option<&str> {
        let targets = &self.0.iter().find(|rule| rule.model.matches(model))?.targets;
        let (last, sum) = targets.last()?;
        let point = point(name) * sum;
        let first = targets.iter().find(|(_, up_to)| point < *up_to);
        Some(first.map_or(last, |(name, _)| name))
    }
}

/// From 0 to below 1.
#[expect(
    clippy::cast_precision_loss,
    reason = "the upper 53 bits, which a float has exactly"
)]
fn point(name: Name) -> f64 {
    let epoch = name.epoch.0;
    let mut start = (epoch >> 64) as u64 ^ (epoch as u64).rotate_left(32);
    start = (start ^ (start >> 31)).wrapping_mul(STEP);
    let at = name.sequence.wrapping_mul(STEP).wrapping_add(start);
    (at >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Epoch;

    fn rewriter(targets: &[(&str, f64)]) -> Rewriter {
        let rule = |model: &str, targets: &[(&str, f64)]| Rewrite {
            model: model.into(),
            targets: targets.iter().map(|(name, of)| ((*name).into(), *of)).collect(),
        };
        Rewriter::new(&[rule("chat*", targets), rule("*-old", &[("new", 1.0)])])
    }

    fn name(epoch: u128, sequence: u64) -> Name {
        Name {
            epoch: Epoch(epoch),
            sequence,
        }
    }

    #[test]
    fn the_first_glob_counts_and_no_glob_is_no_rewrite() {
        let rewriter = rewriter(&[("a", 1.0)]);
        assert_eq!(rewriter.target("chat-old", name(1, 1)), Some("a"));
        assert_eq!(rewriter.target("code-old", name(1, 1)), Some("new"));
        assert_eq!(rewriter.target("code", name(1, 1)), None);
    }

    #[test]
    fn a_request_keeps_its_target() {
        let rewriter = rewriter(&[("a", 1.0), ("b", 1.0)]);
        for sequence in 0..100 {
            let name = name(7 << 90 | 3, sequence);
            assert_eq!(rewriter.target("chat", name), rewriter.target("chat", name));
        }
    }

    #[test]
    fn shares_are_those_of_the_weights_in_every_run() {
        let weights = [("a", 90.0), ("b", 9.5), ("c", 0.5)];
        let rewriter = rewriter(&weights);
        for epoch in [
            0,
            1,
            1 << 64,
            u128::MAX,
            0x1234_5678_9abc_def0_0fed_cba9_8765_4321,
        ] {
            for (from, many) in [(0, 100), (17, 200), (1_000_000, 1_000), (u64::MAX - 500, 1_000)] {
                for (target, weight) in weights {
                    let of_it = (0..many)
                        .filter(|at| {
                            let name = name(epoch, from.wrapping_add(*at));
                            rewriter.target("chat", name) == Some(target)
                        })
                        .count();
                    let share = weight / 100.0 * many as f64;
                    assert!(
                        (of_it as f64 - share).abs() < 3.0,
                        "{of_it} of {many} from {from} for {target}, not {share}"
                    );
                }
            }
        }
    }
}
