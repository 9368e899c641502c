//! Reads a tree into the raw types, and says what is wrong with it in words for people.
//!
//! serde's own words are for programmers, and know no place; here an error is where it happened, with the key's path,
//! and says what is allowed.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Expected, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};

use super::nearest::nearest;
use super::node::{Entry, Kind, Node, Place};

/// What is wrong, and where.
#[derive(Debug)]
pub(super) struct Wrong {
    /// The key's path, from the innermost part outwards.
    path: Vec<String>,
    pub(super) place: Option<Place>,
    pub(super) message: String,
}

impl Wrong {
    fn new(message: String) -> Self {
        Self {
            path: Vec::new(),
            place: None,
            message,
        }
    }

    /// It happened here, unless it is known to have happened further in.
    fn at(mut self, place: &Place) -> Self {
        self.place.get_or_insert_with(|| place.clone());
        self
    }

    /// What is around it.
    fn within(mut self, part: String) -> Self {
        self.path.push(part);
        self
    }

    /// `pools[0].queue.ttl`; `document`: the whole.
    pub(super) fn key(&self) -> String {
        let mut path = String::new();
        for part in self.path.iter().rev() {
            if !path.is_empty() && !part.starts_with('[') {
                path.push('.');
            }
            path.push_str(part);
        }
        if path.is_empty() { "document".into() } else { path }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: {}", self.key(), self.message)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!(
            "this is {}, not {}",
            in_words(&expected.to_string()),
            shown(found)
        ))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        let hint = nearest(found, expected).map_or_else(String::new, |it| format!("; did you mean `{it}`?"));
        Self::new(format!("this is {}, not `{found}`{hint}", expected.join(" or ")))
    }

    fn unknown_field(found: &str, expected: &'static [&'static str]) -> Self {
        let known = match nearest(found, expected) {
            Some(it) => format!("did you mean `{it}`? Known"),
            None => "known".to_owned(),
        };
        Self::new(format!(
            "there is no key `{found}` here; {known}: {}",
            expected.join(", ")
        ))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new("this is missing, and has no default".into()).within(field.into())
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new("this key stands here twice".into()).within(field.into())
    }
}

/// serde's words for what a type takes, as people say them.
fn in_words(expected: &str) -> String {
    match expected {
        "a boolean" => "true or false".into(),
        "a string" | "path string" => "a text".into(),
        "a sequence" => "a list".into(),
        "a map" => "a mapping".into(),
        other if other.starts_with("struct ") => "a mapping of keys to values".into(),
        other if other.starts_with("enum ") => "a word, or a mapping of one key".into(),
        other => other.into(),
    }
}

/// What was found instead.
fn shown(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => format!("the text `{}`", short(text)),
        Unexpected::Bool(it) => it.to_string(),
        Unexpected::Unsigned(it) => it.to_string(),
        Unexpected::Signed(it) => it.to_string(),
        Unexpected::Float(it) => it.to_string(),
        Unexpected::Unit | Unexpected::Option => "empty (null)".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a mapping".into(),
        other => other.to_string(),
    }
}

/// A text that isn't too long for a line.
fn short(text: &str) -> String {
    const MOST: usize = 80;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST).chain(['…']).collect()
}

/// Reads `node`; what its own visitor says is wrong is wrong here.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a Node);

