//! The parts of a flow's identity, and how they become one name.

use alloc::string::String;

/// Between two parts of a name.
const SEPARATOR: char = '/';
/// Begins an escape: this character and two hexadecimal digits stand for one character.
const ESCAPE: char = '%';

/// A part of a flow's identity. The owner of an engine joins the parts to [`crate::Request::flow`] with [`join_flow_parts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKey {
    /// The fairness identity.
    FairnessId,
    /// The user.
    User,
    /// The model that the client requested.
    Model,
    /// The model that the request is sent with.
    TargetModel,
}

/// The name of the flow with these parts: joined with `/`. In every part but the last, `/` is written `%2F` and `%` is
/// written `%25`.
///
/// Clients choose the parts. Without the escapes `a/b` and `c` would have the name of `a` and `b/c`. The last part needs
/// none, because the number of parts is fixed: all that follows their separators is the last part. So a model's name such as
/// `meta-llama/Llama-3` stays readable, and a single part is its own name.
#[must_use]
pub fn join_flow_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut name = String::new();
    let mut parts = parts.into_iter();
    let Some(mut part) = parts.next() else {
        return name;
    };
    for next in parts {
        push_escaped(&mut name, part);
        name.push(SEPARATOR);
        part = next;
    }
    name.push_str(part);
    name
}

fn push_escaped(name: &mut String, part: &str) {
    for character in part.chars() {
        match character {
            SEPARATOR => name.push_str("%2F"),
            ESCAPE => name.push_str("%25"),
            other => name.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn plain_parts_and_the_last_part_stay_readable() {
        for (parts, name) in [
            (&[][..], ""),
            (&["acme"], "acme"),
            (&["a/b%"], "a/b%"),
            (&["acme", "qwen-7b"], "acme/qwen-7b"),
            (&["acme", "meta-llama/Llama-3"], "acme/meta-llama/Llama-3"),
            (&["meta-llama/Llama-3", "acme"], "meta-llama%2FLlama-3/acme"),
            (&["50%", "", "50%"], "50%25//50%"),
        ] {
            assert_eq!(join_flow_parts(parts.iter().copied()), name, "{parts:?}");
        }
    }

    #[test]
    fn different_parts_have_different_names() {
        let texts = ["", "a", "/", "%", "%2F", "%25", "a/", "/a", "%2Fa", "a%", "2F", "//", "/%", "%/"];
        for count in 1..=3_u32 {
            let mut names = BTreeMap::new();
            for choice in 0..texts.len().pow(count) {
                let parts: Vec<&str> =
                    (0..count).map(|part| texts[choice / texts.len().pow(part) % texts.len()]).collect();
                let name = join_flow_parts(parts.iter().copied());
                let other = names.insert(name, parts.clone());
                assert_eq!(other, None, "{parts:?}");
            }
        }
    }
}
