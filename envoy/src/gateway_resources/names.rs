//! Names of Kubernetes resources.

use std::collections::BTreeSet;

/// The longest name of these resources in Kubernetes.
const LENGTH_MAX: usize = 253;
/// The part of it that is kept for the name of a pool.
const POOL_LENGTH: usize = 64;

/// Makes unique names that begin with the Gateway's.
pub(super) struct Names {
    gateway: String,
    taken: BTreeSet<String>,
}

impl Names {
    pub(super) fn new(gateway: &str) -> Self {
        Self { gateway: first(gateway), taken: BTreeSet::new() }
    }

    /// A name for a resource of this pool: the pool's name, as far as Kubernetes allows it, and a number if that name is taken.
    pub(super) fn next(&mut self, pool: &str) -> String {
        let base = format!("{}-{}", self.gateway, label(pool));
        let numbered = (2_u32..).map(|number| {
            let number = format!("-{number}");
            format!("{}{number}", cut(&base, LENGTH_MAX - number.len()))
        });
        let name = std::iter::once(cut(&base, LENGTH_MAX).to_owned())
            .chain(numbered)
            .find(|name| !self.taken.contains(name))
            .unwrap_or(base);
        self.taken.insert(name.clone());
        name
    }
}

/// The name of a resource that exists once for each Gateway.
pub(super) fn first(gateway: &str) -> String {
    let name = format!("penstock-{gateway}");
    cut(&name, LENGTH_MAX - POOL_LENGTH).to_owned()
}

/// Lower case letters, digits and hyphens.
fn label(text: &str) -> String {
    let allowed = |c: char| {
        if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }
    };
    let label: String = text.chars().map(allowed).collect();
    let label = label.trim_matches('-');
    if label.is_empty() { "pool".into() } else { label.into() }
}

/// The first bytes of an ASCII text, without separators at its end.
fn cut(text: &str, length: usize) -> &str {
    text.get(..length).unwrap_or(text).trim_end_matches(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_and_unique() {
        let mut names = Names::new("eg");
        assert_eq!(names.next("chat"), "penstock-eg-chat");
        assert_eq!(names.next("Chat"), "penstock-eg-chat-2");
        assert_eq!(names.next("chat-2"), "penstock-eg-chat-2-2");
        assert_eq!(names.next("llama_3.1/8b"), "penstock-eg-llama-3-1-8b");
        assert_eq!(names.next("__"), "penstock-eg-pool");
        let long = "x".repeat(300);
        let [one, two] = [names.next(&long), names.next(&long)];
        assert_eq!((one.len(), two.len()), (LENGTH_MAX, LENGTH_MAX));
        assert_ne!(one, two);
        let name = Names::new(&format!("{}.b", "a".repeat(180))).next("p");
        assert_eq!(name, format!("penstock-{}-p", "a".repeat(180)));
    }
}
