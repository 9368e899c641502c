//! Running the binary, and reading its answers.

use std::process::{Command, Output};

use penstock_tests::binary;
use serde_json::Value;
use tempfile::TempDir;

/// A run of the binary in a folder of its own.
pub(crate) struct Ran {
    pub(crate) output: Output,
    _folder: TempDir,
}

impl Ran {
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The lines of one that succeeded, as JSON.
    pub(crate) fn answers(&self) -> Vec<Value> {
        assert!(self.output.status.success(), "{}", self.stderr());
        let text = std::str::from_utf8(&self.output.stdout).expect("answers are UTF-8");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        text.lines().map(read).collect()
    }

    pub(crate) fn answer(&self) -> Value {
        let mut answers = self.answers();
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    /// The message of a run that was rejected as bad usage.
    pub(crate) fn refused(&self) -> String {
        assert_eq!(self.output.status.code(), Some(2), "{}", self.stderr());
        assert!(!self.stderr().contains("panicked"), "{}", self.stderr());
        self.stderr()
    }
}

/// Runs `penstock model`, with these files beside it.
pub(crate) fn model(arguments: &str, files: &[(&str, &str)]) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content).expect("write a file");
    }
    let output = Command::new(binary::penstock())
        .arg("model")
        .args(arguments.split_whitespace())
        .current_dir(folder.path())
        .output()
        .expect("penstock starts");
    Ran { output, _folder: folder }
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Whether both values are null, or numbers within the tolerance.
pub(crate) fn same(got: &Value, expected: &Value, tolerance: f64, what: &str) {
    if expected.is_null() {
        assert!(got.is_null(), "{what}: {got}");
        return;
    }
    let (got, expected) = (number(got), number(expected));
    let error = (got - expected).abs();
    assert!(error <= tolerance * expected.abs().max(1e-9), "{what}: {got}, not {expected}");
}

pub(crate) fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().expect("a list")
}
