//! A request's body: cut anywhere it says the same, and it says what a JSON parser says.

use std::sync::Arc;

use penstock_filter_core::body::{Body, BodyError, BodyScanner};
use serde_json::Value;

/// Up to here an input is cut at every offset; a longer one at so many, and into single bytes.
const CUTS: usize = 48;

/// Reads the input as a body, whole and in pieces.
pub fn run(body: &[u8]) {
    let whole = scan(&[body]);
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(scan(&bytes), whole, "byte by byte");
    for at in offsets(body.len()) {
        let (first, second) = body.split_at(at);
        assert_eq!(scan(&[first, &[], second]), whole, "cut at {at}");
    }
    if let Ok(read) = whole {
        agrees(&read, body);
    }
}

/// Where an input of this length is cut.
pub fn offsets(length: usize) -> impl Iterator<Item = usize> {
    // The step is odd, so that over lengths every offset has its turn.
    (0..=length).step_by((length / CUTS) | 1)
}

fn scan(slices: &[&[u8]]) -> Result<Body, BodyError> {
    let wanted: Arc<[String]> = ["user".to_owned(), "tenant".to_owned()].into();
    let mut scanner = BodyScanner::new(wanted);
    for slice in slices {
        scanner.feed(slice)?;
    }
    let read = scanner.finish()?;
    assert!(
        !read.model.is_empty() && read.model.len() <= 256,
        "{}",
        read.model
    );
    assert_eq!(read.identities.len(), 2);
    Ok(read)
}

/// What was taken for JSON is JSON, and its model is the one that a server would read.
fn agrees(read: &Body, body: &[u8]) {
    let map = match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => map,
        Ok(other) => panic!("taken for an object: {other}"),
        // JSON's grammar has these; that parser doesn't.
        Err(error) => {
            let why = error.to_string();
            let known = ["surrogate", "hex escape", "recursion", "number out of range"];
            assert!(known.iter().any(|it| why.contains(it)), "{why}");
            return;
        }
    };
    assert_eq!(
        map.get("model").and_then(Value::as_str),
        Some(read.model.as_str())
    );
    assert_eq!(
        map.get("stream").and_then(Value::as_bool).unwrap_or(false),
        read.stream
    );
}
