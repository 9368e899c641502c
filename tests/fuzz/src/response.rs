//! The response scanner: its result doesn't depend on how the response is cut, in any format.

use penstock_filter_core::response::{Format, ResponseScanner, ResponseStats};

use super::body::offsets;

/// Scans the input as a response, whole and in pieces; the first byte selects the format.
pub fn run(input: &[u8]) {
    let (format, response) = match input.split_first() {
        Some((b'j', response)) => (Format::Json, response),
        Some((b'o', response)) => (Format::Opaque, response),
        Some((b's', response)) => (Format::Sse, response),
        Some(_) | None => (Format::Sse, input),
    };
    let whole = scan(format, &[response]);
    let bytes: Vec<&[u8]> = response.chunks(1).collect();
    assert_eq!(scan(format, &bytes), whole, "byte by byte");
    for offset in offsets(response.len()) {
        let (first, second) = response.split_at(offset);
        assert_eq!(scan(format, &[first, &[], second]), whole, "cut at {offset}");
    }
    assert_eq!(
        Format::from_headers(Some(response), None),
        Format::from_headers(Some(response), Some(b"identity"))
    );
    assert_eq!(Format::from_headers(Some(b"text/event-stream"), Some(b"gzip")), Format::Opaque);
}

fn scan(format: Format, slices: &[&[u8]]) -> ResponseStats {
    let mut scanner = ResponseScanner::new(format);
    for slice in slices {
        if scanner.wants_bytes() {
            scanner.feed(slice);
        }
    }
    let stats = scanner.stats();
    assert_eq!(scanner.stats(), stats, "a second call returns the same");
    stats
}
