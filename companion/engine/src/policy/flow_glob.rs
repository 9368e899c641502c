//! Patterns of flows' identities.

use alloc::boxed::Box;

/// A pattern of flows' identities: `*` matches any characters, `?` one.
// The libraries for globs need the standard library, which the engine refuses.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowGlob(Box<str>);

impl FlowGlob {
    /// The glob of this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The one identity that matches; `None`: it is a pattern.
    #[must_use]
    pub fn literal(&self) -> Option<&str> {
        (!self.0.contains(['*', '?'])).then_some(&*self.0)
    }

    /// Whether the flow of this identity matches. Takes at most the product of both lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (mut pattern, mut text) = (self.0.chars(), name.chars());
        // What to go on with if the characters after the last `*` don't match: it then stands for one character more.
        let mut last_star: Option<(core::str::Chars<'_>, core::str::Chars<'_>)> = None;
        loop {
            let before = (pattern.clone(), text.clone());
            match (pattern.next(), text.next()) {
                (Some('*'), _) => {
                    text = before.1;
                    last_star = Some((pattern.clone(), text.clone()));
                }
                (None, None) => return true,
                (Some(expected), Some(found)) if expected == '?' || expected == found => {}
                _ => {
                    let Some((after_star, rest)) = &mut last_star else {
                        return false;
                    };
                    if rest.next().is_none() {
                        return false;
                    }
                    (pattern, text) = (after_star.clone(), rest.clone());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_characters_and_question_marks_one() {
        for (glob, name, is_match) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "acme", true),
            ("**", "acme", true),
            ("?", "", false),
            ("?", "ä", true),
            ("?", "ab", false),
            ("free-*", "free-", true),
            ("free-*", "free-7", true),
            ("free-*", "fre", false),
            ("*-7", "free-7-7", true),
            ("*-7", "free-78", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("a?c*/m", "abc/x/m", true),
            ("a?c*/m", "abc/x/n", false),
            ("acme", "acme", true),
            ("acme", "Acme", false),
        ] {
            assert_eq!(FlowGlob::new(glob).matches(name), is_match, "{glob} {name}");
        }
    }

    #[test]
    fn a_long_name_against_many_stars_ends() {
        let (glob, name) = ("*a".repeat(128), "a".repeat(127));
        assert!(!FlowGlob::new(&glob).matches(&name));
    }
}
