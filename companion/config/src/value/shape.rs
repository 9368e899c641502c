//! Values that may be written in more than one form, such as a word or a list.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// The trusted clients, by their address as Envoy sees it: `all`, `none`, or a list of networks. For other clients, claims such as a
/// high priority are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Every client.
    All,
    /// Clients in one of these networks. An empty list trusts no client.
    Networks(Vec<IpNet>),
}

/// A network, written `10.0.0.0/8` or `fd00::/8`. Address bits after the prefix are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(pub(crate) IpNet);

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NetworkVisitor;
        impl Visitor<'_> for NetworkVisitor {
            type Value = Network;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a network like 10.0.0.0/8, 192.0.2.7/32 or fd00::/8")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Network, E> {
                match text.trim().parse::<IpNet>() {
                    Ok(network) => Ok(Network(network.trunc())),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(NetworkVisitor)
    }
}

impl<'de> Deserialize<'de> for Trust {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TrustVisitor;
        impl<'de> Visitor<'de> for TrustVisitor {
            type Value = Trust;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("all, none, or a list of networks like [10.0.0.0/8, fd00::/8]")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Trust, E> {
                match text {
                    "all" => Ok(Trust::All),
                    "none" => Ok(Trust::Networks(Vec::new())),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Trust, A::Error> {
                let mut networks = Vec::new();
                while let Some(Network(network)) = list.next_element()? {
                    networks.push(network);
                }
                Ok(Trust::Networks(networks))
            }
        }
        deserializer.deserialize_any(TrustVisitor)
    }
}

impl Serialize for Trust {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Networks(networks) if networks.is_empty() => serializer.serialize_str("none"),
            Self::Networks(networks) => serializer.collect_seq(networks.iter().map(ToString::to_string)),
        }
    }
}

inline_schema!(Trust, |_| json_schema!({"anyOf": [
    {"enum": ["all", "none"]},
    {"type": "array", "items": {"type": "string", "pattern": "^\\s*[0-9A-Fa-f.:]+/[0-9]+\\s*$"}},
]}));

/// A word or a whole number, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scalar(pub(crate) String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ScalarVisitor;
        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a word or a whole number")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }
        }
        deserializer.deserialize_any(ScalarVisitor)
    }
}

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

inline_schema!(Scalar, |_| json_schema!({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}]}));

/// A mapping that keeps the order in which it was written, because its first entry that matches counts.
#[derive(Clone, Debug)]
pub(crate) struct OrderedMap<T>(pub(crate) Vec<(String, T)>);

impl<T> Default for OrderedMap<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrderedMap<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for EntriesVisitor<T> {
            type Value = OrderedMap<T>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a mapping")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<OrderedMap<T>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(OrderedMap(pairs))
            }
        }
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

impl<T: Serialize> Serialize for OrderedMap<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<T: JsonSchema> JsonSchema for OrderedMap<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Pairs_of_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "object", "additionalProperties": generator.subschema_for::<T>()})
    }
}

/// One word, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OneOrMany<T>(pub(crate) Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for OneOrManyVisitor<T> {
            type Value = OneOrMany<T>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("one word or a list of them")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany<T>, E> {
                T::deserialize(de::value::StrDeserializer::new(text)).map(|one| OneOrMany(vec![one]))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany<T>, A::Error> {
                let mut many = Vec::new();
                while let Some(one) = list.next_element()? {
                    many.push(one);
                }
                Ok(OneOrMany(many))
            }
        }
        deserializer.deserialize_any(OneOrManyVisitor(PhantomData))
    }
}

impl<T: Serialize> Serialize for OneOrMany<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => serializer.collect_seq(many),
        }
    }
}

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("One_or_many_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({"anyOf": [one.clone(), {"type": "array", "minItems": 1, "items": one}]})
    }
}

/// A list. `null` is an empty list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List<T>(pub(crate) Vec<T>);

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// Reads a [`List`] as a vector.
pub(crate) fn list<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    List::deserialize(deserializer).map(|list| list.0)
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<Vec<T>>::deserialize(deserializer).map(|list| Self(list.unwrap_or_default()))
    }
}

impl<T: Serialize> Serialize for List<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.0)
    }
}

impl<T: JsonSchema> JsonSchema for List<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("List_of_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["array", "null"], "items": generator.subschema_for::<T>()})
    }
}

/// A mapping of which one key is enough, so that its value may stand for the mapping.
pub(crate) trait Short: From<String> {
    /// Both forms, in words.
    const ALLOWED: &'static str;
}

/// A text or a mapping: `"a"` is short for `{address: "a"}`, if that is what the type makes of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortened<T>(pub(crate) T);

impl<'de, T: Deserialize<'de> + Short> Deserialize<'de> for Shortened<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EitherVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de> + Short> Visitor<'de> for EitherVisitor<T> {
            type Value = T;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(T::ALLOWED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
                Ok(T::from(text.to_owned()))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(de::value::MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_any(EitherVisitor(PhantomData)).map(Self)
    }
}

impl<T: Serialize> Serialize for Shortened<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Shortened<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Shortened_{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, generator.subschema_for::<T>()]})
    }
}

/// Reads a [`Shortened`] mapping or null.
pub(crate) fn shortened<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Short,
{
    Option::<Shortened<T>>::deserialize(deserializer).map(|entry| entry.map(|entry| entry.0))
}
