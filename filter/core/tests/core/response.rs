//! The facts that the response scanner extracts from responses of each API, and its tolerance of malformed ones.

use penstock_filter_core::response::{Format, ResponseScanner, ResponseStats, Verdict};
use penstock_filter_core::time::Instant;
use penstock_filter_core::usage::Usage;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn stats(format: Format, body: &str) -> ResponseStats {
    let mut scanner = ResponseScanner::new(format);
    scanner.feed(body.as_bytes());
    scanner.stats()
}

fn usage(prompt: u64, cached: Option<u64>, output: Option<u64>) -> Usage {
    Usage { prompt: Some(prompt), cached, output }
}

#[test]
fn format_follows_the_headers() {
    let format = |kind: &str, coding: Option<&str>| {
        Format::from_headers(Some(kind.as_bytes()), coding.map(str::as_bytes))
    };
    assert_eq!(format("text/event-stream", None), Format::Sse);
    assert_eq!(format("Text/Event-Stream; charset=utf-8", None), Format::Sse);
    assert_eq!(format("application/json", Some("identity")), Format::Json);
    assert_eq!(format("application/json", Some("gzip")), Format::Opaque);
    for json in ["application/vnd.api+json", "application/problem+json; charset=utf-8", "Text/JSON"] {
        assert_eq!(format(json, None), Format::Json, "{json}");
    }
    for text in ["text/plain", "text/html; charset=utf-8", "application/xhtml+xml"] {
        assert_eq!(format(text, None), Format::Unknown { is_text: true }, "{text}");
    }
    assert_eq!(format("audio/mpeg", None), Format::Unknown { is_text: false });
    assert_eq!(Format::from_headers(None, None), Format::Unknown { is_text: true });
}

