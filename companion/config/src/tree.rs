//! A parsed document as a tree that remembers where each value was written.
//!
//! YAML, JSON, TOML and environment variables all become this tree, so that errors name a line or a variable whatever the
//! source is. The tree takes any document: which keys and values are allowed is decided by its readers.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In this line of the text, from 1.
    Line(u64),
    /// In this environment variable.
    Variable(Arc<str>),
    /// In JSON that was parsed before, which has no lines.
    Unknown,
}

/// A value, and where it was written.
#[derive(Clone, Debug)]
pub struct Node {
    /// Where the value was written. A list or a mapping under a key counts as written where its key is.
    pub place: Place,
    /// The value.
    pub kind: Kind,
}

/// A value.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Nothing: `null`, `~`, or a key without a value.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number of at least 0.
    Unsigned(u64),
    /// A whole number below 0.
    Signed(i64),
    /// Any other number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the order in which it was written.
    Map(Vec<Entry>),
    /// Text of an environment variable, which carries no type: the text, and the value that it is when read as YAML.
    Untyped(String, Box<Node>),
}

/// A key of a mapping, and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key was written.
    pub place: Place,
    /// The key's value.
    pub value: Node,
}

impl Place {
    /// The line of the text; 1 for a value that was not written in a text.
    #[must_use]
    pub const fn line(&self) -> u64 {
        match self {
            Self::Line(line) => *line,
            Self::Variable(_) | Self::Unknown => 1,
        }
    }
}

impl Node {
    /// A value at a line, from 1.
    #[must_use]
    pub const fn at_line(line: u64, kind: Kind) -> Self {
        Self { place: Place::Line(line), kind }
    }

    /// A node without a value.
    #[must_use]
    pub const fn null(place: Place) -> Self {
        Self { place, kind: Kind::Null }
    }

    /// The tree of a JSON value.
    #[must_use]
    pub fn from_json(value: &Value) -> Self {
        let kind = match value {
            Value::Null => Kind::Null,
            Value::Bool(flag) => Kind::Bool(*flag),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(unsigned), _) => Kind::Unsigned(unsigned),
                (None, Some(signed)) => Kind::Signed(signed),
                (None, None) => Kind::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => Kind::Text(text.clone()),
            Value::Array(list) => Kind::List(list.iter().map(Self::from_json).collect()),
            Value::Object(map) => Kind::Map(
                map.iter()
                    .map(|(key, value)| Entry {
                        key: key.clone(),
                        place: Place::Unknown,
                        value: Self::from_json(value),
                    })
                    .collect(),
            ),
        };
        Self { place: Place::Unknown, kind }
    }

    /// Changes the place of this node, and of every key and value below it.
    pub fn update_places(&mut self, update: &mut impl FnMut(&mut Place)) {
        update(&mut self.place);
        match &mut self.kind {
            Kind::List(list) => list.iter_mut().for_each(|node| node.update_places(update)),
            Kind::Map(entries) => {
                for entry in entries {
                    update(&mut entry.place);
                    entry.value.update_places(update);
                }
            }
            Kind::Untyped(_, parsed) => parsed.update_places(update),
            Kind::Null
            | Kind::Bool(_)
            | Kind::Unsigned(_)
            | Kind::Signed(_)
            | Kind::Float(_)
            | Kind::Text(_) => {}
        }
    }

    /// Whether the node has no value.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Whether the value is a mapping.
    #[must_use]
    pub const fn is_map(&self) -> bool {
        matches!(self.kind, Kind::Map(_))
    }

    /// The entries of a mapping; none for any other value.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        match &self.kind {
            Kind::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The entry of a mapping with exactly this key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// The items of a list.
    #[must_use]
    pub fn items(&self) -> Option<&[Self]> {
        match &self.kind {
            Kind::List(list) => Some(list),
            _ => None,
        }
    }

    /// A single value as text; `None` for null, lists and mappings.
    #[must_use]
    pub fn scalar(&self) -> Option<Cow<'_, str>> {
        match &self.kind {
            Kind::Text(text) | Kind::Untyped(text, _) => Some(text.into()),
            Kind::Bool(flag) => Some(flag.to_string().into()),
            Kind::Unsigned(number) => Some(number.to_string().into()),
            Kind::Signed(number) => Some(number.to_string().into()),
            Kind::Float(number) => Some(number.to_string().into()),
            Kind::Null | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// Where the key at `path` was written, for paths such as `pools[0].queue.ttl`. For a key that the document leaves
    /// out, the nearest ancestor that it has.
    #[must_use]
    pub fn place_of(&self, path: &str) -> &Place {
        let step = match &self.kind {
            Kind::Map(entries) => {
                let path = path.strip_prefix('.').unwrap_or(path);
                // Keys such as model names may contain dots, so the longest key that fits is meant.
                entries
                    .iter()
                    .filter_map(|entry| Some((entry, path.strip_prefix(entry.key.as_str())?)))
                    .filter(|(_, rest)| rest.is_empty() || rest.starts_with(['.', '[']))
                    .max_by_key(|(entry, _)| entry.key.len())
                    .map(|(entry, rest)| (&entry.value, rest))
            }
            Kind::List(list) => path.strip_prefix('[').and_then(|rest| {
                let (index, rest) = rest.split_once(']')?;
                Some((list.get(index.parse::<usize>().ok()?)?, rest))
            }),
            Kind::Untyped(_, parsed) => return parsed.place_of(path),
            Kind::Null
            | Kind::Bool(_)
            | Kind::Unsigned(_)
            | Kind::Signed(_)
            | Kind::Float(_)
            | Kind::Text(_) => None,
        };
        step.map_or(&self.place, |(node, rest)| node.place_of(rest))
    }

    /// The path of the key `wanted` that was written in `line`.
    pub(super) fn path_to(&self, wanted: &str, line: u64) -> Option<String> {
        let join = |parent: String, path: String| {
            let separator = if path.starts_with('[') { "" } else { "." };
            parent + separator + &path
        };
        match &self.kind {
            Kind::Map(entries) => entries.iter().find_map(|Entry { key, place, value }| {
                if key == wanted && *place == Place::Line(line) {
                    return Some(key.clone());
                }
                Some(join(key.clone(), value.path_to(wanted, line)?))
            }),
            Kind::List(list) => list
                .iter()
                .enumerate()
                .find_map(|(index, node)| Some(join(format!("[{index}]"), node.path_to(wanted, line)?))),
            _ => None,
        }
    }
}

