//! A server's answer: cut anywhere it tells the same, whatever its format.

use penstock_filter_core::response::{Format, ResponseScanner, ResponseStats};

use super::body::offsets;

/// Reads the input as an answer, whole and in pieces; its first byte is the format.
pub fn run(input: &[u8]) {
    let (format, answer) = match input.split_first() {
        Some((b'j', answer)) => (Format::Json, answer),
        Some((b'o', answer)) => (Format::Opaque, answer),
        Some((b's', answer)) => (Format::Sse, answer),
        Some(_) | None => (Format::Sse, input),
    };
    let whole = scan(format, &[answer]);
    let bytes: Vec<&[u8]> = answer.chunks(1).collect();
    assert_eq!(scan(format, &bytes), whole, "byte by byte");
    for at in offsets(answer.len()) {
        let (first, second) = answer.split_at(at);
        assert_eq!(scan(format, &[first, &[], second]), whole, "cut at {at}");
    }
    assert_eq!(
        Format::from_headers(Some(answer), None),
        Format::from_headers(Some(answer), Some(b"identity"))
    );
    assert_eq!(
        Format::from_headers(Some(b"text/event-stream"), Some(b"gzip")),
        Format::Opaque
    );
}

fn scan(format: Format, slices: &[&[u8]]) -> ResponseStats {
    let mut scanner = ResponseScanner::new(format);
    for slice in slices {
        if scanner.wants_bytes() {
            scanner.feed(slice);
        }
    }
    let told = scanner.stats();
    assert_eq!(scanner.stats(), told, "asked twice");
    told
}
