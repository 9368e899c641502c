//! Turns an answer, whole or not, into tokens. Settlement, budgets, the autopilot and the metrics use these counts and no others.
//!
//! Counts of the server are believed if the request can have had them. Each event with text is at least one token, so a smaller count
//! isn't that of the whole answer. Without a count, the text is divided by its usual bytes per token. An answer that was never read,
//! because its client asked for the whole and left before, took the server's time: that time counts.

use core::time::Duration;

use penstock_engine::input::{Service, Usage};
use penstock_engine::units::Tokens;
use penstock_wire::EndReason;

use crate::limits::{OUTPUT_TOKENS_UNSEEN, PROMPT_TOKENS_UNSEEN, TEXT_BYTES_PER_TOKEN, TOKEN_TIME_DEFAULT};

/// What a request asked for, as far as it limits the counts of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Bytes of the body.
    pub(crate) body_bytes: u32,
    /// The client's limit on the output of one sequence; 0: none.
    pub(crate) output_max: u32,
    /// Sequences that the server computes at the same time.
    pub(crate) sequences: u32,
    /// The answer is generated token by token. Embeddings are not.
    pub(crate) is_generated: bool,
    /// The client asked for a stream of events.
    pub(crate) is_streamed: bool,
}

impl Asked {
    fn sequences(&self) -> u64 {
        self.sequences.max(1).into()
    }

    /// The most output tokens that the sequences can have together.
    fn output_max(&self) -> u64 {
        let of_one = if self.output_max > 0 { self.output_max.into() } else { OUTPUT_TOKENS_UNSEEN };
        of_one.saturating_mul(self.sequences())
    }
}

/// An answer as its filter reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedAnswer {
    pub(crate) end: EndReason,
    /// The status that the client got; 0: none.
    pub(crate) status: u16,
    /// Envoy chose an endpoint for the request.
    pub(crate) was_sent: bool,
    /// The largest counts of the server.
    pub(crate) prompt: Option<u64>,
    pub(crate) cached: Option<u64>,
    pub(crate) output: Option<u64>,
    /// Events with text.
    pub(crate) events: u64,
    /// Bytes of text; `None`: the text wasn't read.
    pub(crate) text_bytes: Option<u64>,
    /// Bytes of the body.
    pub(crate) body_bytes: u64,
    /// From the grant to the last byte of the body; `None`: it has none.
    pub(crate) last_byte: Option<Duration>,
    /// From the grant to the end of the exchange.
    pub(crate) ended: Duration,
}

/// Where a count comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confidence {
    /// The server counted.
    Reported,
    /// The text, or the events that carried it.
    Text,
    /// The time at the server.
    Time,
    /// The estimate at the registration stays.
    Estimated,
}

/// Why an answer wasn't charged by the counts of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EstimateReason {
    /// The client left before the server counted.
    ClientLeft,
    /// The server failed inside the answer, before it counted.
    Cut,
    /// The server didn't count.
    NoUsage,
    /// The server's counts can't be those of the request.
    Implausible,
    /// The filter is gone, with what it knew of the answer.
    FilterLost,
    /// The server has acknowledged the request, and computes its answer in the background.
    Background,
}

impl EstimateReason {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::ClientLeft, Self::Cut, Self::NoUsage, Self::Implausible, Self::FilterLost, Self::Background];

    /// The label in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClientLeft => "client_left",
            Self::Cut => "cut",
            Self::NoUsage => "no_usage",
            Self::Implausible => "implausible",
            Self::FilterLost => "filter_lost",
            Self::Background => "background",
        }
    }
}

/// The tokens of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The cost to settle.
    pub(crate) service: Service,
    /// `None`: the estimate of the registration counts.
    pub(crate) prompt: Option<u64>,
    pub(crate) cached: Option<u64>,
    pub(crate) output: Option<u64>,
    /// Where `output` comes from.
    pub(crate) confidence: Confidence,
    /// `None`: the server's counts are charged, or nothing is.
    pub(crate) estimated: Option<EstimateReason>,
}

impl Counted {
    const NOTHING: Self = Self {
        service: Service::Nothing,
        prompt: None,
        cached: None,
        output: None,
        confidence: Confidence::Reported,
        estimated: None,
    };
}

/// Counts the tokens of an answer. `token_time`: the time between two tokens of answers of that endpoint, if it is known.
pub(crate) fn count(answer: &ReportedAnswer, asked: &Asked, token_time: Option<Duration>) -> Counted {
    let believed = Believed::of(answer, asked);
    match answer.end {
        // The server's error has no counts. What comes before the first token is its own.
        EndReason::Unavailable
        | EndReason::ResetBeforeAnswer
        | EndReason::TimedOutBeforeAnswer
        | EndReason::Evicted
        | EndReason::ReportedError => Counted::NOTHING,
        // Redirects and error pages are no service.
        EndReason::Served | EndReason::Unspecified | EndReason::RunsOn if answer.status >= 300 => {
            Counted::NOTHING
        }
        EndReason::RunsOn => {
            counted(Service::Served, &believed, None, Confidence::Estimated, Some(EstimateReason::Background))
        }
        EndReason::Served | EndReason::Unspecified => whole(answer, asked, &believed),
        EndReason::NoAnswer if believed.prompt.is_none() => Counted::NOTHING,
        EndReason::NoAnswer => counted(Service::Cut, &believed, Some(0), Confidence::Reported, None),
        EndReason::ClientLeft if !answer.was_sent => Counted::NOTHING,
        EndReason::ClientLeft => part(answer, asked, &believed, token_time, EstimateReason::ClientLeft),
        EndReason::ResetInsideAnswer | EndReason::TimedOutInsideAnswer | EndReason::ErrorInsideAnswer => {
            part(answer, asked, &believed, token_time, EstimateReason::Cut)
        }
    }
}

