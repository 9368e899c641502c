//! The environment over the file: `PENSTOCK_` and a key's path in capitals with `__` between, as in
//! `PENSTOCK_POOLS__0__QUEUE__TTL=90s`.
//!
//! A variable is put into the document's tree before it is read, so that it is held to the same rules as the file, and
//! an error names it. A value is YAML, or a text where the key is one.

use std::ffi::OsString;
use std::sync::Arc;

use super::node::{Entry, Kind, Node, Place};
use super::{Error, parse};

/// What every variable begins with.
const PREFIX: &str = "PENSTOCK_";
/// Between the parts of a path.
const BETWEEN: &str = "__";
/// The document's own keys, which need no `__`.
const KEYS: [&str; 9] = [
    "listen",
    "tls",
    "admin",
    "identity",
    "pools",
    "shutdown",
    "startup_wait",
    "limits",
    "metrics",
];
/// Variables that mean something else: flags of the binary.
const FLAGS: [&str; 2] = ["LOG", "LOG_FORMAT"];
/// What Kubernetes tells every pod of a service that is called `penstock`.
const SERVICE: [&str; 2] = ["SERVICE_", "PORT"];

/// A part of a path: a number has its own order, and may be an index.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Index(usize),
    Key(String),
}

/// What the environment says of the document, in the order of its paths.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    said: Vec<(Vec<Part>, Arc<str>, String)>,
    /// Variables that look as if they were meant for the configuration, and aren't.
    pub(super) strangers: Vec<String>,
}

impl Overlay {
    /// Of all variables of a process.
    ///
    /// # Errors
    /// When one that counts isn't text.
    pub(super) fn of(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, Error> {
        let mut overlay = Self::default();
        for (name, value) in variables {
            let Some(name) = name.to_str().filter(|it| it.starts_with(PREFIX)) else {
                continue;
            };
            let rest = name.trim_start_matches(PREFIX);
            let key = rest.to_ascii_lowercase();
            if !rest.contains(BETWEEN) && !KEYS.contains(&key.as_str()) {
                let known = FLAGS.contains(&rest) || SERVICE.iter().any(|it| rest.starts_with(it));
                if !known {
                    overlay.strangers.push(name.to_owned());
                }
                continue;
            }
            let Some(value) = value.to_str() else {
                return Err(Error::Value {
                    origin: origin(name),
                    key,
                    message: "this is text in UTF-8".into(),
                });
            };
            let path = rest.split(BETWEEN).map(|part| match part.parse() {
                Ok(index) => Part::Index(index),
                Err(_) => Part::Key(part.to_ascii_lowercase()),
            });
            overlay.said.push((path.collect(), name.into(), value.to_owned()));
        }
        // What is around comes before what is in it, and a list's items in their order.
        overlay.said.sort();
        overlay.strangers.sort();
        Ok(overlay)
    }

    /// Puts everything where it belongs.
    ///
    /// # Errors
    /// When there is no such place: below a value that holds nothing, or past a list's end.
    pub(super) fn apply(&self, tree: &mut Node) -> Result<(), Error> {
        for (path, name, value) in &self.said {
            let place = Place::Variable(Arc::clone(name));
            put(tree, path, &place, value).map_err(|message| Error::Value {
                origin: origin(name),
                key: shown(path),
                message,
            })?;
        }
        Ok(())
    }
}

/// What an error names as the place.
pub(super) fn origin(variable: &str) -> String {
    format!("environment: {variable}")
}

fn shown(path: &[Part]) -> String {
    path.iter().fold(String::new(), |before, part| match part {
        Part::Index(index) => format!("{before}[{index}]"),
        Part::Key(key) if before.is_empty() => key.clone(),
        Part::Key(key) => format!("{before}.{key}"),
    })
}

fn put(node: &mut Node, path: &[Part], place: &Place, value: &str) -> Result<(), String> {
    let Some((part, rest)) = path.split_first() else {
        *node = read(value, place);
        return Ok(());
    };
    // A list or a mapping that another variable gave.
    if let Kind::Plain(_, inner) = &mut node.kind {
        let inner = std::mem::replace(&mut inner.kind, Kind::Null);
        node.kind = inner;
    }
    if let Kind::Null = node.kind {
        node.place = place.clone();
        node.kind = match part {
            Part::Index(_) => Kind::List(Vec::new()),
            Part::Key(_) => Kind::Map(Vec::new()),
        };
    }
    match (&mut node.kind, part) {
        (Kind::List(list), Part::Index(index)) => {
            let length = list.len();
            if *index == length {
                list.push(Node {
                    place: place.clone(),
                    kind: Kind::Null,
                });
            }
            match list.get_mut(*index) {
                Some(item) => put(item, rest, place, value),
                None => Err(format!(
                    "this list has {length}; {length} would be the next, not {index}"
                )),
            }
        }
        (Kind::List(list), Part::Key(_)) => Err(format!(
            "this is a list: a number from 0 to {} stands here",
            list.len()
        )),
        (Kind::Map(entries), part) => {
            let key = match part {
                Part::Index(index) => index.to_string(),
                Part::Key(key) => key.clone(),
            };
            let at = match entries.iter().position(|it| it.key.eq_ignore_ascii_case(&key)) {
                Some(at) => at,
                None => {
                    entries.push(Entry {
                        key,
                        place: place.clone(),
                        value: Node {
                            place: place.clone(),
                            kind: Kind::Null,
                        },
                    });
                    entries.len() - 1
                }
            };
            match entries.get_mut(at) {
                Some(entry) => put(&mut entry.value, rest, place, value),
                None => Ok(()),
            }
        }
        _ => Err("what stands above is a value: there is nothing in it".into()),
    }
}

/// What a variable holds: it says no type, so a key that is a text takes it as it is.
fn read(value: &str, place: &Place) -> Node {
    let mut typed = parse::scalar(value).unwrap_or_else(|| Node {
        place: place.clone(),
        kind: Kind::Text(value.to_owned()),
    });
    typed.stand_at(place);
    Node {
        place: place.clone(),
        kind: Kind::Plain(value.to_owned(), Box::new(typed)),
    }
}

#[cfg(test)]
mod tests {
    use crate::Document;

