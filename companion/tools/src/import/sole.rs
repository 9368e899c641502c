//! The one policy among a file's documents, however deep it is wrapped.

use super::Wrong;
use super::page::Block;
use super::section::{fold, no_equal};
use super::tree::{Entry, Node, Root, Value};

/// Mappings around a policy.
const WRAPPERS_MAX: usize = 8;

/// A policy, and what stands around it.
pub(super) struct Sole<'a> {
    pub(super) node: &'a Node,
    outside: Vec<&'a Entry>,
    others: Vec<&'a Root>,
}

impl<'a> Sole<'a> {
    /// The mapping that has one of the `known` keys; `missing` says what is wrong where there is none.
    ///
    /// # Errors
    /// When there is none, or a second one in another document.
    pub(super) fn find(roots: &'a [Root], known: &[&str], missing: &str) -> Result<Self, Wrong> {
        let known: Vec<String> = known.iter().map(|key| fold(key)).collect();
        let mut sole: Option<Self> = None;
        let mut others = Vec::new();
        for root in roots {
            let mut outside = Vec::new();
            match within(&root.node, &known, &mut outside, 0) {
                None => others.push(root),
                Some(node) if sole.is_some() => {
                    return Err(Wrong::new(
                        node.line,
                        "this is a second policy; import one at a time",
                    ));
                }
                Some(node) => {
                    sole = Some(Self {
                        node,
                        outside,
                        others: Vec::new(),
                    });
                }
            }
        }
        match sole {
            Some(sole) => Ok(Self { others, ..sole }),
            None => Err(Wrong::new(
                roots.first().map_or(1, |root| root.node.line),
                missing,
            )),
        }
    }

    /// A comment for each thing that stands around it.
    pub(super) fn leave(&self, to: &mut Block) {
        for entry in &self.outside {
            to.comment(no_equal(entry, ""));
        }
        for other in &self.others {
            match &other.name {
                Some(name) => to.comment(format!("`{name}` of the ConfigMap has no equal here")),
                None => to.comment(format!(
                    "The document at line {} has no equal here",
                    other.node.line
                )),
            }
        }
    }
}

fn within<'a>(
    node: &'a Node,
    known: &[String],
    outside: &mut Vec<&'a Entry>,
    depth: usize,
) -> Option<&'a Node> {
    if node
        .entries()
        .iter()
        .any(|entry| known.contains(&fold(&entry.key)))
    {
        return Some(node);
    }
    if depth >= WRAPPERS_MAX {
        return None;
    }
    for entry in node.entries() {
        if !matches!(entry.node.value, Value::Map(_)) {
            continue;
        }
        let before = outside.len();
        if let Some(found) = within(&entry.node, known, outside, depth + 1) {
            let siblings = node.entries().iter().filter(|it| it.key != entry.key);
            // What every object of Kubernetes has says nothing about a policy.
            outside
                .extend(siblings.filter(|it| !matches!(it.key.as_str(), "apiVersion" | "kind" | "metadata")));
            return Some(found);
        }
        outside.truncate(before);
    }
    None
}