#[test]
fn usage_of_whole_documents_is_read() {
    for (body, expected) in [
        (
            r#"{"choices":[{"message":{"content":"{\"usage\":{\"prompt_tokens\":9}}"}}],
                "usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12,"prompt_tokens_details":{"cached_tokens":2}}}"#,
            usage(7, Some(2), Some(5)),
        ),
        (
            r#"{"object":"list","data":[{"embedding":[0.1,-2e3]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#,
            usage(8, None, None),
        ),
        (
            r#"{"object":"response","usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":1},"output_tokens":4,"output_tokens_details":{"reasoning_tokens":2}}}"#,
            usage(3, Some(1), Some(4)),
        ),
        (
            r#"{"type":"message","usage":{"input_tokens":3,"cache_read_input_tokens":10,"cache_creation_input_tokens":5,"output_tokens":4}}"#,
            usage(18, Some(10), Some(4)),
        ),
        (r#"{"usage":null}"#, Usage::default()),
        (r#"{"data":{"usage":{"prompt_tokens":1}}}"#, Usage::default()),
        (r#"{"usage":{"prompt_tokens":-1,"completion_tokens":1.5}}"#, Usage::default()),
        (r#"{"usage":{"prompt_tokens":12.0,"completion_tokens":"5"}}"#, usage(12, None, Some(5))),
        (r#"{"usage":{"prompt_tokens":"12.0","completion_tokens":"x"}}"#, usage(12, None, None)),
        (
            r#"{"choices":[{"usage":{"prompt_tokens":7,"completion_tokens":5}}],"usage":null}"#,
            usage(7, None, Some(5)),
        ),
        ("<html>", Usage::default()),
        ("", Usage::default()),
    ] {
        let stats = stats(Format::Json, body);
        assert_eq!(stats.usage, expected, "{body}");
        assert_eq!(stats.text_events, 0);
    }
}

/// Scans a document as the worker does, and counts the bytes that the scanner needs.
fn scanned(body: &str, piece: usize, length: usize) -> (usize, Usage) {
    let mut scanner = ResponseScanner::new(Format::Json).of_length(length, true);
    let mut read = 0;
    for bytes in body.as_bytes().chunks(piece) {
        let needed = &bytes[scanner.skip(bytes.len())..];
        read += needed.len();
        scanner.feed(needed);
    }
    (read, scanner.stats().usage)
}

#[test]
fn only_the_end_of_a_long_document_is_read_in_pieces_of_any_size() {
    let numbers = "0.123456,".repeat(2_000);
    let body = format!("{{\"data\":[{{\"embedding\":[{numbers}0]}}],\"usage\":{{\"prompt_tokens\":7}}}}");
    for piece in [1, 7, 4_095, 4_096, 4_097, 16_384, body.len()] {
        assert_eq!(scanned(&body, piece, body.len()), (4_096, usage(7, None, None)), "{piece}");
    }
    // A shorter one is read whole.
    let short = &body[..10_000].replace("{\"data\"", "{\"usage\":{\"prompt_tokens\":8},\"data\"")[..8_192];
    assert_eq!(scanned(short, 1_000, 8_192), (8_192, usage(8, None, None)));
}

#[test]
fn document_without_counts_at_its_end_has_none() {
    let body = format!("{{\"usage\":{{\"prompt_tokens\":7}},\"text\":\"{}\"}}", "x".repeat(20_000));
    assert_eq!(scanned(&body, 1_000, body.len()), (4_096, Usage::default()));
    // Another length than the announced one.
    let cut = &body[..15_000];
    assert_eq!(scanned(cut, 1_000, body.len()), (0, Usage::default()));
}

#[test]
fn chat_stream_is_read() {
    let body = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n",
        ": a comment\n\n",
        "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"b\"}}]}\r\n\r\n",
        "event: x\rid: 1\rdata:{\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}}]}\r\r",
        "data: garbage\n\n",
        "data: {\"choices\":\ndata: [{\"text\":\"c\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":5}}\n\n",
        "data: [DONE]\n\n",
    );
    let stats = stats(Format::Sse, body);
    assert_eq!(stats.text_events, 4);
    assert_eq!(stats.usage, usage(7, None, Some(5)));
}

/// Only the text of an event may differ from the event before.
#[test]
fn counts_after_alike_events_are_read() {
    let event = |content: &str, more: &str| {
        format!("data: {{\"id\":\"x\",\"choices\":[{{\"delta\":{{\"content\":\"{content}\"}}}}]{more}}}\n\n")
    };
    let body = [
        event("a", ""),
        event("b", ""),
        event("", ""),
        event("c", ",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}"),
        event("d", ",\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":4}"),
        event("e", ",\"usage\":null"),
        event("\\\"}],\\\"usage\\\":{\\\"completion_tokens\\\":9}}", ",\"usage\":null"),
        "data: {\"error\":{\"message\":\"out of memory\"}}\n\n".to_owned(),
        event("f", ""),
    ]
    .concat();
    let stats = stats(Format::Sse, &body);
    assert_eq!(stats.text_events, 7);
    assert_eq!(stats.usage, usage(7, None, Some(4)));
}

#[test]
fn messages_stream_is_read() {
    let body = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "event: ping\ndata: {\"type\": \"ping\"}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"Hm\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"signature_delta\",\"signature\":\"x\"}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    let stats = stats(Format::Sse, body);
    assert_eq!(stats.text_events, 2);
    assert_eq!(stats.usage, usage(30, Some(5), Some(15)));
}

#[test]
fn responses_stream_is_read() {
    let body = concat!(
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"In\"}\n\n",
        "event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"In\"}\n\n",
        "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"content\":[{\"text\":\"In\"}]}],\"usage\":{\"input_tokens\":36,\"output_tokens\":87}}}\n\n",
    );
    let stats = stats(Format::Sse, body);
    assert_eq!(stats.text_events, 1);
    assert_eq!(stats.usage, usage(36, None, Some(87)));
}

#[test]
fn last_event_counts_without_its_blank_line() {
    assert_eq!(stats(Format::Sse, "data: {\"choices\":[{\"text\":\"c\"}]}").text_events, 1);
    assert_eq!(stats(Format::Sse, "data: {\"choices\":[{\"text\":\"c\"}").text_events, 1);
}

#[test]
fn times_of_first_and_last_byte_of_an_unreadable_answer_are_recorded() {
    let mut scanner = ResponseScanner::new(Format::Opaque);
    for nanos in [5, 7, 9] {
        scanner.record_arrival(Instant::from_nanos(nanos), 3);
        if scanner.wants_bytes() {
            scanner.feed(b"abc");
        }
    }
    let stats = scanner.stats();
    assert_eq!(
        (stats.first_token, stats.last_byte, stats.body_bytes),
        (Some(Instant::from_nanos(5)), Some(Instant::from_nanos(9)), 9)
    );
}

const ROLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";

/// What the begin of a stream shows, and the status of its error.
fn verdict(format: Format, body: &str) -> (Verdict, u32) {
    let mut scanner = ResponseScanner::new(format);
    scanner.feed(body.as_bytes());
    (scanner.verdict(), scanner.error().status())
}

#[test]
fn an_error_in_place_of_a_stream_is_recognized() {
    let errors = [
        ("data: {\"error\":{\"message\":\"m\",\"type\":\"rate_limit_error\"}}\n\n", 429),
        ("data: {\"error\":{\"message\":\"m\",\"code\":503}}\n\n", 503),
        ("data: {\"error\":{\"message\":\"m\",\"code\":\"400\"}}\n\n", 400),
        ("data: {\"error\":\"Model is overloaded\",\"error_type\":\"overloaded\"}\n\n", 503),
        ("data: {\"object\":\"error\",\"message\":\"m\",\"code\":404}\n\n", 404),
        (
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"m\"}}\n\n",
            503,
        ),
        ("event: error\r\ndata: out of memory\r\n\r\n", 500),
        ("data: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"m\"}\n\n", 500),
        ("data: {\"code\":\"rate_limit_exceeded\",\"message\":\"m\",\"type\":\"error\"}\n\n", 429),
        (
            "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"status\":\"in_progress\",\"error\":null}}\n\ndata: {\"type\":\"response.failed\",\"response\":{\"status\":\"failed\",\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"m\"}}}\n\n",
            429,
        ),
        ("data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"abort\"}]}\n\n", 500),
        ("{\"error\":{\"message\":\"no event around it\",\"code\":429}}", 429),
    ];
    for (error, status) in errors {
        for before in ["", ": ping\n\n", "\n\n", ROLE, "event: ping\ndata: {\"type\":\"ping\"}\n\n"] {
            if error.starts_with('{') && !before.trim().is_empty() {
                continue;
            }
            let body = format!("{before}{error}");
            assert_eq!(verdict(Format::Sse, &body), (Verdict::Error, status), "{body}");
        }
    }
}

#[test]
fn beginning_of_an_answer_is_open_until_its_first_token() {
    for (format, body, expected) in [
        (Format::Sse, ROLE, Verdict::Open),
        (Format::Sse, ": ping\n\n", Verdict::Open),
        (
            Format::Sse,
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"output_tokens\":0}}}\n\n",
            Verdict::Open,
        ),
        (Format::Sse, "data: {\"choices\":[{\"delta\":{\"reasoning\":\"h\"}}]}\n\n", Verdict::Answer),
        (
            Format::Sse,
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}}]}\n\n",
            Verdict::Answer,
        ),
        (Format::Sse, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", Verdict::Answer),
        (
            Format::Sse,
            "data: {\"choices\":[{\"delta\":{},\"finish_reason\":null,\"stop_reason\":\"error\"}]}\n\n",
            Verdict::Open,
        ),
        (Format::Sse, "data: [DONE]\n\n", Verdict::Open),
        (Format::Json, "{\"id\":\"x\",\"error\":null,", Verdict::Open),
        (Format::Json, "{\"error\":null,\"choices\":[{\"message\":{\"content\":\"a\"", Verdict::Answer),
        (Format::Json, "{\"data\":[{\"embedding\":[0.5,", Verdict::Answer),
        (Format::Json, "{\"content\":[{\"type\":\"text\",\"text\":\"a\"", Verdict::Answer),
        (Format::Json, "{\"error\":{\"message\":\"m\"}", Verdict::Open),
        (Format::Json, "{\"error\":{}}", Verdict::Open),
        (Format::Unknown { is_text: true }, "<html>", Verdict::Answer),
    ] {
        assert_eq!(verdict(format, body).0, expected, "{body}");
    }
    assert_eq!(verdict(Format::Json, "{\"error\":{\"message\":\"m\"}}").0, Verdict::Error);
}