/// The counts of the server that the request can have had.
#[derive(Clone, Copy, Debug)]
struct Believed {
    prompt: Option<u64>,
    cached: Option<u64>,
    output: Option<u64>,
    /// The server reported a count that the request can't have had.
    is_implausible: bool,
}

impl Believed {
    fn of(answer: &ReportedAnswer, asked: &Asked) -> Self {
        let prompt_max = u64::from(asked.body_bytes).saturating_add(PROMPT_TOKENS_UNSEEN);
        // A key that the filter doesn't know may ask for more sequences, but then the answer has as many bytes.
        let output_max = asked.output_max().max(answer.body_bytes);
        // A zero is no count: servers report it in place of what they don't count.
        let within = |tokens: Option<u64>, most: u64| tokens.filter(|tokens| (1..=most).contains(tokens));
        let is_beyond = |tokens: Option<u64>, most: u64| tokens.is_some_and(|tokens| tokens > most);
        let prompt = within(answer.prompt, prompt_max);
        Self {
            prompt,
            // A server that counts the prompt and reports no cached tokens has computed all of it.
            cached: prompt.map(|prompt| answer.cached.unwrap_or(0).min(prompt)),
            output: within(answer.output, output_max),
            is_implausible: is_beyond(answer.prompt, prompt_max) || is_beyond(answer.output, output_max),
        }
    }
}

/// The output tokens that the answer shows.
fn shown(answer: &ReportedAnswer) -> Option<u64> {
    let by_text = answer.text_bytes.map(|bytes| bytes.div_ceil(TEXT_BYTES_PER_TOKEN));
    by_text.max((answer.events > 0).then_some(answer.events))
}

/// A complete answer.
fn whole(answer: &ReportedAnswer, asked: &Asked, believed: &Believed) -> Counted {
    let (output, confidence) = match (believed.output, shown(answer)) {
        (Some(output), _) if output >= answer.events => (Some(output), Confidence::Reported),
        _ if !asked.is_generated => (Some(0), Confidence::Reported),
        (reported, Some(shown)) => (Some(shown.max(reported.unwrap_or(0))), Confidence::Text),
        (_, None) => (None, Confidence::Estimated),
    };
    let is_estimated = confidence != Confidence::Reported || believed.prompt.is_none();
    let reason = if believed.is_implausible {
        Some(EstimateReason::Implausible)
    } else {
        is_estimated.then_some(EstimateReason::NoUsage)
    };
    counted(Service::Served, believed, output, confidence, reason)
}

/// The part of an answer that was computed before its end.
fn part(
    answer: &ReportedAnswer,
    asked: &Asked,
    believed: &Believed,
    token_time: Option<Duration>,
    reason: EstimateReason,
) -> Counted {
    let shown = shown(answer).unwrap_or(0);
    let (output, confidence) = match believed.output {
        Some(output) if output >= shown => (output, Confidence::Reported),
        reported => {
            let underway = if answer.end == EndReason::ClientLeft {
                underway(answer, asked, shown, token_time)
            } else {
                0
            };
            (shown.saturating_add(underway).max(reported.unwrap_or(0)), Confidence::Text)
        }
    };
    // What a server computed before it failed reached nobody.
    let by_time = if answer.end == EndReason::ClientLeft { by_time(answer, asked, token_time) } else { 0 };
    let (output, confidence) =
        if by_time > output { (by_time, Confidence::Time) } else { (output, confidence) };
    let is_estimated = confidence != Confidence::Reported || believed.prompt.is_none();
    counted(Service::Cut, believed, Some(output), confidence, is_estimated.then_some(reason))
}

/// The output tokens of the event that a server was computing when its client left. A server that sends several tokens in one event
/// has computed some of them by then. They are at most those of the usual event, because a server that is silent for longer may hang.
fn underway(answer: &ReportedAnswer, asked: &Asked, shown: u64, token_time: Option<Duration>) -> u64 {
    let (Some(last_byte), Some(token_time)) = (answer.last_byte, token_time) else {
        return 0;
    };
    let silent = answer.ended.saturating_sub(last_byte).as_micros() / token_time.as_micros().max(1);
    let usual = shown.checked_div(answer.events).unwrap_or(0);
    u64::try_from(silent).unwrap_or(u64::MAX).saturating_mul(asked.sequences()).min(usual)
}

/// The output tokens that a server had time for. A stream shows its tokens, and an answer without generated tokens has none.
fn by_time(answer: &ReportedAnswer, asked: &Asked, token_time: Option<Duration>) -> u64 {
    if asked.is_streamed || !asked.is_generated || answer.output.is_some_and(|output| output > 0) {
        return 0;
    }
    let token_time = token_time.unwrap_or(TOKEN_TIME_DEFAULT).max(Duration::from_micros(1));
    let tokens = u64::try_from(answer.ended.as_micros() / token_time.as_micros()).unwrap_or(u64::MAX);
    tokens.saturating_mul(asked.sequences()).min(asked.output_max())
}

fn counted(
    service: fn(Usage) -> Service,
    believed: &Believed,
    output: Option<u64>,
    confidence: Confidence,
    estimated: Option<EstimateReason>,
) -> Counted {
    let Believed { prompt, cached, .. } = *believed;
    let usage = Usage { prompt: prompt.map(Tokens), cached: cached.map(Tokens), output: output.map(Tokens) };
    Counted { service: service(usage), prompt, cached, output, confidence, estimated }
}

#[cfg(test)]
mod tests;
