//! Errors of a configuration. Each names the place, the key's path and the values that are allowed.

use std::path::PathBuf;

use super::reader::ReadError;
use super::tree::{Node, Place};
use super::yaml::YamlError;

/// The key that stands for the document as a whole in an error.
const WHOLE: &str = "document";

/// A configuration that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A value outside any file is wrong: in a change over HTTP, or in the environment.
    #[error("{origin}: {key}: {message}")]
    Value {
        /// The source of the value, such as `patch` or `environment: PENSTOCK_LIMITS__FLOWS`.
        origin: String,
        /// The key's path, such as `pools[0].queue.ttl`.
        key: String,
        /// What is wrong, and the values that are allowed.
        message: String,
    },
    /// A line of the document is wrong, by itself or together with other keys.
    #[error("{file}:{line}: {key}: {message}")]
    Document {
        /// The file.
        file: String,
        /// From 1.
        line: u64,
        /// The key's path, such as `pools[0].queue.ttl`.
        key: String,
        /// What is wrong, and the values that are allowed.
        message: String,
    },
}

/// A value that breaks a rule which the types of the document can't express, such as a rule across keys.
#[derive(Debug)]
pub(super) struct Violation {
    /// The key's path, such as `pools[0].queue.ttl`.
    pub(super) key: String,
    /// What is wrong, and the values that are allowed.
    pub(super) message: String,
}

impl Violation {
    pub(super) fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl Error {
    pub(super) fn at_place(place: &Place, file: &str, key: String, message: String) -> Self {
        match place {
            Place::Line(line) => Self::Document { file: file.to_owned(), line: *line, key, message },
            Place::Variable(name) => Self::in_variable(name, key, message),
            Place::Unknown => Self::Value { origin: file.to_owned(), key, message },
        }
    }

    pub(super) fn in_variable(name: &str, key: String, message: String) -> Self {
        Self::Value { origin: format!("environment: {name}"), key, message }
    }

    pub(super) fn from_yaml(error: YamlError, file: &str) -> Self {
        Self::Document {
            file: file.to_owned(),
            line: error.line,
            key: error.key.unwrap_or_else(|| WHOLE.into()),
            message: error.message,
        }
    }

    pub(super) fn from_read(error: ReadError, tree: &Node, file: &str) -> Self {
        let key = error.path().unwrap_or_else(|| WHOLE.into());
        let place = error.place.as_ref().unwrap_or(&tree.place);
        Self::at_place(place, file, key, error.message)
    }

    pub(super) fn from_violation(violation: Violation, tree: &Node, file: &str) -> Self {
        Self::at_place(tree.place_of(&violation.key), file, violation.key, violation.message)
    }
}
