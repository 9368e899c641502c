//! How a command of `penstock` fails: its exit code, and the cause of an error that a person can act on.

mod root_cause;

use std::error::Error;
use std::io;

pub use self::root_cause::root_cause;

/// The exit code of a command that was used or configured wrongly.
pub const EXIT_USAGE: u8 = 2;
/// The exit code of a command that failed while it ran.
const EXIT_FAILED: u8 = 1;

/// The error of a command.
pub trait Failure: Error {
    /// Whether the user must change an argument, the configuration or a file. Otherwise the command failed while it ran.
    fn is_usage(&self) -> bool;

    /// Whether the message begins with a place in a file, like a compiler's.
    fn has_place(&self) -> bool {
        false
    }

    /// The process' exit code.
    fn exit_code(&self) -> u8 {
        if self.is_usage() { EXIT_USAGE } else { EXIT_FAILED }
    }
}

/// Whether a file can't be read because its path is wrong, which is the user's to change.
#[must_use]
pub fn is_wrong_path(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | IsADirectory)
}
