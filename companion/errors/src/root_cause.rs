//! The root cause of an error: the last in its chain of sources, which is the one that an operator can act on.

use std::error::Error;

/// The message of the last source. The messages before it only name the operation, which the log line names already.
#[must_use]
pub fn root_cause(error: &dyn Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("request failed")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_root_cause_is_the_last_source_or_the_error_itself() {
        let inner = || std::io::Error::other("connection refused");
        assert_eq!(root_cause(&Outer(inner())), "connection refused");
        assert_eq!(root_cause(&inner()), "connection refused");
    }
}
