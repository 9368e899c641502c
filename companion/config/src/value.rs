//! Scalar types of the document that can only hold allowed values.
//!
//! Ranges are checked while the document is read, so that an error has the line and the key's path. Each type also defines its
//! notation when it is written, and its JSON Schema.

mod number;
mod shape;
mod size;

pub(super) use self::number::*;
pub use self::shape::{List, Trust};
pub(super) use self::shape::{OneOrMany, OrderedMap, Scalar, Short, Shortened, list, shortened};
pub(super) use self::size::*;
