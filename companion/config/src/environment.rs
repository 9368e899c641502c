//! Environment variables: those that override keys of the configuration file, and those of OpenTelemetry.
//!
//! The name of an override is `PENSTOCK_` and the key's path in capitals, with `__` between its parts:
//! `PENSTOCK_POOLS__0__QUEUE__TTL=90s`. Variables are written into the document's tree before the tree is read. So they obey
//! the same rules as the file, and an error names the variable. A value is YAML, or plain text where the key takes text.

use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::{Arc, Once};

use super::tree::{Entry, Kind, Node, Place};
use super::{Error, yaml};

/// The beginning of the names of variables that override keys.
const PREFIX: &str = "PENSTOCK_";
/// The beginning of the names of OpenTelemetry's standard variables.
const OPENTELEMETRY_PREFIX: &str = "OTEL_";
/// Separates the parts of a path.
const SEPARATOR: &str = "__";
/// The keys at the top of the document. Their variables contain no [`SEPARATOR`].
const TOP_KEYS: [&str; 10] = [
    "listen",
    "tls",
    "replicas",
    "admin",
    "identity",
    "pools",
    "shutdown",
    "startup_wait",
    "limits",
    "metrics",
];
/// Variables that stand for flags of the binary, without [`PREFIX`].
const FLAGS: [&str; 2] = ["LOG", "LOG_FORMAT"];
/// The beginnings of the variables that Kubernetes sets in every pod for a service named `penstock`, without [`PREFIX`].
const SERVICE_VARIABLES: [&str; 2] = ["SERVICE_", "PORT"];

/// The variables of a process, as far as they concern the configuration. Read once when the process starts; clones are
/// cheap.
#[derive(Clone, Debug, Default)]
pub struct Environment(Arc<Variables>);

#[derive(Debug)]
struct Variables {
    /// Variables that name a key, and their values.
    overrides: Vec<(String, OsString)>,
    /// Variables of OpenTelemetry, by name.
    opentelemetry: HashMap<String, String>,
    /// Variables that begin like overrides, but name no key.
    unknown: Vec<String>,
    /// The unknown variables are logged once in a process, not at every reload.
    logged: Once,
}

impl Default for Variables {
    fn default() -> Self {
        Self {
            overrides: Vec::new(),
            opentelemetry: HashMap::new(),
            unknown: Vec::new(),
            logged: Once::new(),
        }
    }
}

/// A part of a key's path. Indices come first and in their order, so that a list grows from its beginning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Index(usize),
    Key(String),
}

/// A key's new value.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Override {
    path: Vec<Part>,
    variable: Arc<str>,
    value: String,
}

