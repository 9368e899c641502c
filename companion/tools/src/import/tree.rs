//! What was read, as a tree of values that know their lines: one shape for YAML, TOML and lists of variables.
//!
//! Scalars stay as they were written, since what a word means is for the source to say. Wrappers of Kubernetes (a
//! ConfigMap, a list of them) are taken off here, and the lines of what a ConfigMap holds as text are the file's.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use toml::de::{DeTable, DeValue};

use super::Wrong;

/// Levels of a document.
const DEPTH_MAX: usize = 64;

/// A value and its line, from 1.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    /// Anything that is written in one piece, as it was written.
    Scalar(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key and what stands under it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// The key's.
    pub(super) line: u64,
    pub(super) node: Node,
}

/// One document of a file.
#[derive(Debug)]
pub(super) struct Root {
    /// The key of the ConfigMap under which it stands.
    pub(super) name: Option<String>,
    pub(super) node: Node,
}

impl Node {
    pub(super) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Map(entries) => entries,
            Value::Null | Value::Scalar(_) | Value::List(_) => &[],
        }
    }

    /// The entry of a key, written exactly so.
    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    pub(super) const fn is_map(&self) -> bool {
        matches!(self.value, Value::Map(_))
    }

    fn shifted(&mut self, by: impl Fn(u64) -> u64 + Copy) {
        self.line = by(self.line);
        match &mut self.value {
            Value::Null | Value::Scalar(_) => {}
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.shifted(by)),
            Value::Map(entries) => {
                for entry in entries {
                    entry.line = by(entry.line);
                    entry.node.shifted(by);
                }
            }
        }
    }
}

/// In one line, as YAML would have it.
impl fmt::Display for Node {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Null => to.write_str("null"),
            Value::Scalar(text) => to.write_str(text),
            Value::List(nodes) => {
                to.write_str("[")?;
                for (at, node) in nodes.iter().enumerate() {
                    write!(to, "{}{node}", if at == 0 { "" } else { ", " })?;
                }
                to.write_str("]")
            }
            Value::Map(entries) => {
                to.write_str("{")?;
                for (at, entry) in entries.iter().enumerate() {
                    write!(
                        to,
                        "{}{}: {}",
                        if at == 0 { "" } else { ", " },
                        entry.key,
                        entry.node
                    )?;
                }
                to.write_str("}")
            }
        }
    }
}

/// The documents of a YAML file, out of their wrappers. At least one.
pub(super) fn yaml(text: &str) -> Result<Vec<Root>, Wrong> {
    let documents: Vec<Spanned<Value>> =
        serde_saphyr::from_multiple_with_options(text, words()).map_err(|error| {
            let error = error.without_snippet();
            let line = error.location().map_or(1, |it| it.line());
            Wrong::new(line, format!("this is no YAML: {error}"))
        })?;
    let mut roots = Vec::new();
    for document in documents {
        unwrap(text, node(document), 0, &mut roots)?;
    }
    if roots.is_empty() {
        return Err(Wrong::new(1, "there is nothing in it"));
    }
    Ok(roots)
}

/// Takes a ConfigMap or a list of Kubernetes apart; anything else is a document itself.
fn unwrap(text: &str, node: Node, depth: usize, roots: &mut Vec<Root>) -> Result<(), Wrong> {
    let kind = node.get("kind").and_then(|it| it.node.scalar()).unwrap_or("");
    if depth < DEPTH_MAX
        && kind.ends_with("List")
        && let Some(Value::List(items)) = node.get("items").map(|it| &it.node.value)
    {
        for item in items {
            unwrap(text, item.clone(), depth + 1, roots)?;
        }
        return Ok(());
    }
    let data = node.get("data").filter(|data| {
        // Without its kind too, as people cut it out.
        kind == "ConfigMap" || kind.is_empty() && data.node.is_map()
    });
    match data {
        Some(data) => {
            for entry in data.node.entries() {
                roots.push(Root {
                    name: Some(entry.key.clone()),
                    node: held(text, entry)?,
                });
            }
        }
        None => match node.value {
            Value::Null => {}
            Value::Scalar(_) | Value::List(_) | Value::Map(_) => roots.push(Root { name: None, node }),
        },
    }
    Ok(())
}