impl<'a> Reader<'a> {
    /// What a text that says no type reads as.
    fn typed(self) -> &'a Node {
        match &self.0.kind {
            Kind::Plain(_, node) => node,
            _ => self.0,
        }
    }

    fn wrong<T>(self, expected: &dyn Expected) -> Result<T, Wrong> {
        let found = match &self.typed().kind {
            Kind::Null => Unexpected::Unit,
            Kind::Bool(it) => Unexpected::Bool(*it),
            Kind::Unsigned(it) => Unexpected::Unsigned(*it),
            Kind::Signed(it) => Unexpected::Signed(*it),
            Kind::Float(it) => Unexpected::Float(*it),
            Kind::Text(text) | Kind::Plain(text, _) => Unexpected::Str(text),
            Kind::List(_) => Unexpected::Seq,
            Kind::Map(_) => Unexpected::Map,
        };
        let wrong: Wrong = de::Error::invalid_type(found, expected);
        Err(wrong.at(&self.0.place))
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        let node = self.typed();
        match &node.kind {
            Kind::Null => visitor.visit_unit(),
            Kind::Bool(it) => visitor.visit_bool(*it),
            Kind::Unsigned(it) => visitor.visit_u64(*it),
            Kind::Signed(it) => visitor.visit_i64(*it),
            Kind::Float(it) => visitor.visit_f64(*it),
            Kind::Text(text) | Kind::Plain(text, _) => visitor.visit_str(text),
            Kind::List(list) => visitor.visit_seq(Items {
                list: list.iter().enumerate(),
            }),
            Kind::Map(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                open: None,
            }),
        }
        .map_err(|wrong: Wrong| wrong.at(&self.0.place))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match &self.0.kind {
            Kind::Plain(text, _) => visitor
                .visit_str(text)
                .map_err(|wrong: Wrong| wrong.at(&self.0.place)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.typed().kind {
            Kind::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    // A derived visitor takes a list for its fields one after the other, which nobody means.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        match self.typed().kind {
            Kind::Map(_) => self.deserialize_any(visitor),
            _ => self.wrong(&visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let place = &self.0.place;
        match &self.typed().kind {
            Kind::Text(text) => visitor
                .visit_enum(StrDeserializer::new(text))
                .map_err(|wrong: Wrong| wrong.at(place)),
            Kind::Map(entries) => match entries.as_slice() {
                [entry] => visitor
                    .visit_enum(Choice(entry))
                    .map_err(|wrong: Wrong| wrong.at(place)),
                _ => self.wrong(&Choices(variants)),
            },
            _ => self.wrong(&Choices(variants)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

/// One of some words, as a value or as the only key.
struct Choices(&'static [&'static str]);

impl Expected for Choices {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "one of {}", self.0.join(", "))
    }
}

/// A mapping of one key, which says what its value is.
struct Choice<'a>(&'a Entry);

impl<'de> EnumAccess<'de> for Choice<'_> {
    type Error = Wrong;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Wrong> {
        let name: StrDeserializer<'_, Wrong> = StrDeserializer::new(&self.0.key);
        match seed.deserialize(name) {
            Ok(variant) => Ok((variant, self)),
            Err(wrong) => Err(wrong.at(&self.0.place).within(self.0.key.clone())),
        }
    }
}

impl<'de> VariantAccess<'de> for Choice<'_> {
    type Error = Wrong;

    fn unit_variant(self) -> Result<(), Wrong> {
        Err(
            Wrong::new(format!("`{}` is a word by itself, without a value", self.0.key))
                .at(&self.0.place)
                .within(self.0.key.clone()),
        )
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Wrong> {
        seed.deserialize(Reader(&self.0.value))
            .map_err(|wrong| wrong.at(&self.0.value.place).within(self.0.key.clone()))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Wrong> {
        Reader(&self.0.value).deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        Reader(&self.0.value).deserialize_any(visitor)
    }
}

struct Items<'a> {
    list: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Wrong> {
        let Some((at, node)) = self.list.next() else {
            return Ok(None);
        };
        seed.deserialize(Reader(node))
            .map(Some)
            .map_err(|wrong| wrong.at(&node.place).within(format!("[{at}]")))
    }
}

struct Entries<'a> {
    entries: std::slice::Iter<'a, Entry>,
    open: Option<&'a Entry>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Wrong> {
        let Some(entry) = self.entries.next() else {
            return Ok(None);
        };
        self.open = Some(entry);
        let key: StrDeserializer<'_, Wrong> = StrDeserializer::new(&entry.key);
        match seed.deserialize(key) {
            Ok(key) => Ok(Some(key)),
            Err(wrong) => Err(wrong.at(&entry.place).within(entry.key.clone())),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let entry = self
            .open
            .take()
            .expect("invariant: serde asks for a value after its key");
        seed.deserialize(Reader(&entry.value))
            .map_err(|wrong| wrong.at(&entry.value.place).within(entry.key.clone()))
    }
}
