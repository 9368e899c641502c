//! From a text to a tree: YAML, which JSON is too, within limits.
//!
//! What isn't YAML is refused with its line; so is what is YAML but means two things at once: a key that stands twice,
//! a second document. Aliases are fine as long as what they make is small.

use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy, Options};

use super::Error;
use super::node::{Kind, Node, Place};

/// Bytes of a document.
const BYTES_MAX: usize = 8 << 20;
/// What aliases may make again of what they name, in parts of a document.
const REPEATED_MAX: usize = 100_000;

/// Reads a text that is a mapping, or empty; `file` names it in errors.
pub(super) fn tree(text: &str, file: &str) -> Result<Node, Error> {
    let node = any(text, file)?;
    match (&node.kind, &node.place) {
        (Kind::Map(_) | Kind::Null, _) => Ok(node),
        (_, Place::Line(line)) => Err(Error::Document {
            file: file.to_owned(),
            line: *line,
            key: "document".into(),
            message: "a configuration is a mapping of keys to values, like `pools: [...]`".into(),
        }),
        (_, Place::Variable(_)) => Ok(node),
    }
}

/// Reads a text; `file` names it in errors.
pub(super) fn any(text: &str, file: &str) -> Result<Node, Error> {
    let wrong = |line: u64, key: &str, message: String| Error::Document {
        file: file.to_owned(),
        line,
        key: key.to_owned(),
        message,
    };
    if text.len() > BYTES_MAX {
        let message = format!("a document has at most {BYTES_MAX} bytes, not {}", text.len());
        return Err(wrong(1, "document", message));
    }
    if text.contains('\0') {
        let line = text.split('\n').take_while(|it| !it.contains('\0')).count() as u64 + 1;
        return Err(wrong(
            line,
            "document",
            "a document is text, without bytes of 0".into(),
        ));
    }
    let mut node: Node = serde_saphyr::from_str_with_options(text, options(DuplicateKeyPolicy::Error))
        .map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map_or(1, |it| it.line()).max(1);
            match error {
                serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
                    let path = twice(text, key, line).unwrap_or_else(|| key.clone());
                    wrong(line, &path, "this key stands here twice".into())
                }
                serde_saphyr::Error::MultipleDocuments { .. } => wrong(
                    divided(text, line),
                    "document",
                    "there is a second document (after `---`); a configuration is one".into(),
                ),
                other => wrong(line, "document", said(&other.to_string())),
            }
        })?;
    let nothing = node.is_empty();
    if let Place::Line(line) = &mut node.place {
        *line = if nothing { 1 } else { (*line).max(1) };
    }
    Ok(node)
}

/// A value that stands in a variable of the environment; what isn't YAML is a text.
pub(super) fn scalar(text: &str) -> Option<Node> {
    serde_saphyr::from_str_with_options(text, options(DuplicateKeyPolicy::Error)).ok()
}

fn options(duplicate_keys: DuplicateKeyPolicy) -> Options {
    serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        strict_booleans: true,
        with_snippet: false,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: REPEATED_MAX,
        },
    }
}

/// The path of a key that stands twice, the second time in `line`.
fn twice(text: &str, key: &str, line: u64) -> Option<String> {
    let node: Node = serde_saphyr::from_str_with_options(text, options(DuplicateKeyPolicy::LastWins)).ok()?;
    node.path_to(key, line)
}

/// The line of the `---` before `line`.
fn divided(text: &str, line: u64) -> u64 {
    let before = text.lines().zip(1..=line).filter(|(it, _)| it.starts_with("---"));
    before.map(|(_, at)| at).last().unwrap_or(line)
}

/// The first line of what a library said, which may go on to quote the document.
fn said(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    if line.is_empty() {
        return "this isn't YAML".into();
    }
    // The line is said already.
    match line.rsplit_once(" at line ") {
        Some((what, place)) => {
            let column = place.split_once(", ").map_or("", |(_, column)| column);
            format!("this isn't YAML: {what} ({column})")
        }
        None => format!("this isn't YAML: {line}"),
    }
}