/// What a key of a ConfigMap holds: YAML as text, or what stands there.
pub(super) fn held(text: &str, entry: &Entry) -> Result<Node, Wrong> {
    let Some(inner) = entry.node.scalar().filter(|it| it.contains([':', '\n'])) else {
        return Ok(entry.node.clone());
    };
    // A block begins below the key and its `|`; of text in quotes only the first line is known.
    let key = usize::try_from(entry.line.saturating_sub(1)).unwrap_or(usize::MAX);
    let block = text.lines().nth(key).is_some_and(|line| {
        let line = line.split(" #").next().unwrap_or(line).trim_end();
        line.trim_end_matches(|it: char| it.is_ascii_digit() || matches!(it, '+' | '-'))
            .ends_with(['|', '>'])
    });
    let at = entry.line;
    let place = |line: u64| if block { at + line } else { at };
    let parsed: Spanned<Value> = serde_saphyr::from_str_with_options(inner, words()).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |it| it.line());
        Wrong::new(place(line), format!("`{}` holds no YAML: {error}", entry.key))
    })?;
    let mut node = node(parsed);
    node.shifted(place);
    Ok(node)
}

/// Words stay words: a namespace may be called `on`.
fn words() -> serde_saphyr::Options {
    serde_saphyr::options! { strict_booleans: true }
}

fn node(spanned: Spanned<Value>) -> Node {
    Node {
        line: spanned.referenced.line().max(1),
        value: spanned.value,
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Value;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Scalar(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(item) = list.next_element::<Spanned<Value>>()? {
            nodes.push(node(item));
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry::<Spanned<String>, Spanned<Value>>()? {
            entries.push(Entry {
                line: key.referenced.line().max(1),
                key: key.value,
                node: node(value),
            });
        }
        Ok(Value::Map(entries))
    }
}

/// A TOML file.
pub(super) fn toml(text: &str) -> Result<Node, Wrong> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        Wrong::new(line, format!("this is no TOML: {}", error.message()))
    })?;
    Ok(Node {
        line: 1,
        value: of_table(text, table.get_ref()),
    })
}

fn of_table(text: &str, table: &DeTable<'_>) -> Value {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, value)| {
            let node = Node {
                line: line_of(text, value.span().start),
                value: of_toml(text, value.get_ref()),
            };
            (
                key.span().start,
                Entry {
                    key: key.get_ref().to_string(),
                    line: line_of(text, key.span().start),
                    node,
                },
            )
        })
        .collect();
    entries.sort_by_key(|(at, _)| *at);
    Value::Map(entries.into_iter().map(|(_, entry)| entry).collect())
}

fn of_toml(text: &str, value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(it) => Value::Scalar(it.to_string()),
        DeValue::Integer(it) => match i128::from_str_radix(it.as_str(), it.radix()) {
            Ok(number) => Value::Scalar(number.to_string()),
            Err(_) => Value::Scalar(it.to_string()),
        },
        DeValue::Float(it) => Value::Scalar(it.as_str().to_owned()),
        DeValue::Boolean(it) => Value::Scalar(it.to_string()),
        DeValue::Datetime(it) => Value::Scalar(it.to_string()),
        DeValue::Array(it) => Value::List(
            it.iter()
                .map(|item| Node {
                    line: line_of(text, item.span().start),
                    value: of_toml(text, item.get_ref()),
                })
                .collect(),
        ),
        DeValue::Table(it) => of_table(text, it),
    }
}

fn line_of(text: &str, at: usize) -> u64 {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1
}

/// It is a list of variables, not YAML.
pub(super) fn is_variables(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .is_some_and(|line| assignment(line).is_some())
}

/// A list of variables, `KEY=VALUE` a line; `export` before them, quotes and comments are taken off.
pub(super) fn variables(text: &str) -> Result<Node, Wrong> {
    let mut entries = Vec::new();
    for (line, content) in (1u64..).zip(text.lines()) {
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let Some((key, value)) = assignment(content) else {
            return Err(Wrong::new(
                line,
                format!("`{content}` is no variable; write KEY=VALUE"),
            ));
        };
        let value =
            unquoted(value).ok_or_else(|| Wrong::new(line, format!("the quotes of {key} don't end")))?;
        entries.push(Entry {
            key: key.to_owned(),
            line,
            node: Node {
                line,
                value: Value::Scalar(value.to_owned()),
            },
        });
    }
    Ok(Node {
        line: 1,
        value: Value::Map(entries),
    })
}

fn assignment(line: &str) -> Option<(&str, &str)> {
    let line = ["export ", "ENV "]
        .into_iter()
        .find_map(|word| line.strip_prefix(word))
        .unwrap_or(line)
        .trim_start();
    let (key, value) = line.split_once('=')?;
    let named = key.starts_with(|it: char| it.is_ascii_alphabetic() || it == '_')
        && key.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_');
    named.then_some((key, value))
}

/// `None`: the quotes have no end.
fn unquoted(value: &str) -> Option<&str> {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(rest) = value.strip_prefix(quote) {
            return rest.split_once(quote).map(|(inner, _)| inner);
        }
    }
    let end = value.find(" #").unwrap_or(value.len());
    value.get(..end).map(str::trim_end)
}
