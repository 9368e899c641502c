//! The body scanner: its result doesn't depend on how the body is cut, and it agrees with a JSON parser.

use std::sync::Arc;

use penstock_filter_core::body::{Body, BodyError, BodyScanner};
use serde_json::Value;

/// An input up to this length is cut at every offset; a longer one at this many offsets, and into single bytes.
const CUTS: usize = 48;

/// Scans the input as a body, whole and in pieces.
pub fn run(body: &[u8]) {
    let whole = scan(&[body]);
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(scan(&bytes), whole, "byte by byte");
    for offset in offsets(body.len()) {
        let (first, second) = body.split_at(offset);
        assert_eq!(scan(&[first, &[], second]), whole, "cut at {offset}");
    }
    if let Ok(read) = whole {
        assert_agrees(&read, body);
    }
}

/// The offsets at which an input of this length is cut.
pub fn offsets(length: usize) -> impl Iterator<Item = usize> {
    // The step is odd, so that every offset is used for some length.
    (0..=length).step_by((length / CUTS) | 1)
}

fn scan(slices: &[&[u8]]) -> Result<Body, BodyError> {
    let wanted: Arc<[String]> = ["user".to_owned(), "tenant".to_owned()].into();
    let mut scanner = BodyScanner::new(wanted);
    for slice in slices {
        scanner.feed(slice)?;
    }
    let read = scanner.finish()?;
    assert!(read.model.len() <= 256, "{}", read.model);
    assert_eq!(read.identities.len(), 2);
    Ok(read)
}

/// Asserts that an accepted body is JSON, and that its model is the one a server would read.
fn assert_agrees(read: &Body, body: &[u8]) {
    let map = match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => map,
        Ok(other) => panic!("accepted as an object: {other}"),
        // JSON's grammar allows these inputs; this parser doesn't.
        Err(error) => {
            let message = error.to_string();
            let known = ["surrogate", "hex escape", "recursion", "number out of range"];
            assert!(known.iter().any(|reason| message.contains(reason)), "{message}");
            return;
        }
    };
    let model = map.get("model").filter(|model| !model.is_null()).map_or(Some(""), Value::as_str);
    assert_eq!(model, Some(read.model.as_str()));
    assert_eq!(map.get("stream").and_then(Value::as_bool).unwrap_or(false), read.stream);
}