    const FILE: &str = "pools:\n- name: a\n  endpoints: {static: ['127.0.0.1:8001']}\n  arbitration: {flows: {weights: {Acme: 2}}}\n";

    fn with(text: &str, variables: &[(&str, &str)]) -> Result<Document, String> {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into()));
        Document::parse_over(text, "f.yaml", variables).map_err(|why| why.to_string())
    }

    #[test]
    fn a_variable_counts_more_than_the_file() {
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
    fn what_a_file_leaves_out_a_variable_may_say() {
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
        let over = [("PENSTOCK_POOLS", pools), ("PENSTOCK_POOLS__0__QUEUE__TTL", "1s")];
        let document = with(FILE, &over).expect("valid");
        assert_eq!(document.json()["pools"][0]["queue"]["ttl"], "1s");
        assert_eq!(document.config().pools[0].name, "c");
    }

    #[test]
    fn an_error_names_the_variable_and_the_key() {
        for (name, value, key, word) in [
            (
                "PENSTOCK_POOLS__0__QUEUE__TTL",
                "soon",
                "pools[0].queue.ttl",
                "30s",
            ),
            (
                "PENSTOCK_POOLS__0__QUEUE__TLL",
                "3s",
                "pools[0].queue.tll",
                "did you mean `ttl`?",
            ),
            (
                "PENSTOCK_POOLS__3__NAME",
                "x",
                "pools[3].name",
                "1 would be the next",
            ),
            (
                "PENSTOCK_POOLS__FIRST__NAME",
                "x",
                "pools.first.name",
                "a number from 0 to 1",
            ),
            (
                "PENSTOCK_POOLS__0__NAME__X",
                "x",
                "pools[0].name.x",
                "nothing in it",
            ),
            (
                "PENSTOCK_QUEUE__TTL",
                "3s",
                "queue",
                "there is no key `queue` here",
            ),
            (
                "PENSTOCK_POOLS__0__STOCK__DEVIATION",
                "1.5",
                "pools[0].stock.deviation",
                "below 1",
            ),
            (
                "PENSTOCK_POOLS__0__QUEUE__FLOW_CAPACITY",
                "0",
                "pools[0].queue.flow_capacity",
                "at least 1",
            ),
        ] {
            let said = with(FILE, &[(name, value)]).expect_err(name);
            assert!(
                said.starts_with(&format!("environment: {name}: {key}: ")),
                "{said}"
            );
            assert!(said.contains(word), "{said}");
        }
        let said = with(
            "pools: [{name: a, colour: red}]",
            &[("PENSTOCK_LIMITS__FLOWS", "3")],
        );
        assert!(
            said.expect_err("the file is wrong")
                .starts_with("f.yaml:1: pools[0].colour: ")
        );
    }
}
