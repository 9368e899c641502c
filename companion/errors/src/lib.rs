//! How a command of `penstock` fails: its exit code, and the cause of an error that a person can act on.

mod root_cause;

pub use self::root_cause::root_cause;

/// The exit code of a command that was used or configured wrongly.
pub const EXIT_USAGE: u8 = 2;