/// On one line, in YAML's flow style.
impl fmt::Display for Node {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = |index| if index == 0 { "" } else { ", " };
        match &self.kind {
            Kind::List(nodes) => {
                formatter.write_str("[")?;
                for (index, node) in nodes.iter().enumerate() {
                    write!(formatter, "{}{node}", separator(index))?;
                }
                formatter.write_str("]")
            }
            Kind::Map(entries) => {
                formatter.write_str("{")?;
                for (index, entry) in entries.iter().enumerate() {
                    write!(formatter, "{}{}: {}", separator(index), entry.key, entry.value)?;
                }
                formatter.write_str("}")
            }
            _ => formatter.write_str(&self.scalar().unwrap_or("null".into())),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, defined, .. } = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self::at_line(defined.line().max(1), value))
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
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

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Kind, E> {
        Ok(Kind::Bool(flag))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Kind, E> {
        Ok(Kind::Unsigned(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Kind, E> {
        Ok(u64::try_from(number).map_or(Kind::Signed(number), Kind::Unsigned))
    }

    #[expect(clippy::cast_precision_loss, reason = "no key takes a number of this size")]
    fn visit_u128<E: de::Error>(self, number: u128) -> Result<Kind, E> {
        Ok(Kind::Float(number as f64))
    }

    #[expect(clippy::cast_precision_loss, reason = "no key takes a number of this size")]
    fn visit_i128<E: de::Error>(self, number: i128) -> Result<Kind, E> {
        Ok(Kind::Float(number as f64))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Kind, E> {
        Ok(Kind::Float(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Kind, E> {
        Ok(Kind::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Kind, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = items.next_element()? {
            list.push(node);
        }
        Ok(Kind::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(Spanned { value: key, defined, .. }) = map.next_key::<Spanned<String>>()? {
            let place = Place::Line(defined.line().max(1));
            let mut value: Node = map.next_value()?;
            // People take a list or a mapping to begin at its key, also where its first item is on the next line.
            if let Kind::Map(_) | Kind::List(_) = value.kind {
                value.place = place.clone();
            }
            entries.push(Entry { key, place, value });
        }
        Ok(Kind::Map(entries))
    }
}
