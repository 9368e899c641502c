//! Model rewrites: the target model that replaces the model a client asked for.
//!
//! The target follows from the request's key alone, so another companion chooses the same target. The keys of a root context
//! are numbered. Multiples of the golden ratio spread these numbers so evenly that in every run of requests each target gets
//! its share to within one or two requests.

use hashbrown::HashMap;
use penstock_engine::policy::Rewrite;
use wildmatch::WildMatch;

use crate::ids::{Epoch, RequestKey};

/// 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A pool's rewrite rules. The first that matches applies.
#[derive(Debug)]
pub(crate) struct Rewriter {
    /// By the position of a rule: its targets, each with the sum of the weights up to and including it.
    targets: Vec<Vec<(Box<str>, f64)>>,
    /// The position of the first rule for a model. Discovery may find too many of them to try one after the other for each request.
    exact: HashMap<Box<str>, usize>,
    /// The other rules, in order, with their positions.
    globs: Vec<(WildMatch, usize)>,
}

impl Rewriter {
    pub(crate) fn new(rewrites: &[Rewrite]) -> Self {
        let mut rewriter = Self { targets: Vec::new(), exact: HashMap::new(), globs: Vec::new() };
        for (position, Rewrite { model, targets }) in rewrites.iter().enumerate() {
            let mut sum = 0.0;
            let sums = targets.iter().map(|(name, weight)| {
                sum += weight;
                (name.as_str().into(), sum)
            });
            rewriter.targets.push(sums.collect());
            if model.contains(['*', '?']) {
                rewriter.globs.push((WildMatch::new(model), position));
            } else {
                rewriter.exact.entry(model.as_str().into()).or_insert(position);
            }
        }
        rewriter
    }

    /// The target model of a request; `None` if no rule matches the model, or the request names none, which can't be replaced.
    pub(crate) fn target(&self, model: &str, key: RequestKey) -> Option<&str> {
        if model.is_empty() {
            return None;
        }
        let glob = self.globs.iter().find(|(glob, _)| glob.matches(model)).map(|(_, position)| *position);
        let position = glob.into_iter().chain(self.exact.get(model).copied()).min()?;
        let targets = self.targets.get(position)?;
        let (last, sum) = targets.last()?;
        let point = point(key) * sum;
        let first = targets.iter().find(|(_, up_to)| point < *up_to);
        Some(first.map_or(last, |(name, _)| name))
    }
}

/// A number from 0 to below 1.
#[expect(clippy::cast_precision_loss, reason = "the upper 53 bits, which a float has exactly")]
fn point(key: RequestKey) -> f64 {
    let Epoch { high, low } = key.epoch;
    let mut start = high ^ low.rotate_left(32);
    start = (start ^ (start >> 31)).wrapping_mul(STEP);
    let spread = key.sequence.wrapping_mul(STEP).wrapping_add(start);
    (spread >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewriter(targets: &[(&str, f64)]) -> Rewriter {
        let rule = |model: &str, targets: &[(&str, f64)]| Rewrite {
            model: model.into(),
            targets: targets.iter().map(|(name, weight)| ((*name).into(), *weight)).collect(),
        };
        Rewriter::new(&[rule("chat*", targets), rule("*-old", &[("new", 1.0)])])
    }

    fn key(epoch: u128, sequence: u64) -> RequestKey {
        RequestKey { epoch: Epoch::from_bits(epoch), sequence }
    }

    #[test]
    fn the_first_rule_that_matches_applies() {
        let rewriter = rewriter(&[("a", 1.0)]);
        assert_eq!(rewriter.target("chat-old", key(1, 1)), Some("a"));
        assert_eq!(rewriter.target("code-old", key(1, 1)), Some("new"));
        assert_eq!(rewriter.target("code", key(1, 1)), None);
    }

    #[test]
    fn a_rule_for_one_model_takes_its_turn_among_the_globs() {
        let rules = [("chat", "a"), ("ch*", "b"), ("chart", "c"), ("*", "d"), ("chat", "e")];
        let rules =
            rules.map(|(model, target)| Rewrite { model: model.into(), targets: vec![(target.into(), 1.0)] });
        let rewriter = Rewriter::new(&rules);
        for (model, expected) in [("chat", "a"), ("chart", "b"), ("code", "d")] {
            assert_eq!(rewriter.target(model, key(1, 1)), Some(expected), "{model}");
        }
        assert_eq!(rewriter.target("", key(1, 1)), None);
    }

    #[test]
    fn a_request_keeps_its_target() {
        let rewriter = rewriter(&[("a", 1.0), ("b", 1.0)]);
        for sequence in 0..100 {
            let key = key(7 << 90 | 3, sequence);
            assert_eq!(rewriter.target("chat", key), rewriter.target("chat", key));
        }
    }

    #[test]
    fn every_run_of_requests_is_shared_by_weight() {
        let weights = [("a", 90.0), ("b", 9.5), ("c", 0.5)];
        let rewriter = rewriter(&weights);
        for epoch in [0, 1, 1 << 64, u128::MAX, 0x1234_5678_9abc_def0_0fed_cba9_8765_4321] {
            for (from, many) in [(0, 100), (17, 200), (1_000_000, 1_000), (u64::MAX - 500, 1_000)] {
                for (target, weight) in weights {
                    let count = (0..many)
                        .filter(|offset| {
                            let key = key(epoch, from.wrapping_add(*offset));
                            rewriter.target("chat", key) == Some(target)
                        })
                        .count();
                    let share = weight / 100.0 * many as f64;
                    assert!(
                        (count as f64 - share).abs() < 3.0,
                        "{count} of {many} from {from} for {target}, not {share}"
                    );
                }
            }
        }
    }
}
