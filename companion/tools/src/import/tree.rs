//! Reads the sources of `penstock import` into trees: YAML, TOML, and lists of environment variables.
//!
//! Kubernetes wrappers (a ConfigMap, or a list of objects) are removed. The lines of YAML that a ConfigMap holds as text are
//! those of the file.

use penstock_config::tree::{Entry, Kind, Node, Place};
use penstock_config::yaml::{self, YamlError};
use toml::de::{DeTable, DeValue};

use super::SourceError;

/// Levels of lists in lists of Kubernetes objects.
const DEPTH_MAX: usize = 64;

/// One document of a file.
#[derive(Debug)]
pub(super) struct Root {
    /// The key of the ConfigMap that holds the document; `None` for a separate document.
    pub(super) name: Option<String>,
    pub(super) node: Node,
}

/// The documents of a YAML file, without their Kubernetes wrappers. At least one.
pub(super) fn yaml(text: &str) -> Result<Vec<Root>, SourceError> {
    let documents = yaml::documents(text).map_err(from_yaml)?;
    let mut roots = Vec::new();
    for document in documents {
        unwrap(text, document, 0, &mut roots)?;
    }
    if roots.is_empty() {
        return Err(SourceError::new(1, "the file is empty"));
    }
    Ok(roots)
}

fn from_yaml(error: YamlError) -> SourceError {
    let key = error.key.map_or(String::new(), |key| format!("{key}: "));
    SourceError::new(error.line, format!("{key}{}", error.message))
}

/// Takes a ConfigMap or a list of Kubernetes objects apart. Anything else is a document.
fn unwrap(text: &str, node: Node, depth: usize, roots: &mut Vec<Root>) -> Result<(), SourceError> {
    let kind = node.get("kind").and_then(|entry| entry.value.scalar());
    let kind = kind.unwrap_or_default().into_owned();
    if depth < DEPTH_MAX
        && kind.ends_with("List")
        && let Some(items) = node.get("items").and_then(|entry| entry.value.items())
    {
        for item in items {
            unwrap(text, item.clone(), depth + 1, roots)?;
        }
        return Ok(());
    }
    // The data of a ConfigMap is also accepted by itself, without the kind.
    let data = node.get("data").filter(|data| kind == "ConfigMap" || kind.is_empty() && data.value.is_map());
    match data {
        Some(data) => {
            for entry in data.value.entries() {
                roots.push(Root { name: Some(entry.key.clone()), node: embedded(text, entry)? });
            }
        }
        None if node.is_null() => {}
        None => roots.push(Root { name: None, node }),
    }
    Ok(())
}

/// The value of a ConfigMap's key. Text that is YAML is parsed.
pub(super) fn embedded(text: &str, entry: &Entry) -> Result<Node, SourceError> {
    let Kind::Text(inner) = &entry.value.kind else {
        return Ok(entry.value.clone());
    };
    if !inner.contains([':', '\n']) {
        return Ok(entry.value.clone());
    }
    // The content of a block begins on the line after its key and `|`. For quoted text only the key's line is known.
    let key_line = entry.place.line();
    let is_block =
        (1..).zip(text.lines()).find(|(number, _)| *number == key_line).is_some_and(|(_, line)| {
            let line = line.split(" #").next().unwrap_or(line).trim_end();
            line.trim_end_matches(|char: char| char.is_ascii_digit() || matches!(char, '+' | '-'))
                .ends_with(['|', '>'])
        });
    let line_in_file = |line: u64| if is_block { key_line + line } else { key_line };
    let mut node = yaml::document(inner).map_err(|error| {
        SourceError::new(line_in_file(error.line), format!("`{}`: {}", entry.key, error.message))
    })?;
    node.update_places(&mut |place| *place = Place::Line(line_in_file(place.line())));
    Ok(node)
}

pub(super) fn toml(text: &str) -> Result<Node, SourceError> {
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(text, span.start));
        SourceError::new(line, format!("this isn't TOML: {}", error.message()))
    })?;
    Ok(Node::at_line(1, from_table(text, table.get_ref())))
}

fn from_table(text: &str, table: &DeTable<'_>) -> Kind {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let entries = entries.into_iter().map(|(key, value)| Entry {
        key: key.get_ref().to_string(),
        place: Place::Line(line_of(text, key.span().start)),
        value: Node::at_line(line_of(text, value.span().start), from_toml(text, value.get_ref())),
    });
    Kind::Map(entries.collect())
}

fn from_toml(text: &str, value: &DeValue<'_>) -> Kind {
    match value {
        DeValue::String(string) => Kind::Text(string.to_string()),
        DeValue::Integer(integer) => match i128::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Kind::Text(number.to_string()),
            Err(_) => Kind::Text(integer.to_string()),
        },
        DeValue::Float(float) => Kind::Text(float.as_str().to_owned()),
        DeValue::Boolean(flag) => Kind::Bool(*flag),
        DeValue::Datetime(time) => Kind::Text(time.to_string()),
        DeValue::Array(array) => Kind::List(
            array
                .iter()
                .map(|item| Node::at_line(line_of(text, item.span().start), from_toml(text, item.get_ref())))
                .collect(),
        ),
        DeValue::Table(table) => from_table(text, table),
    }
}

/// The line, from 1, of a byte of the text.
fn line_of(text: &str, offset: usize) -> u64 {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() as u64 + 1
}

/// Whether a text is a list of environment variables rather than YAML, by its first line that isn't a comment.
pub(super) fn is_variables(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
        .is_some_and(|line| assignment(line).is_some())
}

/// A list of environment variables, one `KEY=VALUE` a line. `export`, quotes and comments are removed.
pub(super) fn variables(text: &str) -> Result<Node, SourceError> {
    let mut entries = Vec::new();
    for (line, content) in (1u64..).zip(text.lines()) {
        let content = content.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let Some((key, value)) = assignment(content) else {
            return Err(SourceError::new(line, format!("`{content}` is not a variable; write KEY=VALUE")));
        };
        let value = unquoted(value)
            .ok_or_else(|| SourceError::new(line, format!("the quotes of {key} are not closed")))?;
        entries.push(Entry {
            key: key.to_owned(),
            place: Place::Line(line),
            value: Node::at_line(line, Kind::Text(value.to_owned())),
        });
    }
    Ok(Node::at_line(1, Kind::Map(entries)))
}

fn assignment(line: &str) -> Option<(&str, &str)> {
    let line =
        ["export ", "ENV "].into_iter().find_map(|word| line.strip_prefix(word)).unwrap_or(line).trim_start();
    let (key, value) = line.split_once('=')?;
    let is_name = key.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_')
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some((key, value))
}

/// The value without its quotes or its comment; `None` if the quotes are not closed.
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
