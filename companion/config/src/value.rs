//! Scalar types of the document that can only hold allowed values.
//!
//! Ranges are checked while the document is read, so that an error has the line and the key's path. Each type also defines its
//! notation when it is written, and its JSON Schema.

/// The schema of a type with a notation of its own. Other schemas contain it, instead of naming it.
macro_rules! inline_schema {
    ($type:ident, |$generator:pat_param| $schema:expr) => {
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}

mod number;
mod shape;
mod size;

pub(super) use self::number::*;
pub use self::shape::{List, Trust};
pub(super) use self::shape::{OneOrMany, OrderedMap, Scalar, Short, Shortened, list, shortened};
pub(super) use self::size::*;
pub(super) use inline_schema;
