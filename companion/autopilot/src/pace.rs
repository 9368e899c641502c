//! The time between the tokens of answers, as the last answers had it.
//!
//! It turns the time that a request spent at a server into tokens, where nothing else counts them. Windows are too slow for that:
//! a gateway that has just started has none.

use core::time::Duration;

use crate::types::Served;
use crate::window_stats::count;

/// The factor on older answers at each new one.
const DECAY: f64 = 1.0 - 1.0 / 16.0;
/// A whole answer with fewer tokens took most of its time for the prompt.
const WHOLE_TOKENS_MIN: f64 = 8.0;

/// No server computes tokens of one answer faster. A proxy that collects events lets them seem so.
const TOKEN_TIME_MIN: Duration = Duration::from_micros(500);

/// The time of answers, and their tokens. Older ones weigh less.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    ms: f64,
    tokens: f64,
}

impl Sum {
    fn add(&mut self, ms: f64, tokens: f64) {
        self.ms = self.ms * DECAY + ms;
        self.tokens = self.tokens * DECAY + tokens;
    }

    fn ms_per_token(&self) -> Option<f64> {
        (self.tokens > 0.0 && self.ms > 0.0).then(|| self.ms / self.tokens)
    }
}

/// The pace of a variant's answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// From first to last token.
    streamed: Sum,
    /// From the grant to the end, so that the time of the prompt is included.
    whole: Sum,
}

impl Pace {
    /// An answer of so many sequences has ended. They are generated at the same time, so the pace is that of one.
    pub(crate) fn observe(&mut self, served: &Served, sequences: u64) {
        let (Some(last), Some(output)) = (served.last, served.output.map(count)) else {
            return;
        };
        let output = output / count(sequences.max(1));
        match served.first.filter(|first| served.streamed && *first < last) {
            Some(first) if output > 1.0 => self.streamed.add(millis(last - first), output - 1.0),
            None if !served.streamed && output >= WHOLE_TOKENS_MIN => self.whole.add(millis(last), output),
            Some(_) | None => {}
        }
    }

    /// The time between two tokens; `None`: no answer has shown it.
    pub(crate) fn token_time(&self) -> Option<Duration> {
        let ms = self.streamed.ms_per_token().or_else(|| self.whole.ms_per_token())?;
        Some(Duration::try_from_secs_f64(ms / 1_000.0).ok()?.max(TOKEN_TIME_MIN))
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(streamed: bool, first_ms: u64, last_ms: u64, output: u64) -> Served {
        Served {
            first: Some(Duration::from_millis(first_ms)),
            last: Some(Duration::from_millis(last_ms)),
            streamed,
            output: Some(output),
            ..Served::default()
        }
    }

    #[test]
    fn streamed_answers_show_the_time_between_tokens_and_whole_ones_a_little_more() {
        let mut pace = Pace::default();
        assert_eq!(pace.token_time(), None);
        pace.observe(&served(false, 500, 510, 1), 1);
        assert_eq!(pace.token_time(), None, "most of that was the prompt");
        pace.observe(&served(false, 1_300, 1_300, 100), 1);
        assert_eq!(pace.token_time(), Some(Duration::from_millis(13)));
        pace.observe(&served(true, 300, 1_290, 100), 1);
        assert_eq!(pace.token_time(), Some(Duration::from_millis(10)));
        pace.observe(&served(true, 300, 1_290, 400), 4);
        assert_eq!(
            pace.token_time(),
            Some(Duration::from_millis(10)),
            "each of four sequences has 100 tokens"
        );
        for _ in 0..200 {
            pace.observe(&served(true, 300, 2_280, 100), 1);
        }
        let after = pace.token_time().expect("answers").as_secs_f64();
        assert!((0.019..0.021).contains(&after), "{after}");
    }

    #[test]
    fn events_that_a_proxy_collected_are_no_faster_server() {
        let mut pace = Pace::default();
        let first = Duration::from_millis(4_000);
        let collected =
            Served { last: Some(first + Duration::from_micros(200)), ..served(true, 4_000, 0, 500) };
        pace.observe(&collected, 1);
        assert_eq!(pace.token_time(), Some(TOKEN_TIME_MIN));
    }

    #[test]
    fn answer_without_counts_or_times_shows_nothing() {
        let mut pace = Pace::default();
        pace.observe(&Served { output: None, ..served(true, 1, 9, 5) }, 1);
        pace.observe(&Served { last: None, ..served(true, 1, 9, 5) }, 1);
        pace.observe(&served(true, 9, 9, 5), 1);
        pace.observe(&served(true, 1, 9, 1), 1);
        assert_eq!(pace.token_time(), None);
    }
}
