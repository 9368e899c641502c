//! A script for the engine: every line is done, or named with what is wrong in it.

use std::path::Path;

use penstock_tools::replay::{self, Error};
use serde_json::Value;

use super::policies::configs;

/// Runs the input as a script; its first byte says under which policy, and whether the gate is on.
pub fn run(input: &[u8]) {
    let (first, script) = input.split_first().unwrap_or((&0, &[]));
    let configs = configs();
    let config = &configs[usize::from(first >> 1) % configs.len()];
    let pool = config.pools[0].clone();
    let gate = first & 1 == 1;
    let mut answers = Vec::new();
    let done = replay::script(pool, gate, Path::new("ops.jsonl"), script, &mut answers);
    for answer in answers
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let read: Result<Value, _> = serde_json::from_slice(answer);
        assert!(
            read.is_ok_and(|it| it.get("t").is_some()),
            "{}",
            String::from_utf8_lossy(answer)
        );
    }
    match done {
        Ok(()) => {}
        Err(error @ Error::Line { line, .. }) => {
            assert_eq!(error.exit_code(), 2);
            let lines = script.split(|byte| *byte == b'\n').count() as u64;
            assert!((1..=lines).contains(&line), "line {line} of {lines}");
            let said = error.to_string();
            let why = said.strip_prefix(&format!("ops.jsonl:{line}: "));
            assert!(
                why.is_some_and(|why| !why.is_empty() && !why.contains('\n')),
                "{said}"
            );
        }
        Err(other) => panic!("{other}"),
    }
}
