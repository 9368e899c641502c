//! The wrong documents in `tests/wrong`, with their messages.
//!
//! A file has a head, and then cases, each after a line `---`. The first line of a case is its message, as a comment. The document is the
//! head and the rest of the case, so that the line in a message counts from the first line of the head.

use std::path::Path;

use crate::Config;

#[test]
fn a_wrong_document_has_the_message_beside_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong");
    let mut count = 0;
    let mut failures = String::new();
    for entry in std::fs::read_dir(folder).expect("the folder") {
        let path = entry.expect("a file").path();
        let text = format!("\n{}", std::fs::read_to_string(&path).expect("a text"));
        let mut parts = text.trim_end().split("\n---\n");
        let head = parts.next().expect("a head").trim_start();
        for case in parts {
            let (message, keys) = case.split_once('\n').unwrap_or((case, ""));
            let message = message.strip_prefix("# ").expect("a comment");
            let document = format!("{head}\n{keys}\n");
            let document = document.trim_start();
            let found = match Config::parse(document, "f.yaml") {
                Ok(_) => "valid".to_owned(),
                Err(error) => error.to_string(),
            };
            count += 1;
            if found != message {
                failures += &format!("{}:\n{document}- {message}\n+ {found}\n\n", path.display());
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
    assert!(count > 300, "only {count} cases");
}