impl Environment {
    /// Keeps the variables that concern the configuration. For the real environment pass [`std::env::vars_os`].
    #[must_use]
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut kept = Variables::default();
        for (name, value) in variables {
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(OPENTELEMETRY_PREFIX) {
                if let Ok(value) = value.into_string() {
                    kept.opentelemetry.insert(name.to_owned(), value);
                }
                continue;
            }
            let Some(rest) = name.strip_prefix(PREFIX) else {
                continue;
            };
            if rest.contains(SEPARATOR) || TOP_KEYS.contains(&rest.to_ascii_lowercase().as_str()) {
                kept.overrides.push((name.to_owned(), value));
            } else if !FLAGS.contains(&rest) && !SERVICE_VARIABLES.iter().any(|start| rest.starts_with(start))
            {
                kept.unknown.push(name.to_owned());
            }
        }
        kept.unknown.sort();
        Self(Arc::new(kept))
    }

    /// This environment with further variables that override keys, or with other values of them.
    #[must_use]
    pub fn with(&self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut overrides = self.0.overrides.clone();
        for (name, value) in variables {
            overrides.retain(|(known, _)| *known != name);
            overrides.push((name, value.into()));
        }
        Self(Arc::new(Variables {
            overrides,
            opentelemetry: self.0.opentelemetry.clone(),
            ..Variables::default()
        }))
    }

    /// Only the variables of a key at the top of the document, and of the keys below it.
    pub(super) fn of_key(&self, key: &str) -> Self {
        let is_of_key = |name: &str| {
            let path = name.strip_prefix(PREFIX).unwrap_or(name);
            path.split(SEPARATOR).next().is_some_and(|first| first.eq_ignore_ascii_case(key))
        };
        let overrides = self.0.overrides.iter().filter(|(name, _)| is_of_key(name));
        Self(Arc::new(Variables { overrides: overrides.cloned().collect(), ..Variables::default() }))
    }

    /// The value of one of OpenTelemetry's variables, such as `OTEL_EXPORTER_OTLP_ENDPOINT`. `None`: it is not set, or not
    /// UTF-8.
    #[must_use]
    pub fn opentelemetry(&self, name: &str) -> Option<String> {
        self.0.opentelemetry.get(name).cloned()
    }

    /// Writes the variables into a document's tree.
    ///
    /// # Errors
    /// When a value is not UTF-8, or a path leads below a single value or past the end of a list.
    pub(super) fn apply(&self, tree: &mut Node) -> Result<(), Error> {
        self.log_unknown();
        for Override { path, variable, value } in self.overrides()? {
            let place = Place::Variable(Arc::clone(&variable));
            set(tree, &path, &place, &value)
                .map_err(|message| Error::in_variable(&variable, display(&path), message))?;
        }
        Ok(())
    }

    fn log_unknown(&self) {
        if self.0.unknown.is_empty() {
            return;
        }
        self.0.logged.call_once(|| {
            tracing::warn!(
                "{}: no key of the configuration has this name, so it has no effect; write a key's path with `__` between \
                 its parts, as in PENSTOCK_POOLS__0__QUEUE__TTL",
                self.0.unknown.join(", ")
            );
        });
    }

    /// Sorted, so that a mapping or a list comes before its parts, and the items of a list in their order.
    fn overrides(&self) -> Result<Vec<Override>, Error> {
        let mut overrides = Vec::with_capacity(self.0.overrides.len());
        for (name, value) in &self.0.overrides {
            let path = name.strip_prefix(PREFIX).unwrap_or(name);
            let Some(value) = value.to_str() else {
                let key = path.to_ascii_lowercase();
                return Err(Error::in_variable(name, key, "this is not UTF-8 text".into()));
            };
            let path = path.split(SEPARATOR).map(|part| match part.parse() {
                Ok(index) => Part::Index(index),
                Err(_) => Part::Key(part.to_ascii_lowercase()),
            });
            overrides.push(Override {
                path: path.collect(),
                variable: name.as_str().into(),
                value: value.to_owned(),
            });
        }
        overrides.sort();
        Ok(overrides)
    }
}

fn display(path: &[Part]) -> String {
    path.iter().fold(String::new(), |before, part| match part {
        Part::Index(index) => format!("{before}[{index}]"),
        Part::Key(key) if before.is_empty() => key.clone(),
        Part::Key(key) => format!("{before}.{key}"),
    })
}

/// Replaces the value at `path`, and creates the lists and mappings that lead there.
fn set(node: &mut Node, path: &[Part], place: &Place, value: &str) -> Result<(), String> {
    let Some((part, rest)) = path.split_first() else {
        *node = parse(value, place);
        return Ok(());
    };
    // A list or a mapping that another variable has set.
    if let Kind::Untyped(_, parsed) = &mut node.kind {
        node.kind = std::mem::replace(&mut parsed.kind, Kind::Null);
    }
    if let Kind::Null = node.kind {
        node.place = place.clone();
        node.kind = match part {
            Part::Index(_) => Kind::List(Vec::new()),
            Part::Key(_) => Kind::Map(Vec::new()),
        };
    }
    let below = match (&mut node.kind, part) {
        (Kind::List(list), Part::Index(index)) => item(list, *index, place)?,
        (Kind::List(list), Part::Key(_)) => {
            let length = list.len();
            return Err(format!("this is a list: use an index from 0 to {length}"));
        }
        (Kind::Map(entries), Part::Index(index)) => value_of(entries, &index.to_string(), place),
        (Kind::Map(entries), Part::Key(key)) => value_of(entries, key, place),
        _ => return Err("the key above this one holds a single value, which has no keys".into()),
    };
    set(below, rest, place, value)
}

