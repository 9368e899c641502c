//! Running a script, and short ways to write one.

use std::process::{Command, Output};

use penstock_tests::binary;
use serde_json::Value;

/// The result of a script.
pub(crate) struct Replayed(Output);

impl Replayed {
    /// The answers of a script that ran to its end.
    pub(crate) fn done(self) -> Vec<String> {
        assert!(self.0.status.success(), "{}", self.stderr());
        assert_eq!(self.stderr(), "");
        self.lines()
    }

    /// The answers as JSON.
    pub(crate) fn answers(self) -> Vec<Value> {
        let read = |line: &String| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        self.done().iter().map(read).collect()
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let lines = std::str::from_utf8(&self.0.stdout).expect("answers are UTF-8");
        lines.lines().map(str::to_owned).collect()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub(crate) fn code(&self) -> Option<i32> {
        self.0.status.code()
    }
}

/// The configuration of one pool with one endpoint and these further keys.
pub(crate) fn policy(keys: &str) -> String {
    let comma = if keys.is_empty() { "" } else { ", " };
    format!("pools: [{{name: a, endpoints: {{static: ['127.0.0.1:8001']}}{comma}{keys}}}]\n")
}

/// Runs a script under a policy with these keys; spaces around lines and blank lines are removed.
pub(crate) fn replay(keys: &str, script: &str) -> Replayed {
    run(&policy(keys), script, &[])
}

/// [`replay`] with `--gate`.
pub(crate) fn replay_gated(keys: &str, script: &str) -> Replayed {
    run(&policy(keys), script, &["--gate"])
}

fn run(policy: &str, script: &str, flags: &[&str]) -> Replayed {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    let script: String = lines.map(|line| format!("{line}\n")).collect();
    run_bytes(policy, script.as_bytes(), flags)
}

/// Runs a script unchanged.
pub(crate) fn run_bytes(policy: &str, script: &[u8], flags: &[&str]) -> Replayed {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.yaml"), policy).expect("write a file");
    std::fs::write(folder.path().join("ops.jsonl"), script).expect("write a file");
    let mut command = Command::new(binary::penstock());
    command.args(["replay", "--policy", "p.yaml", "ops.jsonl"]).args(flags);
    Replayed(command.current_dir(folder.path()).output().expect("penstock starts"))
}

/// An enqueue at 0; `more` are further fields.
pub(crate) fn enqueue(id: &str, flow: &str, more: &str) -> String {
    let comma = if more.is_empty() { "" } else { "," };
    format!(r#"{{"op":"enqueue","t":0,"id":"{id}","flow":"{flow}"{comma}{more}}}"#)
}

/// `n` dispatches at `t`.
pub(crate) fn dispatches(t: u32, n: usize) -> String {
    format!("{{\"op\":\"dispatch\",\"t\":{t}}}\n").repeat(n)
}

/// The dispatched ids, in order; `null` for a dispatch without a request.
pub(crate) fn order(lines: &[String]) -> Vec<String> {
    let read = |line: &String| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        match &line["dispatch"] {
            Value::String(id) => id.clone(),
            Value::Null if line.get("dispatch").is_some() => "null".to_owned(),
            _ => panic!("{line} is no dispatch"),
        }
    };
    lines.iter().map(read).collect()
}