#[test]
fn body_without_tokens_is_no_answer() {
    for (format, body, is_answer) in [
        (Format::Sse, "", false),
        (Format::Sse, "data: [DONE]\n\n", false),
        (Format::Sse, ROLE, false),
        (Format::Sse, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n", true),
        (Format::Json, "", false),
        (Format::Json, "{}", false),
        (Format::Unknown { is_text: true }, "<html>", false),
        (Format::Unknown { is_text: true }, " {\"choices\":[{\"text\":\"a\"}]}", true),
        (Format::Unknown { is_text: false }, "ID3", true),
    ] {
        let stats = stats(format, body);
        assert_eq!(
            (stats.is_answer, stats.has_token),
            (is_answer, is_answer && !body.contains("stop")),
            "{body}"
        );
    }
}

#[test]
fn text_of_streams_and_documents_is_counted_once() {
    for (format, body, bytes) in [
        (Format::Sse, format!("{ROLE}{TEXT}{TEXT}"), 4),
        (
            Format::Sse,
            "data: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"content\":[{\"text\":\"Hi\"}]}]}}\n\n".to_owned(),
            2,
        ),
        (Format::Json, "{\"choices\":[{\"message\":{\"content\":\"\\u00e4b\"}}]}".to_owned(), 3),
        (Format::Json, "{\"content\":[{\"text\":\"ab\"},{\"input\":{\"city\":\"Rome\"}}]}".to_owned(), 6),
        (Format::Json, "{\"output\":[{\"content\":[{\"text\":\"abc\"}]},{\"arguments\":\"{}\"}]}".to_owned(), 5),
    ] {
        assert_eq!(stats(format, &body).text_bytes, Some(bytes), "{body}");
    }
}

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"ab\"}}]}\n\n";

#[test]
fn largest_counts_win() {
    let body = concat!(
        "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hello\"}}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"input_tokens\":0,\"output_tokens\":15}}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"input_tokens\":0,\"output_tokens\":0}}\n\n",
    );
    assert_eq!(stats(Format::Sse, body).usage, usage(25, None, Some(15)));
    let begun = &body[..body.find("Hello").expect("a delta")];
    assert_eq!(stats(Format::Sse, begun).usage, usage(25, None, None), "the first count isn't final");
}

#[test]
fn failure_inside_an_answer_is_noted() {
    for failure in [
        "data: {\"error\":{\"message\":\"m\"}}\n\n",
        "event: error\ndata: {}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":\"error\"}]}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\"},\"finish_reason\":{\"type\":\"abort\",\"message\":\"m\"}}]}\n\n",
    ] {
        let stats = stats(Format::Sse, &format!("{TEXT}{failure}"));
        assert!(stats.is_failed && stats.has_token, "{failure}");
    }
    assert!(!stats(Format::Sse, TEXT).is_failed);
}
