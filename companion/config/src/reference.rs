//! Writes `docs/reference.md`, the page that lists every key. It is made from the schema, so it is always complete.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::schema::schema;

/// The page, as Markdown.
///
/// # Panics
/// Never; writing to a string doesn't fail.
#[must_use]
pub fn reference() -> String {
    let schema = schema();
    let mut page = Page {
        defs: schema["$defs"].as_object().cloned().unwrap_or_default(),
        written: Vec::new(),
        text: String::from(
            "# Configuration reference\n\n\
             Every key of `penstock.yaml`, with its allowed values and its default. [Configuration](configuration.md) \
             explains how the keys work together. `penstock validate --schema` prints the same as a JSON Schema.\n\n\
             - An environment variable overrides a key, and a flag overrides a variable. The variable's name is `PENSTOCK_` \
             and the key's path in capitals, with `__` between its parts: `PENSTOCK_POOLS__0__QUEUE__TTL=90s`.\n\
             - A duration has a unit: `250ms`, `30s`, `5m`, `2h`.\n\
             - A size is a number of bytes, or has a unit: `256MiB`, `1500KB`.\n\
             - A glob is a text in which `*` matches any characters and `?` matches one.\n\
             - *required* marks keys without a default.\n",
        ),
    };
    page.section("", &schema);
    page.text
}

/// The allowed values of a key that holds a mapping.
const MAPPING: &str = "a mapping, see below";

/// Writing to a string doesn't fail.
const NO_ERROR: &str = "invariant: a string takes any text";

struct Page {
    defs: Map<String, Value>,
    /// Mappings that have a section, by their paths.
    written: Vec<(String, Value)>,
    text: String,
}

impl Page {
    /// The definition that a reference names, or the schema itself.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let name = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/"));
        name.and_then(|name| self.defs.get(name)).unwrap_or(schema)
    }

    /// Writes the section of a mapping, and then those of the mappings in it.
    fn section(&mut self, path: &str, schema: &Value) {
        let mut rows = String::new();
        let mut below: Vec<(String, Value)> = Vec::new();
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            let (mapping, suffix) = self.mapping(property);
            let default = default_of(key, property, schema, mapping.as_ref().filter(|_| suffix.is_empty()));
            let cells = [format!("`{key}`"), self.allowed(property), default, self.describe(property)]
                .map(|cell| cell.replace('|', "\\|"));
            writeln!(rows, "| {} |", cells.join(" | ")).expect(NO_ERROR);
            if let Some(mapping) = mapping {
                let separator = if path.is_empty() { "" } else { "." };
                below.push((format!("{path}{separator}{key}{suffix}"), mapping));
            }
        }
        let title = match path {
            "" => "The document".to_owned(),
            path => format!("`{path}`"),
        };
        let description = text(schema, "description");
        write!(
            self.text,
            "\n## {title}\n\n{description}\n\n| key | allowed | default | description |\n|---|---|---|---|\n{rows}"
        )
        .expect(NO_ERROR);
        for (path, mapping) in below {
            let written = self.written.iter().find(|(_, known)| *known == mapping);
            match written.map(|(path, _)| path.clone()) {
                Some(first) => {
                    write!(self.text, "\n## `{path}`\n\nThe same keys as `{first}`.\n").expect(NO_ERROR)
                }
                None => {
                    self.written.push((path.clone(), mapping.clone()));
                    self.section(&path, &mapping);
                }
            }
        }
    }

    /// The mapping with named keys that a value is or holds, and the rest of its path: `[]` for an item of a list, `.*` for a
    /// value of a mapping with any keys.
    fn mapping(&self, schema: &Value) -> (Option<Value>, &'static str) {
        let schema = self.resolve(schema);
        if schema.get("properties").is_some() {
            return (Some(schema.clone()), "");
        }
        for (inner, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
            if let Some(inner) = schema.get(inner)
                && let (Some(found), "") = self.mapping(inner)
            {
                return (Some(found), suffix);
            }
        }
        // Of several forms, the one that is a mapping. A mapping of a single key is a choice, and gets no section.
        for one in schema["anyOf"].as_array().into_iter().flatten() {
            let is_choice = one["properties"].as_object().is_some_and(|keys| keys.len() == 1);
            if !is_choice && let (Some(found), suffix) = self.mapping(one) {
                return (Some(found), suffix);
            }
        }
        (None, "")
    }

    /// The allowed values, in words.
    fn allowed(&self, schema: &Value) -> String {
        let schema = self.resolve(schema);
        if let Some(one_of) = schema.get("enum").and_then(Value::as_array) {
            return one_of.iter().map(shown).collect::<Vec<_>>().join(", ");
        }
        if let Some(one) = schema.get("const") {
            return shown(one);
        }
        for several in ["anyOf", "oneOf"] {
            if let Some(several) = schema.get(several).and_then(Value::as_array)
                && schema.get("properties").is_none()
            {
                let words: Vec<_> = several.iter().map(|schema| self.allowed(schema)).collect();
                let are_literals = words.iter().all(|word| word.starts_with('`'));
                return words.join(if are_literals { ", " } else { "; " });
            }
        }
        match &schema["type"] {
            Value::String(kind) => self.allowed_of_type(kind, schema),
            Value::Array(kinds) => {
                let kinds = kinds.iter().filter_map(Value::as_str);
                kinds.map(|kind| self.allowed_of_type(kind, schema)).collect::<Vec<_>>().join("; ")
            }
            _ => "anything".into(),
        }
    }

    fn allowed_of_type(&self, kind: &str, schema: &Value) -> String {
        match kind {
            "null" => "`null`".into(),
            "boolean" => "`true`, `false`".into(),
            "integer" => format!("a whole number{}", range(schema)),
            "number" => format!("a number{}", range(schema)),
            "array" => match self.allowed(&schema["items"]) {
                mapping if mapping == MAPPING => "a list of mappings, see below".into(),
                items => format!("a list of: {items}"),
            },
            "object" => match (schema.get("properties"), schema.get("additionalProperties")) {
                (Some(keys), _) => {
                    let keys: Vec<_> =
                        keys.as_object().map(|keys| keys.keys().cloned().collect()).unwrap_or_default();
                    match keys.as_slice() {
                        [one] => format!("`{{{one}: ...}}`"),
                        _ => MAPPING.into(),
                    }
                }
                (None, Some(values)) if values.is_object() => {
                    format!("names, and for each: {}", self.allowed(values))
                }
                (None, _) => "a mapping".into(),
            },
            _ => match (schema["format"].as_str(), schema["pattern"].as_str()) {
                (Some("duration-with-unit"), _) => "a duration above zero".into(),
                (Some("size-with-unit"), _) => "a size".into(),
                (_, Some("^/")) => "a path that begins with `/`".into(),
                (_, Some(pattern)) if pattern.contains("{1,63}") => {
                    "1 to 63 letters, digits, `-`, `_`, `.`".into()
                }
                (_, Some(pattern)) if pattern.contains("{1,256}") => {
                    "1 to 256 letters, digits, `-`, `_`, `.`".into()
                }
                (_, Some(pattern)) if pattern.contains("/[0-9]") => "a network like `10.0.0.0/8`".into(),
                _ => "a text".into(),
            },
        }
    }

    /// The description of a key, followed by those of its named values.
    fn describe(&self, property: &Value) -> String {
        let mut description = text(property, "description");
        let resolved = self.resolve(property);
        if description.is_empty() {
            description = text(resolved, "description");
        }
        let mut choices = Vec::new();
        for several in ["oneOf", "anyOf"] {
            for one in resolved[several].as_array().into_iter().flatten() {
                match one["oneOf"].as_array() {
                    Some(inner) => choices.extend(inner),
                    None => choices.push(one),
                }
            }
        }
        for choice in choices {
            let (Some(value), meaning) = (choice.get("const"), text(choice, "description")) else {
                continue;
            };
            if !meaning.is_empty() {
                write!(description, " {}: {meaning}", shown(value)).expect(NO_ERROR);
            }
        }
        description.trim().to_owned()
    }
}

