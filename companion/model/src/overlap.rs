//! What the iterations of one request had to do, from the times of all that overlapped it.
//!
//! Means are over iterations, not over time: an iteration that computes a prompt is long, and counts once. So the clock
//! stands still while prompts are computed. A request that decodes faster or slower than others for reasons of its own
//! shares as many iterations with them as the clock says, not as its tokens do.

use crate::ledger::Decode;

/// The largest part of a request's decoding that is believed to compute the prompts of others.
const PROMPTS_MAX: f64 = 0.9;
/// The largest part of C of which it may be unknown whether it belongs there.
const DOUBT_MAX: f64 = 0.05;
/// Beside more than this, single ones don't matter.
const UNEVEN_MAX: usize = 96;

/// A request at its endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its first token: when its prompt had been computed. Not before that of the one before it.
    pub first_ms: f64,
    /// Its last token; not before the first.
    pub last_ms: f64,
    /// Prompt tokens that were computed,
    pub input: f64,
    /// and those resident from the first token on.
    pub held: f64,
    /// Tokens it made; at least 1.
    pub output: f64,
    /// Its first token isn't known, and may have come before or after an end of the decoding of the one asked for.
    pub doubtful: bool,
    /// Milliseconds in which prompts were computed during the decoding of the one asked for, up to its first token.
    pub computed_ms: f64,
}

/// The load of the one at `at`, of those in order of their first tokens, who made two tokens at least. `prompt_ms`: what
/// a prompt token adds to an iteration, about. Overwrites `computed_ms`.
pub fn decode(spans: &mut [Span], at: usize, prompt_ms: f64) -> Option<Decode> {
    let r = *spans.get(at)?;
    let gaps = r.output - 1.0;
    let span_ms = r.last_ms - r.first_ms;
    let itl_ms = span_ms / gaps;
    // First tokens this near belong to one iteration.
    let jitter_ms = (itl_ms * 0.1).min(2.0);
    let meanwhile = |q: &Span| q.first_ms > r.first_ms + jitter_ms && q.first_ms <= r.last_ms + jitter_ms;
    let (mut prompts, mut held, mut doubt) = (0.0, 0.0, 0.0);
    for q in spans.iter_mut() {
        if meanwhile(q) {
            prompts += q.input;
            held += q.held;
        }
        if q.doubtful {
            doubt += q.input;
        }
        q.computed_ms = prompts * prompt_ms;
    }
    let most_ms = span_ms * PROMPTS_MAX;
    let scale = (most_ms / (prompts * prompt_ms)).min(1.0);
    let (before_ms, by_then_ms) = (computed(spans, r.first_ms), computed(spans, r.last_ms));
    // Time since its first token, without that in which prompts were computed.
    let clock = |until_ms: f64, computed_ms: f64| {
        (until_ms - r.first_ms - scale * (computed_ms - before_ms)).max(0.0)
    };
    let all_ms = clock(r.last_ms, by_then_ms);
    let own = r.held + r.output / 2.0;
    let mut beside = Beside::default();
    for (number, q) in spans.iter().enumerate() {
        let (from, to) = (q.first_ms.max(r.first_ms), q.last_ms.min(r.last_ms));
        if number == at || to <= from {
            continue;
        }
        let produced = (f64::midpoint(from, to) - q.first_ms) / (q.last_ms - q.first_ms) * (q.output - 1.0);
        let begins_ms = if q.first_ms > r.first_ms {
            clock(from, q.computed_ms)
        } else {
            0.0
        };
        let ends_ms = if q.last_ms < r.last_ms {
            clock(to, computed(spans, to))
        } else {
            all_ms
        };
        beside.add(begins_ms / all_ms, ends_ms / all_ms, q.held + produced + 0.5);
    }
    let prompts = prompts / gaps;
    let (decodes, resident) = beside.means();
    let batch = 1.0 + decodes + prompts;
    let resident = own + resident + held / gaps;
    let sound = [itl_ms, batch, resident]
        .iter()
        .all(|value| value.is_finite() && *value > 0.0);
    (sound && doubt / gaps <= DOUBT_MAX * batch).then(|| Decode {
        itl_ms,
        batch,
        prompts,
        resident,
        uneven: beside.uneven(),
    })
}

/// Those that decoded beside it.
#[derive(Default)]
struct Beside {
    /// From when to when, of its own decoding from 0 to 1, and the resident tokens.
    all: Vec<(f64, f64, f64)>,
}

impl Beside {
    fn add(&mut self, from: f64, to: f64, resident: f64) {
        self.all.push((from, to, resident));
    }

    /// How many, and their resident tokens.
    fn means(&self) -> (f64, f64) {
        let add = |sum: (f64, f64), (from, to, resident): &(f64, f64, f64)| {
            (sum.0 + (to - from), sum.1 + (to - from) * resident)
        };
        self.all.iter().fold((0.0, 0.0), add)
    }

    /// Variance of how many, covariance with the resident tokens, and variance of these, over its decoding. Among many,
    /// the comings and goings hardly matter: all 0.
    fn uneven(&self) -> [f64; 3] {
        if self.all.len() > UNEVEN_MAX {
            return [0.0; 3];
        }
        let mut steps: Vec<(f64, f64, f64)> = Vec::with_capacity(2 * self.all.len());
        for (from, to, resident) in &self.all {
            steps.push((*from, 1.0, *resident));
            steps.push((*to, -1.0, -*resident));
        }
        steps.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        let (means, mut now, mut at) = (self.means(), (0.0, 0.0), 0.0);
        let mut uneven = [0.0; 3];
        // The end is a step as well, of nothing.
        for step in steps.into_iter().chain([(1.0, 0.0, 0.0)]) {
            let (count, resident) = (now.0 - means.0, now.1 - means.1);
            let time = step.0 - at;
            uneven[0] += time * count * count;
            uneven[1] += time * count * resident;
            uneven[2] += time * resident * resident;
            now = (now.0 + step.1, now.1 + step.2);
            at = step.0;
        }
        uneven.map(|value| if value.is_finite() { value } else { 0.0 })
    }
}

/// Milliseconds in which prompts were computed until then.
fn computed(spans: &[Span], until_ms: f64) -> f64 {
    let after = spans.partition_point(|q| q.first_ms <= until_ms);
    let last = after.checked_sub(1).and_then(|last| spans.get(last));
    last.map_or(0.0, |q| q.computed_ms)
}
