//! The scalars of the configuration: types that can't hold a value out of their range.
//!
//! A range is checked while the document is read, so that its error carries the line and the key's path. Each is
//! written in the file's notation, and says in the schema what it allows.

mod number;
mod shape;
mod size;

pub(super) use self::number::*;
pub(super) use self::shape::*;
pub(super) use self::size::*;
