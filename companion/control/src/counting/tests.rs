//! What answers cost, whole and cut, with counts of the server and without.

use super::*;

const ASKED: Asked =
    Asked { body_bytes: 400, output_max: 1_000, sequences: 1, is_generated: true, is_streamed: true };
const UNSTREAMED: Asked = Asked { is_streamed: false, ..ASKED };
const TOKEN_TIME: Option<Duration> = Some(Duration::from_millis(10));

fn answer(end: EndReason) -> ReportedAnswer {
    ReportedAnswer {
        end,
        status: 200,
        was_sent: true,
        prompt: None,
        cached: None,
        output: None,
        events: 0,
        text_bytes: Some(0),
        body_bytes: 10_000,
        last_byte: None,
        ended: Duration::from_millis(1_500),
    }
}

/// The counted prompt, the counted output, where that comes from, and why it was estimated.
fn counts(
    answer: &ReportedAnswer,
    asked: &Asked,
) -> (Option<u64>, Option<u64>, Confidence, Option<EstimateReason>) {
    let counted = count(answer, asked, TOKEN_TIME);
    (counted.prompt, counted.output, counted.confidence, counted.estimated)
}

#[test]
fn counts_of_the_server_are_charged_and_learned() {
    let whole =
        ReportedAnswer { prompt: Some(90), output: Some(50), events: 40, ..answer(EndReason::Served) };
    assert_eq!(counts(&whole, &ASKED), (Some(90), Some(50), Confidence::Reported, None));
    let usage = Usage { prompt: Some(Tokens(90)), cached: Some(Tokens(0)), output: Some(Tokens(50)) };
    assert_eq!(count(&whole, &ASKED, None).service, Service::Served(usage));
    let cached = ReportedAnswer { cached: Some(99), ..whole };
    assert_eq!(count(&cached, &ASKED, None).cached, Some(90), "no more than the prompt");
}

#[test]
fn zero_and_less_than_the_events_are_no_count() {
    let zeros = ReportedAnswer {
        prompt: Some(0),
        output: Some(0),
        events: 348,
        text_bytes: Some(1_200),
        ..answer(EndReason::Served)
    };
    assert_eq!(counts(&zeros, &ASKED), (None, Some(348), Confidence::Text, Some(EstimateReason::NoUsage)));
    let first_count = ReportedAnswer { output: Some(1), prompt: Some(9), ..zeros };
    assert_eq!(counts(&first_count, &ASKED).1, Some(348));
}

#[test]
fn text_counts_where_an_event_has_several_tokens() {
    let blocks = ReportedAnswer { events: 40, text_bytes: Some(2_560), ..answer(EndReason::Served) };
    assert_eq!(counts(&blocks, &ASKED).1, Some(640));
    let one_event = ReportedAnswer { events: 1, ..blocks };
    assert_eq!(counts(&one_event, &ASKED).1, Some(640));
    let unread = ReportedAnswer { events: 0, text_bytes: None, ..blocks };
    assert_eq!(counts(&unread, &ASKED), (None, None, Confidence::Estimated, Some(EstimateReason::NoUsage)));
}

#[test]
fn counts_that_the_request_cannot_have_are_not_believed() {
    for wrong in [1_000_000_000_000, u64::MAX, u64::from(u32::MAX)] {
        let whole = ReportedAnswer {
            prompt: Some(wrong),
            output: Some(wrong),
            events: 7,
            text_bytes: Some(28),
            ..answer(EndReason::Served)
        };
        let expected = (None, Some(7), Confidence::Text, Some(EstimateReason::Implausible));
        assert_eq!(counts(&whole, &ASKED), expected);
        assert_eq!(counts(&whole, &Asked { output_max: 0, ..ASKED }), expected);
    }
    // Four sequences of the largest length, by a key that the filter doesn't know.
    let several = ReportedAnswer { prompt: Some(9), output: Some(4_000), ..answer(EndReason::Served) };
    assert_eq!(counts(&several, &ASKED), (Some(9), Some(4_000), Confidence::Reported, None));
    let short = ReportedAnswer { body_bytes: 300, ..several };
    assert_eq!(counts(&short, &ASKED).3, Some(EstimateReason::Implausible));
    let four = Asked { sequences: 4, ..ASKED };
    assert_eq!(counts(&short, &four), (Some(9), Some(4_000), Confidence::Reported, None));
    assert_eq!(
        counts(&ReportedAnswer { output: Some(4_001), ..short }, &four).3,
        Some(EstimateReason::Implausible)
    );
}

#[test]
fn acknowledged_request_in_the_background_is_charged_by_its_estimate() {
    let acknowledged = ReportedAnswer { body_bytes: 200, ..answer(EndReason::RunsOn) };
    let reason = Some(EstimateReason::Background);
    assert_eq!(counts(&acknowledged, &ASKED), (None, None, Confidence::Estimated, reason));
    assert!(matches!(count(&acknowledged, &ASKED, None).service, Service::Served(_)));
    let refused = ReportedAnswer { status: 400, ..acknowledged };
    assert_eq!(count(&refused, &ASKED, None).service, Service::Nothing);
}

