//! Envoy's log, line by line, into ours.
//!
//! We choose Envoy's format, so a line's level needs no guessing. What has no level goes on from the line before
//! (a stack trace, a long message). The last few lines are kept, to say why it ended.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::ChildStderr,
};

/// Level, component, message; the time is ours.
pub(super) const FORMAT: &str = "%l|%n|%v";

/// Lines that are kept.
const KEPT: usize = 8;

/// The last lines that were errors.
#[derive(Debug, Default)]
pub(super) struct Tail(VecDeque<String>);

impl Tail {
    fn push(&mut self, line: &str) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(line.to_owned());
    }

    pub(super) fn text(&self) -> String {
        let lines: Vec<&str> = self.0.iter().map(String::as_str).collect();
        lines.join("\n")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Critical,
    Error,
    Warning,
    Info,
    Debug,
}

fn split(line: &str) -> Option<(Level, &str, &str)> {
    let (level, rest) = line.split_once('|')?;
    let (component, message) = rest.split_once('|')?;
    let level = match level {
        "critical" => Level::Critical,
        "error" => Level::Error,
        "warning" => Level::Warning,
        "info" => Level::Info,
        "debug" | "trace" => Level::Debug,
        _ => return None,
    };
    Some((level, component, message))
}

/// Reads until Envoy closes its end.
pub(super) async fn read(stderr: Option<ChildStderr>, tail: Arc<Mutex<Tail>>) {
    let Some(stderr) = stderr else { return };
    let mut lines = BufReader::new(stderr).split(b'\n');
    let mut level = Level::Info;
    let mut component = String::new();
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line);
        let message = match split(&line) {
            Some((at, of, message)) => {
                level = at;
                of.clone_into(&mut component);
                message
            }
            None => &line,
        };
        match level {
            Level::Critical | Level::Error => tracing::error!(target: "envoy", component, "{message}"),
            Level::Warning => tracing::warn!(target: "envoy", component, "{message}"),
            Level::Info => tracing::info!(target: "envoy", component, "{message}"),
            Level::Debug => tracing::debug!(target: "envoy", component, "{message}"),
        }
        if matches!(level, Level::Critical | Level::Error) {
            tail.lock()
                .expect("invariant: no one panics with it")
                .push(message);
        }
    }
}

/// The address and the reason, if what Envoy said is that it can't bind one.
pub(super) fn taken_address(said: &str) -> Option<(String, String)> {
    let (_, rest) = said.split_once("cannot bind '")?;
    let (address, rest) = rest.split_once('\'')?;
    let why = rest.trim_start_matches(": ").lines().next().unwrap_or_default();
    Some((address.to_owned(), why.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_level_or_goes_on() {
        assert_eq!(split("warning|wasm|a|b"), Some((Level::Warning, "wasm", "a|b")));
        assert_eq!(split("  at frame 3"), None);
        assert_eq!(split("a|b|c"), None);
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut tail = Tail::default();
        assert_eq!(tail.text(), "");
        for line in 0..100 {
            tail.push(&line.to_string());
        }
        assert_eq!(tail.text(), "92\n93\n94\n95\n96\n97\n98\n99");
    }

    #[test]
    fn a_taken_address_is_named() {
        let said =
            "error initializing configuration: cannot bind '127.0.0.1:8080': Address already in use\nexiting";
        let taken = ("127.0.0.1:8080".to_owned(), "address already in use".to_owned());
        assert_eq!(taken_address(said), Some(taken));
        assert_eq!(taken_address("no such file"), None);
    }
}
