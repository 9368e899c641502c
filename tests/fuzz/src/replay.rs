//! The replay of an engine script: every line is executed, or reported with its error.

use std::path::Path;

use penstock_tools::Failure as _;
use penstock_tools::replay::{self, Error};
use serde_json::Value;

use super::policies::configs;

/// Runs the input as a script; the first byte selects the policy and whether the gate is on.
pub fn run(input: &[u8]) {
    let (first, script) = input.split_first().unwrap_or((&0, &[]));
    let configs = configs();
    let config = &configs[usize::from(first >> 1) % configs.len()];
    let pool = config.pools[0].clone();
    let gate = first & 1 == 1;
    let mut output = Vec::new();
    let done = replay::script(pool, gate, Path::new("ops.jsonl"), script, &mut output);
    for line in output.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let parsed: Result<Value, _> = serde_json::from_slice(line);
        assert!(parsed.is_ok_and(|value| value.get("t").is_some()), "{}", String::from_utf8_lossy(line));
    }
    match done {
        Ok(()) => {}
        Err(error @ Error::Line { line, .. }) => {
            assert_eq!(error.exit_code(), 2);
            let lines = script.split(|byte| *byte == b'\n').count() as u64;
            assert!((1..=lines).contains(&line), "line {line} of {lines}");
            let message = error.to_string();
            let reason = message.strip_prefix(&format!("ops.jsonl:{line}: "));
            assert!(reason.is_some_and(|reason| !reason.is_empty() && !reason.contains('\n')), "{message}");
        }
        Err(other) => panic!("{other}"),
    }
}