#[test]
fn client_that_leaves_a_stream_pays_for_what_arrived() {
    let left = |events, text_bytes| ReportedAnswer {
        events,
        text_bytes: Some(text_bytes),
        ..answer(EndReason::ClientLeft)
    };
    let reason = Some(EstimateReason::ClientLeft);
    assert_eq!(counts(&left(0, 0), &ASKED), (None, Some(0), Confidence::Text, reason), "the prompt");
    assert_eq!(counts(&left(100, 350), &ASKED).1, Some(100));
    assert_eq!(counts(&left(10, 400), &ASKED).1, Some(100));
    assert!(matches!(count(&left(100, 350), &ASKED, None).service, Service::Cut(_)), "teaches nothing");
    // The server counts along.
    let counted = ReportedAnswer { prompt: Some(90), output: Some(160), ..left(40, 400) };
    assert_eq!(counts(&counted, &ASKED), (Some(90), Some(160), Confidence::Reported, None));
    let unsent = ReportedAnswer { was_sent: false, ..left(0, 0) };
    assert_eq!(count(&unsent, &ASKED, None).service, Service::Nothing);
}

#[test]
fn client_that_leaves_between_two_events_pays_for_the_one_underway() {
    let left = |events, silent_ms: u64| ReportedAnswer {
        events,
        text_bytes: Some(640),
        last_byte: Some(Duration::from_millis(1_500 - silent_ms)),
        ..answer(EndReason::ClientLeft)
    };
    assert_eq!(counts(&left(20, 50), &ASKED).1, Some(165), "8 tokens in each event, and time for 5");
    assert_eq!(counts(&left(20, 1_000), &ASKED).1, Some(168), "a server that hangs");
    assert_eq!(counts(&left(160, 50), &ASKED).1, Some(161));
    assert_eq!(count(&left(20, 50), &ASKED, None).output, Some(160), "no answer has shown the time");
    let cut = ReportedAnswer { end: EndReason::ResetInsideAnswer, ..left(20, 50) };
    assert_eq!(counts(&cut, &ASKED).1, Some(160), "the server is gone");
}

#[test]
fn client_that_leaves_a_whole_answer_pays_for_the_time_at_the_server() {
    let left = answer(EndReason::ClientLeft);
    let reason = Some(EstimateReason::ClientLeft);
    assert_eq!(counts(&left, &UNSTREAMED), (None, Some(150), Confidence::Time, reason));
    assert_eq!(count(&left, &Asked { output_max: 20, ..UNSTREAMED }, TOKEN_TIME).output, Some(20));
    assert_eq!(count(&left, &UNSTREAMED, None).output, Some(75), "no answer has shown the time");
    assert_eq!(counts(&left, &Asked { is_generated: false, ..UNSTREAMED }).1, Some(0), "an embedding");
    let four = Asked { sequences: 4, ..UNSTREAMED };
    assert_eq!(counts(&left, &four).1, Some(600), "each sequence has had that time");
    assert_eq!(counts(&left, &Asked { output_max: 20, ..four }).1, Some(80));
    let cut = answer(EndReason::ResetInsideAnswer);
    assert_eq!(counts(&cut, &UNSTREAMED).3, Some(EstimateReason::Cut));
}

#[test]
fn failures_and_other_pages_cost_nothing() {
    for (end, status) in [
        (EndReason::Unavailable, 503),
        (EndReason::ResetBeforeAnswer, 502),
        (EndReason::ReportedError, 429),
        (EndReason::NoAnswer, 200),
        (EndReason::Served, 500),
        (EndReason::Served, 404),
        (EndReason::Served, 302),
    ] {
        let page = ReportedAnswer { status, ..answer(end) };
        assert_eq!(count(&page, &ASKED, TOKEN_TIME), Counted::NOTHING, "{end:?} {status}");
    }
    let prompt = ReportedAnswer { prompt: Some(9), ..answer(EndReason::NoAnswer) };
    assert_eq!((counts(&prompt, &ASKED).0, counts(&prompt, &ASKED).1), (Some(9), Some(0)));
    let failed = ReportedAnswer { events: 5, text_bytes: Some(12), ..answer(EndReason::ErrorInsideAnswer) };
    assert_eq!(counts(&failed, &ASKED).1, Some(5));
}

#[test]
fn embedding_has_no_output() {
    let asked = Asked { is_generated: false, is_streamed: false, ..ASKED };
    let whole = ReportedAnswer { prompt: Some(8), text_bytes: None, ..answer(EndReason::Served) };
    assert_eq!(counts(&whole, &asked), (Some(8), Some(0), Confidence::Reported, None));
}