/// The item at `index`. The index after the last item adds one.
fn item<'a>(list: &'a mut Vec<Node>, index: usize, place: &Place) -> Result<&'a mut Node, String> {
    let length = list.len();
    if index == length {
        list.push(Node::null(place.clone()));
    }
    list.get_mut(index)
        .ok_or_else(|| format!("this list has {length} items; the next index is {length}, not {index}"))
}

/// The value of `key`, found without regard to case, because variables are written in capitals. A missing key is added.
fn value_of<'a>(entries: &'a mut Vec<Entry>, key: &str, place: &Place) -> &'a mut Node {
    let index = entries.iter().position(|entry| entry.key.eq_ignore_ascii_case(key)).unwrap_or_else(|| {
        entries.push(Entry { key: key.to_owned(), place: place.clone(), value: Node::null(place.clone()) });
        entries.len() - 1
    });
    &mut entries[index].value
}

/// A variable's value. It carries no type, so a key that takes text gets the text as it is.
fn parse(value: &str, place: &Place) -> Node {
    let mut parsed = yaml::scalar(value)
        .unwrap_or_else(|| Node { place: place.clone(), kind: Kind::Text(value.to_owned()) });
    parsed.update_places(&mut |written| written.clone_from(place));
    Node { place: place.clone(), kind: Kind::Untyped(value.to_owned(), Box::new(parsed)) }
}

#[cfg(test)]
mod tests {
    use crate::{Document, Environment};

    const FILE: &str = "pools:\n- name: a\n  endpoints: {static: ['127.0.0.1:8001']}\n  arbitration: {flows: {weights: {Acme: 2}}}\n";

