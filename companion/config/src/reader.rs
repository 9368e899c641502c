//! Reads a tree into the raw types of the document, with errors for operators.
//!
//! serde's own messages are for programmers and name no place. The errors made here name the place, the key's path and the
//! values that are allowed.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Expected, MapAccess, SeqAccess, Unexpected,
    VariantAccess, Visitor,
};

use super::nearest::nearest;
use super::tree::{Entry, Kind, Node, Place};

/// Keys of Dynamo's router policy file that have no effect here: Penstock reads only the classes of that file.
const ONLY_IN_DYNAMO: [&str; 5] =
    ["router", "worker_selection", "request_classifier", "busy_worker_ratio", "queue_admission"];

/// A value that its key doesn't take.
#[derive(Debug)]
pub(super) struct ReadError {
    /// The key's path, from the innermost part outwards.
    parts: Vec<String>,
    /// Where the value was written, as soon as that is known.
    pub(super) place: Option<Place>,
    pub(super) message: String,
}

impl ReadError {
    fn new(message: String) -> Self {
        Self { parts: Vec::new(), place: None, message }
    }

    /// Sets the place, unless a value further in has set it.
    fn with_place(mut self, place: &Place) -> Self {
        self.place.get_or_insert_with(|| place.clone());
        self
    }

    /// Adds the next outer part of the path.
    fn within(mut self, part: String) -> Self {
        self.parts.push(part);
        self
    }

    /// The key's path, such as `pools[0].queue.ttl`; `None` for the document as a whole.
    pub(super) fn path(&self) -> Option<String> {
        let mut path = String::new();
        for part in self.parts.iter().rev() {
            if !path.is_empty() && !part.starts_with('[') {
                path.push('.');
            }
            path.push_str(part);
        }
        (!path.is_empty()).then_some(path)
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for ReadError {}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!(
            "must be {}, not {}",
            describe_expected(&expected.to_string()),
            describe_found(found)
        ))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        let hint =
            nearest(found, expected).map_or_else(String::new, |word| format!("; did you mean `{word}`?"));
        Self::new(format!("must be {}, not `{found}`{hint}", expected.join(" or ")))
    }

    fn unknown_field(found: &str, expected: &'static [&'static str]) -> Self {
        if ONLY_IN_DYNAMO.contains(&found) {
            return Self::new(format!(
                "there is no key `{found}` here: it is one of Dynamo's router, which has no effect in Penstock. Leave it out, or \
                 convert Dynamo's file with `penstock import dynamo FILE`"
            ));
        }
        let known = match nearest(found, expected) {
            Some(word) => format!("did you mean `{word}`? Known"),
            None => "known".to_owned(),
        };
        Self::new(format!("there is no key `{found}` here; {known}: {}", expected.join(", ")))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new("this key is missing and has no default".into()).within(field.into())
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new("this key is written twice".into()).within(field.into())
    }
}

/// What a type takes, in the operator's words instead of serde's.
fn describe_expected(expected: &str) -> String {
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

/// The value that was found instead.
fn describe_found(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Str(text) => format!("the text `{}`", shorten(text)),
        Unexpected::Bool(flag) => flag.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => number.to_string(),
        Unexpected::Unit | Unexpected::Option => "empty (null)".into(),
        Unexpected::Seq => "a list".into(),
        Unexpected::Map => "a mapping".into(),
        other => other.to_string(),
    }
}

/// The text, cut if it is too long for an error message.
fn shorten(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    if text.chars().count() <= CHARS_MAX {
        return text.to_owned();
    }
    text.chars().take(CHARS_MAX).chain(['…']).collect()
}

/// Deserializes a node. An error of a visitor gets the node's place.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a Node);

