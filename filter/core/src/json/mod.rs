//! A streaming JSON reader: `reader` checks the grammar and calls a `visitor`; `string_decoder` decodes the
//! contents of strings, and uses `string` to find unescaped runs. `number` reads numbers in one go.

mod number;
mod reader;
mod string;
mod string_decoder;
mod visitor;

pub(crate) use reader::Reader;
pub(crate) use string::split_text;
pub use visitor::SyntaxError;
pub(crate) use visitor::{Cause, Container, JsonString, Literal, ReadError, Visitor};
