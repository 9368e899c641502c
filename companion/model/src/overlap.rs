//! Computes the mean load that one request decoded under, from the times of all requests that overlapped it.
//!
//! The means are over iterations, not over time: an iteration that computes a prompt takes longer and still counts
//! once. The clock used here therefore stops while prompts are computed. A request may decode faster or slower than
//! its neighbours; the number of iterations it shares with them follows from this clock, not from its token count.

use crate::observation::Decode;

/// The largest part of a request's decoding that may count as time spent on other requests' prompts.
const PROMPTS_MAX: f64 = 0.9;
/// The largest part of C that may rest on prompts with a first token that might lie outside the decoding.
const UNCERTAIN_MAX: f64 = 0.05;
/// With more neighbours than this, the arrival or end of a single one doesn't matter.
const COVARIANCE_NEIGHBORS_MAX: usize = 96;

/// A request at its endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Time of the first token, when the prompt had been computed. Not before that of the preceding span.
    pub first_ms: f64,
    /// Time of the last token; not before the first.
    pub last_ms: f64,
    /// Prompt tokens that were computed.
    pub input: f64,
    /// Tokens resident in the KV cache from the first token on.
    pub resident: f64,
    /// Output tokens; at least 1.
    pub output: f64,
    /// The time of the first token is an estimate, and the true time may lie on the other side of the start or the end
    /// of the subject's decoding.
    pub uncertain: bool,
    /// Time spent on prompts during the subject's decoding, up to this span's first token, in milliseconds. Computed by
    /// [`decode_conditions`].
    pub prompts_computed_ms: f64,
}

/// The load that the span at `position`, the subject, decoded under.
///
/// `spans` are in order of their first tokens, and the subject has at least two output tokens. `prompt_ms` is the
/// approximate time that a prompt token adds to an iteration. Overwrites `prompts_computed_ms`. Returns `None` if the
/// times don't determine the load well enough.
pub fn decode_conditions(spans: &mut [Span], position: usize, prompt_ms: f64) -> Option<Decode> {
    let subject = *spans.get(position)?;
    let gaps = subject.output - 1.0;
    let itl_ms = (subject.last_ms - subject.first_ms) / gaps;
    let prompts = accumulate_prompts(spans, &subject, itl_ms, prompt_ms);
    let clock = DecodeClock::new(spans, &subject, prompts.input * prompt_ms);
    let neighbors = neighbors(spans, position, &clock);
    let own_resident = subject.resident + subject.output / 2.0;
    let prompts_per_decode = prompts.input / gaps;
    let (decodes, neighbor_resident) = neighbors.means();
    let batch = 1.0 + decodes + prompts_per_decode;
    let resident = own_resident + neighbor_resident + prompts.resident / gaps;
    let sound = [itl_ms, batch, resident].iter().all(|value| value.is_finite() && *value > 0.0);
    (sound && prompts.uncertain / gaps <= UNCERTAIN_MAX * batch).then(|| Decode {
        itl_ms,
        batch,
        prompts: prompts_per_decode,
        resident,
        neighbor_covariance: neighbors.covariance(),
    })
}

/// Tokens of the prompts that were computed during the subject's decoding.
struct Prompts {
    /// Computed prompt tokens.
    input: f64,
    /// Tokens that became resident with them.
    resident: f64,
    /// Prompt tokens of all uncertain spans, which may or may not belong to `input`.
    uncertain: f64,
}

/// Adds up the prompts computed during the subject's decoding, and writes the running time to each span.
fn accumulate_prompts(spans: &mut [Span], subject: &Span, itl_ms: f64, prompt_ms: f64) -> Prompts {
    // First tokens closer together than this belong to the same iteration.
    let jitter_ms = (itl_ms * 0.1).min(2.0);
    let from_ms = subject.first_ms + jitter_ms;
    let until_ms = subject.last_ms + jitter_ms;
    let mut prompts = Prompts { input: 0.0, resident: 0.0, uncertain: 0.0 };
    for span in spans.iter_mut() {
        if span.first_ms > from_ms && span.first_ms <= until_ms {
            prompts.input += span.input;
            prompts.resident += span.resident;
        }
        if span.uncertain {
            prompts.uncertain += span.input;
        }
        span.prompts_computed_ms = prompts.input * prompt_ms;
    }
    prompts
}

/// A clock that starts at the subject's first token and stops while prompts are computed.
struct DecodeClock {
    start_ms: f64,
    /// Time spent on prompts up to the subject's first token.
    prompts_before_ms: f64,
    /// Reduces the time spent on prompts to at most [`PROMPTS_MAX`] of the decoding.
    scale: f64,
    /// Reading at the subject's last token.
    total_ms: f64,
}

