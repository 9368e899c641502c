//! Turns Envoy's log into `tracing` events, line by line.
//!
//! Envoy logs in the format that this module sets, so each message begins with its level. A line without a level continues
//! the previous message (a stack trace, a long message). The last errors are kept as the reason for which Envoy ended.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::ChildStderr;

/// Level, component, message. The `tracing` event adds the time.
pub(super) const FORMAT: &str = "%l|%n|%v";

/// Number of lines that are kept.
const KEPT: usize = 8;

/// The last error lines.
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

/// Reads until Envoy closes the pipe.
pub(super) async fn read(stderr: Option<ChildStderr>, tail: Arc<Mutex<Tail>>) {
    let Some(stderr) = stderr else { return };
    let mut lines = BufReader::new(stderr).split(b'\n');
    let mut level = Level::Info;
    let mut component = String::new();
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line);
        let message = match split(&line) {
            Some((line_level, line_component, message)) => {
                level = line_level;
                line_component.clone_into(&mut component);
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
            tail.lock().expect("invariant: no thread panics while it holds the lock").push(message);
        }
    }
}

/// The address and the reason, if the log has the error that Envoy can't bind an address.
pub(super) fn taken_address(log: &str) -> Option<(String, String)> {
    let (_, rest) = log.split_once("cannot bind '")?;
    let (address, rest) = rest.split_once('\'')?;
    let reason = rest.trim_start_matches(": ").lines().next().unwrap_or_default();
    Some((address.to_owned(), reason.to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_a_level_or_continues_a_message() {
        assert_eq!(split("warning|wasm|a|b"), Some((Level::Warning, "wasm", "a|b")));
        assert_eq!(split("  at frame 3"), None);
        assert_eq!(split("a|b|c"), None);
    }

    #[test]
    fn kept_lines_are_bounded() {
        let mut tail = Tail::default();
        assert_eq!(tail.text(), "");
        for line in 0..100 {
            tail.push(&line.to_string());
        }
        assert_eq!(tail.text(), "92\n93\n94\n95\n96\n97\n98\n99");
    }

    #[test]
    fn address_in_use_is_recognized() {
        let log =
            "error initializing configuration: cannot bind '127.0.0.1:8080': Address already in use\nexiting";
        let taken = ("127.0.0.1:8080".to_owned(), "address already in use".to_owned());
        assert_eq!(taken_address(log), Some(taken));
        assert_eq!(taken_address("no such file"), None);
    }
}
