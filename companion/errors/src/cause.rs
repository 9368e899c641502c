//! Why something failed: the last of an error's causes, which is what a person can do something about.

use std::error::Error;

/// The last cause's words. Those before it say what it happened to, which whoever asks knows.
#[must_use]
pub fn root(of: &dyn Error) -> String {
    let mut last = of;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("can't ask")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_last_cause_is_said_and_an_error_without_one_says_itself() {
        let inner = || std::io::Error::other("nobody listens");
        assert_eq!(root(&Outer(inner())), "nobody listens");
        assert_eq!(root(&inner()), "nobody listens");
    }
}
