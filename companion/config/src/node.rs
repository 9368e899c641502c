//! The document as a tree: what is written, and where each part of it stands.
//!
//! YAML, JSON and the environment all end here, so that one reader (`reader`) says what is wrong, with the line or the
//! variable that said it. A tree keeps what it was given; what is allowed where is nothing to it.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

/// Where something was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a line of the document, from 1; 0: in no particular one.
    Line(u64),
    /// In a variable of the environment.
    Variable(Arc<str>),
}

/// A value, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) kind: Kind,
}

/// What a value is.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
    /// A text that says no type, as the environment has them: what it was, and what it reads as.
    Plain(String, Box<Node>),
}

/// A key, where it stands, and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) place: Place,
    pub(super) value: Node,
}

impl Node {
    /// Of JSON, which has no lines.
    pub(super) fn of(value: &Value) -> Self {
        let kind = match value {
            Value::Null => Kind::Null,
            Value::Bool(it) => Kind::Bool(*it),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(it), _) => Kind::Unsigned(it),
                (None, Some(it)) => Kind::Signed(it),
                (None, None) => Kind::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Kind::Text(text.clone()),
            Value::Array(list) => Kind::List(list.iter().map(Self::of).collect()),
            Value::Object(map) => Kind::Map(
                map.iter()
                    .map(|(key, value)| Entry {
                        key: key.clone(),
                        place: Place::Line(0),
                        value: Self::of(value),
                    })
                    .collect(),
            ),
        };
        Self {
            place: Place::Line(0),
            kind,
        }
    }

    /// All of it was said there.
    pub(super) fn stand_at(&mut self, place: &Place) {
        self.place = place.clone();
        match &mut self.kind {
            Kind::List(list) => list.iter_mut().for_each(|node| node.stand_at(place)),
            Kind::Map(entries) => {
                for entry in entries {
                    entry.place = place.clone();
                    entry.value.stand_at(place);
                }
            }
            Kind::Plain(_, node) => node.stand_at(place),
            Kind::Null
            | Kind::Bool(_)
            | Kind::Unsigned(_)
            | Kind::Signed(_)
            | Kind::Float(_)
            | Kind::Text(_) => {}
        }
    }

    /// There is nothing in it.
    pub(super) const fn is_empty(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Where the key at `path` stands, written as in `pools[0].queue.ttl`; keys may hold dots themselves. A key that
    /// isn't written counts as its nearest ancestor that is.
    pub(super) fn place_of(&self, path: &str) -> &Place {
        let step = match &self.kind {
            Kind::Map(entries) => entries.iter().find_map(|entry| {
                let rest = path.strip_prefix('.').unwrap_or(path);
                let rest = rest.strip_prefix(entry.key.as_str())?;
                let whole = rest.is_empty() || rest.starts_with(['.', '[']);
                whole.then_some((&entry.value, rest))
            }),
            Kind::List(list) => path.strip_prefix('[').and_then(|rest| {
                let (index, rest) = rest.split_once(']')?;
                Some((list.get(index.parse::<usize>().ok()?)?, rest))
            }),
            Kind::Plain(_, node) => return node.place_of(path),
            Kind::Null
            | Kind::Bool(_)
            | Kind::Unsigned(_)
            | Kind::Signed(_)
            | Kind::Float(_)
            | Kind::Text(_) => None,
        };
        step.map_or(&self.place, |(node, rest)| node.place_of(rest))
    }

    /// The path of the key that stands in `line`, if it is one of this tree.
    pub(super) fn path_to(&self, wanted: &str, line: u64) -> Option<String> {
        match &self.kind {
            Kind::Map(entries) => entries.iter().find_map(|Entry { key, place, value }| {
                if key == wanted && *place == Place::Line(line) {
                    return Some(key.clone());
                }
                let below = value.path_to(wanted, line)?;
                let dot = if below.starts_with('[') { "" } else { "." };
                Some(format!("{key}{dot}{below}"))
            }),
            Kind::List(list) => list.iter().enumerate().find_map(|(at, node)| {
                let below = node.path_to(wanted, line)?;
                let dot = if below.starts_with('[') { "" } else { "." };
                Some(format!("[{at}]{dot}{below}"))
            }),
            Kind::Null
            | Kind::Bool(_)
            | Kind::Unsigned(_)
            | Kind::Signed(_)
            | Kind::Float(_)
            | Kind::Text(_)
            | Kind::Plain(..) => None,
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, defined, .. } = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self {
            place: Place::Line(defined.line().max(1)),
            kind: value,
        })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Anything)
    }
}

struct Anything;

impl<'de> Visitor<'de> for Anything {
    type Value = Kind;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Kind, E> {
        Ok(Kind::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: de::Error>(self, it: bool) -> Result<Kind, E> {
        Ok(Kind::Bool(it))
    }

    fn visit_u64<E: de::Error>(self, it: u64) -> Result<Kind, E> {
        Ok(Kind::Unsigned(it))
    }

    fn visit_i64<E: de::Error>(self, it: i64) -> Result<Kind, E> {
        Ok(u64::try_from(it).map_or(Kind::Signed(it), Kind::Unsigned))
    }

    fn visit_f64<E: de::Error>(self, it: f64) -> Result<Kind, E> {
        Ok(Kind::Float(it))
    }

    fn visit_str<E: de::Error>(self, it: &str) -> Result<Kind, E> {
        Ok(Kind::Text(it.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Kind, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = from.next_element()? {
            list.push(node);
        }
        Ok(Kind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(Spanned {
            value: key, defined, ..
        }) = from.next_key::<Spanned<String>>()?
        {
            let place = Place::Line(defined.line().max(1));
            let mut value: Node = from.next_value()?;
            // What holds others begins with its key, for people.
            if let Kind::Map(_) | Kind::List(_) = value.kind {
                value.place = place.clone();
            }
            entries.push(Entry { key, place, value });
        }
        Ok(Kind::Map(entries))
    }
}