impl<'a> Reader<'a> {
    /// The node, or the parsed value of an untyped one.
    fn typed(self) -> &'a Node {
        match &self.0.kind {
            Kind::Untyped(_, node) => node,
            _ => self.0,
        }
    }

    fn mismatch<T>(self, expected: &dyn Expected) -> Result<T, ReadError> {
        let found = match &self.typed().kind {
            Kind::Null => Unexpected::Unit,
            Kind::Bool(flag) => Unexpected::Bool(*flag),
            Kind::Unsigned(number) => Unexpected::Unsigned(*number),
            Kind::Signed(number) => Unexpected::Signed(*number),
            Kind::Float(number) => Unexpected::Float(*number),
            Kind::Text(text) | Kind::Untyped(text, _) => Unexpected::Str(text),
            Kind::List(_) => Unexpected::Seq,
            Kind::Map(_) => Unexpected::Map,
        };
        let error: ReadError = de::Error::invalid_type(found, expected);
        Err(error.with_place(&self.0.place))
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        let node = self.typed();
        match &node.kind {
            Kind::Null => visitor.visit_unit(),
            Kind::Bool(flag) => visitor.visit_bool(*flag),
            Kind::Unsigned(number) => visitor.visit_u64(*number),
            Kind::Signed(number) => visitor.visit_i64(*number),
            Kind::Float(number) => visitor.visit_f64(*number),
            Kind::Text(text) | Kind::Untyped(text, _) => visitor.visit_str(text),
            Kind::List(list) => visitor.visit_seq(Items { list: list.iter().enumerate() }),
            Kind::Map(entries) => visitor.visit_map(Entries { entries: entries.iter(), open: None }),
        }
        .map_err(|error: ReadError| error.with_place(&self.0.place))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match &self.0.kind {
            Kind::Untyped(text, _) => {
                visitor.visit_str(text).map_err(|error: ReadError| error.with_place(&self.0.place))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.typed().kind {
            Kind::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    // A derived visitor also takes a list, as the values of its fields in order. In a document that is a mistake.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match self.typed().kind {
            Kind::Map(_) => self.deserialize_any(visitor),
            _ => self.mismatch(&visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let place = &self.0.place;
        match &self.typed().kind {
            Kind::Text(text) => visitor
                .visit_enum(StrDeserializer::new(text))
                .map_err(|error: ReadError| error.with_place(place)),
            Kind::Map(entries) => match entries.as_slice() {
                [entry] => {
                    visitor.visit_enum(Choice(entry)).map_err(|error: ReadError| error.with_place(place))
                }
                _ => self.mismatch(&Choices(variants)),
            },
            _ => self.mismatch(&Choices(variants)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

/// The names of an enum's variants, one of them expected as a value or as the only key of a mapping.
struct Choices(&'static [&'static str]);

impl Expected for Choices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "one of {}", self.0.join(", "))
    }
}

/// A mapping of one key, which is the name of an enum's variant.
struct Choice<'a>(&'a Entry);

impl<'de> EnumAccess<'de> for Choice<'_> {
    type Error = ReadError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), ReadError> {
        let name: StrDeserializer<'_, ReadError> = StrDeserializer::new(&self.0.key);
        match seed.deserialize(name) {
            Ok(variant) => Ok((variant, self)),
            Err(error) => Err(error.with_place(&self.0.place).within(self.0.key.clone())),
        }
    }
}

impl<'de> VariantAccess<'de> for Choice<'_> {
    type Error = ReadError;

    fn unit_variant(self) -> Result<(), ReadError> {
        Err(ReadError::new(format!("`{}` is written by itself, without a value", self.0.key))
            .with_place(&self.0.place)
            .within(self.0.key.clone()))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ReadError> {
        seed.deserialize(Reader(&self.0.value))
            .map_err(|error| error.with_place(&self.0.value.place).within(self.0.key.clone()))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ReadError> {
        Reader(&self.0.value).deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        Reader(&self.0.value).deserialize_any(visitor)
    }
}

struct Items<'a> {
    list: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = ReadError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, ReadError> {
        let Some((index, node)) = self.list.next() else {
            return Ok(None);
        };
        seed.deserialize(Reader(node))
            .map(Some)
            .map_err(|error| error.with_place(&node.place).within(format!("[{index}]")))
    }
}

struct Entries<'a> {
    entries: std::slice::Iter<'a, Entry>,
    open: Option<&'a Entry>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = ReadError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ReadError> {
        let Some(entry) = self.entries.next() else {
            return Ok(None);
        };
        self.open = Some(entry);
        let key: StrDeserializer<'_, ReadError> = StrDeserializer::new(&entry.key);
        match seed.deserialize(key) {
            Ok(key) => Ok(Some(key)),
            Err(error) => Err(error.with_place(&entry.place).within(entry.key.clone())),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ReadError> {
        let entry = self.open.take().expect("invariant: serde asks for a value after its key");
        seed.deserialize(Reader(&entry.value))
            .map_err(|error| error.with_place(&entry.value.place).within(entry.key.clone()))
    }
}
