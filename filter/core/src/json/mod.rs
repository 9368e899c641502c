//! A streaming JSON reader: `reader` checks the grammar and calls a `visitor`; `string` scans the bytes of strings.

mod reader;
mod string;
mod visitor;

pub(crate) use reader::Reader;
pub use visitor::SyntaxError;
pub(crate) use visitor::{Cause, Container, JsonString, Literal, ReadError, Visitor};
