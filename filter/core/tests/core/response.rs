//! The facts that the response scanner extracts from responses of each API, and its tolerance of malformed ones.

use penstock_filter_core::response::{Format, ResponseScanner, ResponseStats};
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
    assert_eq!(format("text/plain", None), Format::Opaque);
    assert_eq!(Format::from_headers(None, None), Format::Opaque);
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
    let mut scanner = ResponseScanner::new(Format::Json).of_length(length);
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
fn times_of_first_and_last_byte_are_recorded() {
    let mut scanner = ResponseScanner::new(Format::Opaque);
    assert!(!scanner.wants_bytes());
    for nanos in [5, 7, 9] {
        scanner.record_arrival(Instant::from_nanos(nanos));
    }
    let stats = scanner.stats();
    assert_eq!(
        (stats.first_byte, stats.last_byte),
        (Some(Instant::from_nanos(5)), Some(Instant::from_nanos(9)))
    );
}
