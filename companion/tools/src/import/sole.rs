//! Finds the one policy in the documents of a file, in whatever mappings it is nested.

use penstock_config::tree::{Entry, Node};

use super::SourceError;
use super::page::Block;
use super::section::{fold, no_equivalent};
use super::tree::Root;

/// Levels of mappings around a policy.
const NESTING_MAX: usize = 8;

/// A policy, and the parts of the file that don't belong to it.
pub(super) struct Sole<'a> {
    pub(super) node: &'a Node,
    /// Entries of the mappings around the policy.
    outside: Vec<&'a Entry>,
    without_policy: Vec<&'a Root>,
}

impl<'a> Sole<'a> {
    /// Finds the mapping that has one of the `known` keys. `missing` is the error if there is none.
    ///
    /// # Errors
    /// When no document has a policy, or more than one has.
    pub(super) fn find(roots: &'a [Root], known: &[&str], missing: &str) -> Result<Self, SourceError> {
        let known: Vec<String> = known.iter().map(|key| fold(key)).collect();
        let mut sole: Option<Self> = None;
        let mut without_policy = Vec::new();
        for root in roots {
            let mut outside = Vec::new();
            match find_within(&root.node, &known, &mut outside, 0) {
                None => without_policy.push(root),
                Some(node) if sole.is_some() => {
                    return Err(SourceError::new(
                        node.place.line(),
                        "this is a second policy; import one at a time",
                    ));
                }
                Some(node) => {
                    sole = Some(Self { node, outside, without_policy: Vec::new() });
                }
            }
        }
        match sole {
            Some(sole) => Ok(Self { without_policy, ..sole }),
            None => Err(SourceError::new(roots.first().map_or(1, |root| root.node.place.line()), missing)),
        }
    }

    /// Adds a comment for each part of the file that doesn't belong to the policy.
    pub(super) fn comment_rest(&self, block: &mut Block) {
        for entry in &self.outside {
            block.comment(no_equivalent(entry, ""));
        }
        for root in &self.without_policy {
            match &root.name {
                Some(name) => block.comment(format!("`{name}` of the ConfigMap has no equivalent here")),
                None => block.comment(format!(
                    "The document at line {} has no equivalent here",
                    root.node.place.line()
                )),
            }
        }
    }
}

fn find_within<'a>(
    node: &'a Node,
    known: &[String],
    outside: &mut Vec<&'a Entry>,
    depth: usize,
) -> Option<&'a Node> {
    if node.entries().iter().any(|entry| known.contains(&fold(&entry.key))) {
        return Some(node);
    }
    if depth >= NESTING_MAX {
        return None;
    }
    for entry in node.entries().iter().filter(|entry| entry.value.is_map()) {
        let before = outside.len();
        if let Some(found) = find_within(&entry.value, known, outside, depth + 1) {
            // Every Kubernetes object has these keys, so they need no comment.
            let is_common = |key: &str| matches!(key, "apiVersion" | "kind" | "metadata");
            outside.extend(
                node.entries().iter().filter(|sibling| sibling.key != entry.key && !is_common(&sibling.key)),
            );
            return Some(found);
        }
        outside.truncate(before);
    }
    None
}
