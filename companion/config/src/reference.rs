//! The page that lists every key, `docs/reference.md`: made from the schema, so that it can't say anything else.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::schema::schema;

/// The page, as Markdown.
///
/// # Panics
/// Never: a string takes whatever is written to it.
#[must_use]
pub fn reference() -> String {
    let schema = schema();
    let mut page = Page {
        defs: schema["$defs"].as_object().cloned().unwrap_or_default(),
        listed: Vec::new(),
        text: String::from(
            "# Configuration reference\n\n\
             Every key of `penstock.yaml`, made from the types that read it; `penstock validate --schema` prints the \
             same as a JSON Schema. What the keys mean together is in [The configuration](configuration.md).\n\n\
             The environment counts more than the file, and flags more than the environment. A key's variable is \
             `PENSTOCK_` and its path in capitals with `__` between: `PENSTOCK_POOLS__0__QUEUE__TTL=90s`. A duration has \
             its unit: `250ms`, `30s`, `5m`, `2h`. A size is a number of bytes, or has its unit: `256MiB`, `1500KB`. \
             A glob is a text in which `*` stands for any letters and `?` for one.\n",
        ),
    };
    page.section("", &schema);
    page.text
}

/// What is said of a value with keys of its own.
const MAPPING: &str = "a mapping, see below";

struct Page {
    defs: Map<String, Value>,
    /// Mappings that have their section, and where.
    listed: Vec<(String, Value)>,
    text: String,
}

impl Page {
    /// What a reference stands for.
    fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
        let name = schema["$ref"].as_str().and_then(|it| it.strip_prefix("#/$defs/"));
        name.and_then(|it| self.defs.get(it)).unwrap_or(schema)
    }

    /// A mapping's keys, and then those of the mappings in it.
    fn section(&mut self, path: &str, schema: &Value) {
        let title = if path.is_empty() { "The document" } else { path };
        let code = if path.is_empty() { "" } else { "`" };
        let required = &schema["required"];
        let mut rows = String::new();
        let mut below: Vec<(String, Value)> = Vec::new();
        let empty = Map::new();
        for (key, property) in schema["properties"].as_object().unwrap_or(&empty) {
            let whole = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            let needed = required
                .as_array()
                .is_some_and(|it| it.iter().any(|it| it == key.as_str()));
            let default = match property.get("default") {
                _ if needed => "needed".into(),
                Some(default) => shown(default),
                None => String::new(),
            };
            let (found, suffix) = self.mapping(property);
            // A mapping's default is its keys', unless it says something else than they do.
            let default = match (&found, property.get("default")) {
                (Some(mapping), Some(Value::Object(given)))
                    if suffix.is_empty() && agrees(given, mapping) =>
                {
                    String::new()
                }
                _ => default,
            };
            let allowed = self.allowed(property);
            let says = self.says(property);
            let cells = [format!("`{key}`"), allowed, default, says].map(|it| it.replace('|', "\\|"));
            writeln!(rows, "| {} |", cells.join(" | ")).expect("invariant: a string takes it");
            if let Some(mapping) = found {
                below.push((format!("{whole}{suffix}"), mapping));
            }
        }
        let description = text(schema, "description");
        write!(
            self.text,
            "\n## {code}{title}{code}\n\n{description}\n\n| key | allowed | default | says |\n|---|---|---|---|\n{rows}"
        )
        .expect("invariant: a string takes it");
        for (path, mapping) in below {
            let listed = self
                .listed
                .iter()
                .find(|(_, it)| *it == mapping)
                .map(|(at, _)| at.clone());
            match listed {
                Some(at) => {
                    write!(self.text, "\n## `{path}`\n\nAs `{at}`.\n").expect("invariant: a string takes it");
                }
                None => {
                    self.listed.push((path.clone(), mapping.clone()));
                    self.section(&path, &mapping);
                }
            }
        }
    }

    /// The mapping with keys of its own that a value is or holds, and what its path goes on with.
    fn mapping(&self, schema: &Value) -> (Option<Value>, &'static str) {
        let schema = self.resolve(schema);
        if schema.get("properties").is_some() {
            return (Some(schema.clone()), "");
        }
        for (within, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
            if let Some(inner) = schema.get(within)
                && let (Some(found), "") = self.mapping(inner)
            {
                return (Some(found), suffix);
            }
        }
        // Of several forms, the one that is a mapping. A choice of single keys is no section of its own.
        for one in schema["anyOf"].as_array().into_iter().flatten() {
            let is_store = one["properties"].as_object().is_some_and(|it| it.len() == 1);
            if !is_store && let (Some(found), suffix) = self.mapping(one) {
                return (Some(found), suffix);
            }
        }
        (None, "")
    }

    /// What a value may be, in words.
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
                let words: Vec<_> = several.iter().map(|it| self.allowed(it)).collect();
                let plain = words.iter().all(|it| it.starts_with('`'));
                return words.join(if plain { ", " } else { "; " });
            }
        }
        match &schema["type"] {
            Value::String(kind) => self.of_kind(kind, schema),
            Value::Array(kinds) => {
                let kinds = kinds.iter().filter_map(Value::as_str);
                kinds
                    .map(|kind| self.of_kind(kind, schema))
                    .collect::<Vec<_>>()
                    .join("; ")
            }
            _ => "anything".into(),
        }
    }

    fn of_kind(&self, kind: &str, schema: &Value) -> String {
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
                    let keys: Vec<_> = keys
                        .as_object()
                        .map(|it| it.keys().cloned().collect())
                        .unwrap_or_default();
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

    /// The description of a key, and of each word that it may be.
    fn says(&self, property: &Value) -> String {
        let mut says = text(property, "description");
        let resolved = self.resolve(property);
        if says.is_empty() {
            says = text(resolved, "description");
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
            let (Some(word), said) = (choice.get("const"), text(choice, "description")) else {
                continue;
            };
            if !said.is_empty() {
                write!(says, " {}: {said}", shown(word)).expect("invariant: a string takes it");
            }
        }
        says.trim().to_owned()
    }
}

/// Are these the defaults of the mapping's keys?
fn agrees(given: &Map<String, Value>, mapping: &Value) -> bool {
    let own = |key: &str| mapping["properties"][key].get("default");
    let follows = |key: &str, value: &Value| value.is_null() || own(key) == Some(value);
    given.iter().all(|(key, value)| {
        let below =
            mapping["properties"][key].get("$ref").is_some() || own(key).is_some_and(Value::is_object);
        below || follows(key, value)
    })
}

/// A text of the schema, in one line.
fn text(schema: &Value, key: &str) -> String {
    schema[key]
        .as_str()
        .unwrap_or_default()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

fn range(schema: &Value) -> String {
    let number = |key: &str| schema.get(key).map(ToString::to_string);
    let below = number("exclusiveMaximum").map(|it| format!("below {it}"));
    let above = number("exclusiveMinimum").map(|it| format!("above {it}"));
    let least = number("minimum");
    let most = number("maximum");
    match (least, most) {
        (Some(least), Some(most)) => format!(" from {least} to {most}"),
        (least, most) => {
            let least = least.map(|it| format!("at least {it}"));
            let most = most.map(|it| format!("at most {it}"));
            let all: Vec<_> = [above, least, below, most].into_iter().flatten().collect();
            if all.is_empty() {
                String::new()
            } else {
                format!(", {}", all.join(" and "))
            }
        }
    }
}

/// A value as it is written in YAML on one line.
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
