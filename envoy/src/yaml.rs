//! Configurations as YAML, for people to read.

use serde_json::Value;

/// These documents as YAML, after `note` (any number of lines) as a comment.
///
/// # Errors
/// A document can't be written as YAML, which no settings cause.
pub fn text(documents: &[Value], note: &str) -> Result<String, Error> {
    let mut text = String::new();
    for line in note.lines() {
        text.push_str(format!("# {line}").trim_end());
        text.push('\n');
    }
    // Quoted instead of folded, so that a long string stays on one line, unchanged.
    let mut options = serde_saphyr::SerializerOptions::default();
    options.prefer_block_scalars = false;
    for (index, document) in documents.iter().enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        text.push_str(&serde_saphyr::to_string_with_options(document, options.clone())?);
    }
    Ok(text)
}

/// A configuration can't be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("the configuration can't be written as YAML: {0}")]
pub struct Error(#[from] serde_saphyr::SerializeError);
