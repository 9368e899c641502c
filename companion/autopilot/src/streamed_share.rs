//! Which of a variant's two estimators has fresh evidence.
//!
//! The learner of single requests needs streamed responses, and the window estimator needs windows with times. Where both have
//! evidence, the learner is the better one: it sees each request at its own load. A few streamed responses among many others
//! don't suffice for it, and an old one says nothing of the servers as they are now. So the share of streamed responses among the
//! recent ones decides.

/// Responses over which the share is taken, at most.
const RESPONSES: f64 = 256.0;
/// The weight that the past keeps over each window with responses, so that a few responses in each suffice for a change.
const KEPT_PER_WINDOW: f64 = 0.8;
/// The learner is used from this share on,
const ENOUGH: f64 = 1.0 / 8.0;
/// and no longer below this one. The distance keeps a constant share from switching back and forth.
const TOO_FEW: f64 = 1.0 / 16.0;

/// The share of streamed responses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamedShare {
    streamed: f64,
    all: f64,
    is_enough: bool,
    /// A response was recorded since the last window ended.
    is_fresh: bool,
}

impl StreamedShare {
    /// A response that shows something of its server. `is_streamed`: it showed the time between its tokens.
    pub(crate) fn record(&mut self, is_streamed: bool) {
        let kept = 1.0 - 1.0 / RESPONSES;
        self.all = self.all * kept + 1.0;
        self.streamed = self.streamed * kept + f64::from(u8::from(is_streamed));
        let least = if self.is_enough { TOO_FEW } else { ENOUGH };
        self.is_enough = self.streamed >= least * self.all;
        self.is_fresh = true;
    }

    /// A window is over.
    pub(crate) fn close_window(&mut self) {
        if core::mem::take(&mut self.is_fresh) {
            self.all *= KEPT_PER_WINDOW;
            self.streamed *= KEPT_PER_WINDOW;
        }
    }

    /// Enough responses are streamed to learn from single requests.
    pub(crate) const fn is_enough(&self) -> bool {
        self.is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(share: &mut StreamedShare, streamed: usize, others: usize) {
        (0..streamed).for_each(|_| share.record(true));
        (0..others).for_each(|_| share.record(false));
    }

    #[test]
    fn one_streamed_response_is_enough_only_until_others_come() {
        let mut share = StreamedShare::default();
        assert!(!share.is_enough());
        share.record(true);
        assert!(share.is_enough());
        record(&mut share, 0, 20);
        assert!(!share.is_enough());
        for _ in 0..100 {
            record(&mut share, 1, 100);
            assert!(!share.is_enough());
        }
    }

    #[test]
    fn a_constant_share_between_the_limits_changes_nothing() {
        for before in [false, true] {
            let mut share = StreamedShare::default();
            record(&mut share, if before { 256 } else { 0 }, 256);
            for _ in 0..200 {
                record(&mut share, 1, 9);
                assert_eq!(share.is_enough(), before);
            }
        }
    }

    #[test]
    fn streams_that_end_are_forgotten_after_some_windows_however_few_responses_follow() {
        let mut share = StreamedShare::default();
        record(&mut share, 10_000, 0);
        share.close_window();
        for _ in 0..40 {
            share.record(false);
            share.close_window();
        }
        assert!(!share.is_enough());
        // A lull forgets nothing.
        record(&mut share, 100, 0);
        (0..1_000).for_each(|_| share.close_window());
        share.record(false);
        assert!(share.is_enough());
    }
}
