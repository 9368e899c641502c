//! How much of a predicted prefix an endpoint's server really has in its cache, learned from its answers.
//!
//! The index of prefixes knows which prompts went where, not whether the server caches prefixes at all, or still has this one. Each
//! answer to a prompt with a predicted prefix compares: the server counts the cached tokens, and the mean of these counts over the
//! predictions discounts the next ones. A server that counts the prompt without cached tokens has computed all of it. A server that
//! counts nothing, answer after answer, can't confirm any prediction, so none is believed: too little work at a server costs less
//! than targets that are missed.

/// Answers after which only the answers decide. Before the first one a prediction is believed whole.
const ANSWERS_ENOUGH: f64 = 16.0;
/// Answers over which the mean is taken, at most.
const ANSWERS_MAX: f64 = 64.0;
/// Answers in a row without any count, after which the server counts as one that caches nothing. A few are those of clients that left,
/// or of streams without usage beside other requests with it.
const SILENT_MAX: u32 = 16;

/// What an endpoint's answers confirm of the predicted cached tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CacheTrust {
    answers: f64,
    /// Predicted tokens of these answers.
    predicted: f64,
    /// The part of them that the server had.
    confirmed: f64,
    /// The last answers without any count.
    silent: u32,
}

impl CacheTrust {
    /// An answer to a prompt of which `predicted` tokens were expected in the cache. `cached`: as the server counts; `None`: it counts
    /// no tokens.
    pub(crate) fn record(&mut self, predicted: u64, cached: Option<u64>) {
        if predicted == 0 {
            return;
        }
        let Some(cached) = cached else {
            self.silent = self.silent.saturating_add(1);
            if self.silent >= SILENT_MAX {
                self.answers = self.answers.max(ANSWERS_ENOUGH);
                self.predicted = self.predicted.max(predicted as f64);
                self.confirmed = 0.0;
            }
            return;
        };
        self.silent = 0;
        let kept = if self.answers < ANSWERS_MAX { 1.0 } else { 1.0 - 1.0 / ANSWERS_MAX };
        self.answers = (self.answers + 1.0).min(ANSWERS_MAX);
        self.predicted = self.predicted * kept + predicted as f64;
        self.confirmed = self.confirmed * kept + cached.min(predicted) as f64;
    }

    /// The part of a prediction that counts, from 0 to 1.
    pub(crate) fn part(&self) -> f64 {
        if self.predicted <= 0.0 {
            return 1.0;
        }
        let observed = (self.confirmed / self.predicted).clamp(0.0, 1.0);
        1.0 + (observed - 1.0) * (self.answers / ANSWERS_ENOUGH).min(1.0)
    }

    /// The part of `predicted` tokens that counts.
    pub(crate) fn of(&self, predicted: u64) -> u64 {
        // At most `predicted`.
        (predicted as f64 * self.part()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(answers: impl IntoIterator<Item = Option<u64>>) -> CacheTrust {
        let mut trust = CacheTrust::default();
        answers.into_iter().for_each(|cached| trust.record(1_000, cached));
        trust
    }

    #[test]
    fn a_prediction_is_believed_until_answers_contradict_it() {
        assert_eq!(CacheTrust::default().of(1_000), 1_000);
        assert_eq!(after([Some(0)]).of(1_600), 1_500);
        assert_eq!(after([Some(0); 16]).of(1_000), 0);
        assert_eq!(after([Some(1_000); 100]).of(1_000), 1_000);
        let half = after([Some(500); 100]).part();
        assert!((half - 0.5).abs() < 1e-9, "{half}");
        assert_eq!(after([Some(2_000); 100]).part(), 1.0, "more than predicted is no more than that");
        let mut unasked = CacheTrust::default();
        unasked.record(0, Some(0));
        assert_eq!(unasked, CacheTrust::default(), "nothing was predicted");
    }

    #[test]
    fn a_change_of_the_server_is_learned_both_ways() {
        let on_off = after([[Some(1_000); 100], [Some(0); 100]].concat()).part();
        let off_on = after([[Some(0); 100], [Some(1_000); 100]].concat()).part();
        assert!(on_off < 0.25 && off_on > 0.75, "{on_off} {off_on}");
    }

    #[test]
    fn a_server_that_counts_nothing_confirms_nothing() {
        assert_eq!(after([None; 15]).part(), 1.0);
        assert_eq!(after([None; 16]).part(), 0.0);
        let mostly_silent = (0..400).map(|answer| (answer % 8 == 0).then_some(900));
        let part = after(mostly_silent).part();
        assert!((part - 0.9).abs() < 0.01, "one count of eight is enough: {part}");
        let again = after([[None; 100], [Some(1_000); 100]].concat()).part();
        assert!(again > 0.75, "{again}");
    }
}