impl DecodeClock {
    fn new(spans: &[Span], subject: &Span, all_prompts_ms: f64) -> Self {
        let most_ms = (subject.last_ms - subject.first_ms) * PROMPTS_MAX;
        let mut clock = Self {
            start_ms: subject.first_ms,
            prompts_before_ms: prompts_computed_ms(spans, subject.first_ms),
            scale: (most_ms / all_prompts_ms).min(1.0),
            total_ms: 0.0,
        };
        clock.total_ms = clock.reading(subject.last_ms, prompts_computed_ms(spans, subject.last_ms));
        clock
    }

    /// Reading at `until_ms`, when `prompts_computed_ms` had been spent on prompts.
    fn reading(&self, until_ms: f64, prompts_computed_ms: f64) -> f64 {
        (until_ms - self.start_ms - self.scale * (prompts_computed_ms - self.prompts_before_ms)).max(0.0)
    }
}

/// Time spent on prompts up to `until_ms`.
fn prompts_computed_ms(spans: &[Span], until_ms: f64) -> f64 {
    let after = spans.partition_point(|span| span.first_ms <= until_ms);
    let last = after.checked_sub(1).and_then(|last| spans.get(last));
    last.map_or(0.0, |span| span.prompts_computed_ms)
}

/// The spans that decoded at the same time as the subject.
fn neighbors(spans: &[Span], position: usize, clock: &DecodeClock) -> Neighbors {
    let subject = &spans[position];
    let mut neighbors = Neighbors::default();
    for (index, span) in spans.iter().enumerate() {
        let from_ms = span.first_ms.max(subject.first_ms);
        let to_ms = span.last_ms.min(subject.last_ms);
        if index == position || to_ms <= from_ms {
            continue;
        }
        let produced = (f64::midpoint(from_ms, to_ms) - span.first_ms) / (span.last_ms - span.first_ms)
            * (span.output - 1.0);
        let begins_ms = if span.first_ms > subject.first_ms {
            clock.reading(from_ms, span.prompts_computed_ms)
        } else {
            0.0
        };
        let ends_ms = if span.last_ms < subject.last_ms {
            clock.reading(to_ms, prompts_computed_ms(spans, to_ms))
        } else {
            clock.total_ms
        };
        neighbors.intervals.push(Interval {
            start: begins_ms / clock.total_ms,
            end: ends_ms / clock.total_ms,
            resident: span.resident + produced + 0.5,
        });
    }
    neighbors
}

/// A part of the subject's decoding, from 0 at its start to 1 at its end, that a neighbour shared.
struct Interval {
    start: f64,
    end: f64,
    /// The neighbour's mean resident tokens.
    resident: f64,
}

/// The requests that decoded beside the subject.
#[derive(Default)]
struct Neighbors {
    intervals: Vec<Interval>,
}

impl Neighbors {
    /// Mean number of neighbours, and mean of their resident tokens.
    fn means(&self) -> (f64, f64) {
        let add = |sum: (f64, f64), interval: &Interval| {
            let time = interval.end - interval.start;
            (sum.0 + time, sum.1 + time * interval.resident)
        };
        self.intervals.iter().fold((0.0, 0.0), add)
    }

    /// Variance of the number of neighbours, its covariance with their resident tokens, and the variance of those, over
    /// the subject's decoding. All 0 beyond [`COVARIANCE_NEIGHBORS_MAX`] neighbours.
    fn covariance(&self) -> [f64; 3] {
        if self.intervals.len() > COVARIANCE_NEIGHBORS_MAX {
            return [0.0; 3];
        }
        let mut steps: Vec<(f64, f64, f64)> = Vec::with_capacity(2 * self.intervals.len());
        for interval in &self.intervals {
            steps.push((interval.start, 1.0, interval.resident));
            steps.push((interval.end, -1.0, -interval.resident));
        }
        steps.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
        let (means, mut current, mut previous) = (self.means(), (0.0, 0.0), 0.0);
        let mut covariance = [0.0; 3];
        // The end of the decoding is a last step that changes nothing.
        for (position, count_change, resident_change) in steps.into_iter().chain([(1.0, 0.0, 0.0)]) {
            let (count, resident) = (current.0 - means.0, current.1 - means.1);
            let time = position - previous;
            covariance[0] += time * count * count;
            covariance[1] += time * count * resident;
            covariance[2] += time * resident * resident;
            current = (current.0 + count_change, current.1 + resident_change);
            previous = position;
        }
        covariance.map(|value| if value.is_finite() { value } else { 0.0 })
    }
}
