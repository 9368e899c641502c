//! A streaming JSON reader: `reader` checks the grammar and calls a `visitor`; `string_decoder` decodes the
//! contents of strings, and uses `string` to find unescaped runs. `number` reads numbers in one go.

mod number;
mod reader;
mod string;
mod string_decoder;
mod visitor;

pub(crate) use self::reader::Reader;
pub(crate) use self::string::split_text;
pub use self::visitor::SyntaxError;
pub(crate) use self::visitor::{Cause, Container, JsonString, Literal, ReadError, Visitor};
