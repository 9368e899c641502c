//! Reads YAML, which includes JSON, into a tree, within limits.
//!
//! A key that is written twice and a second document are errors with their line, because the author can't have meant both.
//! Aliases are allowed as long as the document that they expand to stays small.

use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy, Options};

use super::tree::{Node, Place};

/// Bytes of a document.
const BYTES_MAX: usize = 8 << 20;
/// Parser events that aliases may repeat in one document.
const REPEATED_MAX: usize = 100_000;

/// A text that is not the YAML that was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// From 1.
    pub line: u64,
    /// The path of the key that is wrong; `None` if the error is not about a key.
    pub key: Option<String>,
    /// What is wrong.
    pub message: String,
}

impl YamlError {
    fn new(line: u64, message: impl Into<String>) -> Self {
        Self { line, key: None, message: message.into() }
    }
}

/// The text of a file.
///
/// # Errors
/// When the bytes are not UTF-8.
pub fn utf8(bytes: Vec<u8>) -> Result<String, YamlError> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..valid).unwrap_or_default();
        let line = before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        YamlError::new(line, "this line is not UTF-8 text")
    })
}

/// Reads a text that is one document, or empty.
///
/// # Errors
/// When the text is not one YAML document, is too long, or has a key twice.
pub fn document(text: &str) -> Result<Node, YamlError> {
    if text.len() > BYTES_MAX {
        let message = format!("a document has at most {BYTES_MAX} bytes, not {}", text.len());
        return Err(YamlError::new(1, message));
    }
    if text.contains('\0') {
        let line = text.split('\n').take_while(|line| !line.contains('\0')).count() as u64 + 1;
        return Err(YamlError::new(line, "a document is text and contains no bytes of 0"));
    }
    let mut node: Node = serde_saphyr::from_str_with_options(text, options(DuplicateKeyPolicy::Error))
        .map_err(|error| explain(text, error))?;
    if node.is_null() {
        node.place = Place::Line(1);
    }
    Ok(node)
}

/// Reads a text of any number of documents.
///
/// # Errors
/// When the text is not YAML, or has a key twice.
pub fn documents(text: &str) -> Result<Vec<Node>, YamlError> {
    serde_saphyr::from_multiple_with_options(text, options(DuplicateKeyPolicy::Error))
        .map_err(|error| explain(text, error))
}

/// Reads the value of an environment variable; `None` if the value is not YAML.
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

fn explain(text: &str, error: serde_saphyr::Error) -> YamlError {
    let error = error.without_snippet();
    let line = error.location().map_or(1, |location| location.line()).max(1);
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => YamlError {
            line,
            key: Some(duplicate_path(text, key, line).unwrap_or_else(|| key.clone())),
            message: "this key is written twice".into(),
        },
        serde_saphyr::Error::MultipleDocuments { .. } => YamlError::new(
            separator_line(text, line),
            "a second document begins here (after `---`); a configuration is one document",
        ),
        other => YamlError::new(line, summary(&other.to_string())),
    }
}

/// The path of a key that is written twice, the second time in `line`.
fn duplicate_path(text: &str, key: &str, line: u64) -> Option<String> {
    let node: Node = serde_saphyr::from_str_with_options(text, options(DuplicateKeyPolicy::LastWins)).ok()?;
    node.path_to(key, line)
}

/// The line of the last `---` up to `line`.
fn separator_line(text: &str, line: u64) -> u64 {
    let separators = text.lines().zip(1..=line).filter(|(content, _)| content.starts_with("---"));
    separators.map(|(_, number)| number).last().unwrap_or(line)
}

/// The first line of the parser's message, without its line number, which the error has already. The lines after the first
/// may quote the document.
fn summary(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    if first.is_empty() {
        return "this isn't YAML".into();
    }
    match first.rsplit_once(" at line ") {
        Some((reason, place)) => {
            let column = place.split_once(", ").map_or("", |(_, column)| column);
            format!("this isn't YAML: {reason} ({column})")
        }
        None => format!("this isn't YAML: {first}"),
    }
}