    fn with(text: &str, variables: &[(&str, &str)]) -> Result<Document, String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Document::parse_with(text, "f.yaml", &Environment::new(variables)).map_err(|error| error.to_string())
    }

    #[test]
    fn variables_of_opentelemetry_are_kept_by_name() {
        let variables = [("OTEL_SERVICE_NAME", "gateway"), ("OTHER", "x")];
        let environment = Environment::new(variables.map(|(name, value)| (name.into(), value.into())));
        assert_eq!(environment.opentelemetry("OTEL_SERVICE_NAME").as_deref(), Some("gateway"));
        assert_eq!(environment.opentelemetry("OTHER"), None);
    }

    #[test]
    fn variables_override_the_file() {
        let document = with(
            FILE,
            &[
                ("PENSTOCK_POOLS__0__QUEUE__TTL", "90s"),
                ("PENSTOCK_POOLS__0__QUEUE__MAX_RATE", "2.5"),
                ("PENSTOCK_POOLS__0__NAME", "7"),
                ("PENSTOCK_POOLS__0__MODELS", "[a*, 'b']"),
                ("PENSTOCK_POOLS__0__ARBITRATION__FLOWS__WEIGHTS__ACME", "5"),
                ("PENSTOCK_POOLS__0__ARBITRATION__FLOWS__WEIGHTS__OTHER", "3"),
                ("PENSTOCK_POOLS__0__ENDPOINTS__STATIC__1", "127.0.0.1:8002"),
                ("PENSTOCK_STARTUP_WAIT", "4s"),
                ("PENSTOCK_SERVICE_HOST", "10.0.0.1"),
                ("PENSTOCK_PORT_9190_TCP", "tcp://10.0.0.1:9190"),
                ("PENSTOCK_LOG", "debug"),
            ],
        )
        .expect("valid");
        let json = document.json();
        assert_eq!(json["startup_wait"], "4s");
        let pool = &json["pools"][0];
        assert_eq!(
            (&pool["name"], &pool["queue"]["ttl"], &pool["queue"]["max_rate"]),
            (&"7".into(), &"90s".into(), &2.5.into())
        );
        assert_eq!(pool["models"], serde_json::json!(["a*", "b"]));
        let weights = serde_json::json!({"Acme": 5, "other": 3});
        assert_eq!(pool["arbitration"]["flows"]["weights"], weights);
        assert_eq!(document.config().pools[0].endpoints.len(), 2);
    }

    #[test]
    fn further_variables_replace_those_of_the_same_name() {
        let variables = [("PENSTOCK_STARTUP_WAIT", "4s"), ("PENSTOCK_LIMITS__FLOWS", "7")];
        let environment = Environment::new(variables.map(|(name, value)| (name.into(), value.into())));
        let environment = environment.with([("PENSTOCK_STARTUP_WAIT".into(), "9s".into())]);
        let document = Document::parse_with(FILE, "f.yaml", &environment).expect("valid");
        let json = document.json();
        assert_eq!((&json["startup_wait"], &json["limits"]["flows"]), (&"9s".into(), &7.into()));
    }

    #[test]
    fn variables_add_keys_that_the_file_leaves_out() {
        let variables = [
            ("PENSTOCK_POOLS__0__NAME", "a"),
            ("PENSTOCK_POOLS__0__ENDPOINTS__STATIC__0", "127.0.0.1:1"),
            ("PENSTOCK_POOLS__1__NAME", "b"),
            ("PENSTOCK_POOLS__1__ENDPOINTS", "{static: ['127.0.0.1:2']}"),
        ];
        for text in ["", "# nothing\n", "metrics: {flows: 5}\n"] {
            let document = with(text, &variables).expect("valid");
            assert_eq!(document.config().pools.len(), 2, "{text}");
        }
        let pools = "[{name: c, endpoints: {static: ['127.0.0.1:3']}}]";
        let overrides = [("PENSTOCK_POOLS", pools), ("PENSTOCK_POOLS__0__QUEUE__TTL", "1s")];
        let document = with(FILE, &overrides).expect("valid");
        assert_eq!(document.json()["pools"][0]["queue"]["ttl"], "1s");
        assert_eq!(document.config().pools[0].name, "c");
    }

    #[test]
    fn an_error_names_the_variable_and_the_key() {
        for (name, value, key, word) in [
            ("PENSTOCK_POOLS__0__QUEUE__TTL", "soon", "pools[0].queue.ttl", "30s"),
            ("PENSTOCK_POOLS__0__QUEUE__TLL", "3s", "pools[0].queue.tll", "did you mean `ttl`?"),
            ("PENSTOCK_POOLS__3__NAME", "x", "pools[3].name", "the next index is 1, not 3"),
            ("PENSTOCK_POOLS__FIRST__NAME", "x", "pools.first.name", "an index from 0 to 1"),
            ("PENSTOCK_POOLS__0__NAME__X", "x", "pools[0].name.x", "has no keys"),
            ("PENSTOCK_QUEUE__TTL", "3s", "queue", "there is no key `queue` here"),
            ("PENSTOCK_POOLS__0__STOCK__DEVIATION", "1.5", "pools[0].stock.deviation", "below 1"),
            ("PENSTOCK_POOLS__0__QUEUE__FLOW_CAPACITY", "0", "pools[0].queue.flow_capacity", "at least 1"),
        ] {
            let message = with(FILE, &[(name, value)]).expect_err(name);
            assert!(message.starts_with(&format!("environment: {name}: {key}: ")), "{message}");
            assert!(message.contains(word), "{message}");
        }
        let message = with("pools: [{name: a, colour: red}]", &[("PENSTOCK_LIMITS__FLOWS", "3")]);
        assert!(message.expect_err("the file is wrong").starts_with("f.yaml:1: pools[0].colour: "));
    }
}
