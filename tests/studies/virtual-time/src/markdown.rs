//! Tables in Markdown from JSON figures. The programs that measure and write pages share this file.

use std::fmt::Write as _;

use serde_json::Value;

/// The rows of an array; none of another value.
pub fn rows(array: &Value) -> impl Iterator<Item = &Value> {
    array.as_array().into_iter().flatten()
}

/// The head of a table.
pub fn head(text: &mut String, columns: &[&str]) {
    let _ = writeln!(text, "\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
}

/// One line of a table.
pub fn line(text: &mut String, cells: &[String]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

/// A number with so many decimals; a dash for anything else.
pub fn number(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(|| "-".to_string(), |number| format!("{number:.digits$}"))
}

/// A fraction of 1 in percent; a dash for anything else.
pub fn percent(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_string(), |part| format!("{:.1} %", 100.0 * part))
}