/// The default of a key. Empty for a mapping (`mapping`) if its keys have these defaults themselves.
fn default_of(key: &str, property: &Value, schema: &Value, mapping: Option<&Value>) -> String {
    let required = schema["required"].as_array();
    if required.is_some_and(|keys| keys.iter().any(|required| required == key)) {
        return "*required*".into();
    }
    match (mapping, property.get("default")) {
        (_, None) => String::new(),
        (Some(mapping), Some(Value::Object(given))) if agrees(given, mapping) => String::new(),
        (_, Some(default)) => shown(default),
    }
}

/// Whether these are the defaults of the mapping's keys.
fn agrees(given: &Map<String, Value>, mapping: &Value) -> bool {
    let default = |key: &str| mapping["properties"][key].get("default");
    let follows = |key: &str, value: &Value| value.is_null() || default(key) == Some(value);
    given.iter().all(|(key, value)| {
        let below =
            mapping["properties"][key].get("$ref").is_some() || default(key).is_some_and(Value::is_object);
        below || follows(key, value)
    })
}

/// A text of the schema, on one line.
fn text(schema: &Value, key: &str) -> String {
    schema[key].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn range(schema: &Value) -> String {
    let number = |key: &str| schema.get(key).map(ToString::to_string);
    let below = number("exclusiveMaximum").map(|limit| format!("below {limit}"));
    let above = number("exclusiveMinimum").map(|limit| format!("above {limit}"));
    let least = number("minimum");
    let most = number("maximum");
    match (least, most) {
        (Some(least), Some(most)) => format!(" from {least} to {most}"),
        (least, most) => {
            let least = least.map(|limit| format!("at least {limit}"));
            let most = most.map(|limit| format!("at most {limit}"));
            let all: Vec<_> = [above, least, below, most].into_iter().flatten().collect();
            if all.is_empty() { String::new() } else { format!(", {}", all.join(" and ")) }
        }
    }
}

/// A value in YAML's flow style, as code.
fn shown(value: &Value) -> String {
    format!("`{}`", flow(value))
}

fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{key}: {}", flow(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
