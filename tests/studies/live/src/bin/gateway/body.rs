//! The request bodies of the load generators, and a check that a generator is installed.

use std::process::{Command, Stdio};

use serde_json::json;

/// Bytes of a short request's body.
pub(crate) const SHORT: usize = 1_024;
/// Bytes of a long one's.
pub(crate) const LONG: usize = 220 << 10;

/// The model of all requests.
pub(crate) const MODEL: &str = "m";

/// A chat request whose body has `bytes` bytes.
pub(crate) fn chat(bytes: usize) -> String {
    let frame =
        json!({"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": ""}]}).to_string();
    let text: String = "All work and no play makes Jack a dull boy. "
        .chars()
        .cycle()
        .take(bytes.saturating_sub(frame.len()))
        .collect();
    frame.replace(r#""content":"""#, &format!(r#""content":"{text}""#))
}

/// A chat of so many bytes with `key` (for example `{"stream":true,`) instead of its first brace.
pub(crate) fn chat_that_begins(key: &str, bytes: usize) -> String {
    chat(bytes.saturating_sub(key.len() - 1)).replacen('{', key, 1)
}

/// Checks that a load generator is installed; the error says how to install it.
pub(crate) fn installed(program: &str, loads: &str, how: &str) -> Result<(), String> {
    let tried = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match tried {
        Ok(_) => Ok(()),
        Err(why) => Err(format!("{program}: {why}. It is the benchmark's client of the {loads}: {how}")),
    }
}
