//! Wrong lines, unusable files, and endless scripts.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use penstock_tests::binary;

use super::CLASSES;
use super::script::{order, policy, replay, run_bytes};

#[test]
fn bad_line_is_named_after_earlier_lines_are_answered() {
    let cases = [
        ("", "not a JSON object"),
        ("{\"op\":\"expire\"", "column"),
        (r#"{"op":"leap","t":3}"#, "`leap`"),
        (r#"{"op":"expire","t":3,"when":1}"#, "`when`"),
        (r#"{"op":"expire","t":0.5}"#, "t: 0.5 is before"),
        (r#"{"op":"expire","t":NaN}"#, "column"),
        (r#"{"op":"enqueue","t":3}"#, "`id`"),
        (r#"{"op":"enqueue","t":3,"id":"b","tokens":-1}"#, "tokens"),
        (r#"{"op":"enqueue","t":3,"id":"b","strict":16}"#, "strict"),
        (r#"{"op":"enqueue","t":3,"id":"b","band":"vip"}"#, "band"),
        (r#"{"op":"enqueue","t":3,"id":"b","class":"x"}"#, "no class `x`"),
        (r#"{"op":"enqueue","t":3,"id":"w"}"#, "`w` is already waiting or running"),
        (r#"{"op":"enqueue","t":3,"id":"a"}"#, "`a` is already waiting or running"),
        (r#"{"op":"dispatch","t":3,"blocked":["cached","x"]}"#, "blocked: the policy has no class `x`"),
        (r#"{"op":"complete","t":3,"id":"a"}"#, "--gate"),
        (r#"{"op":"endpoints","t":3,"ready":1}"#, "--gate"),
    ];
    let head = r#"{"op":"enqueue","t":0,"id":"a","class":"cached"}
{"op":"dispatch","t":1}
{"op":"enqueue","t":2,"id":"w","class":"cached"}
"#;
    for (line, why) in cases {
        let script = format!("{head}{line}\n{{\"op\":\"dispatch\",\"t\":9}}\n");
        let replayed = run_bytes(&policy(CLASSES), script.as_bytes(), &[]);
        let message = replayed.stderr();
        assert_eq!(replayed.code(), Some(2), "{line}: {message}");
        assert!(message.starts_with("ops.jsonl:4: ") && message.contains(why), "{line}: {message}");
        assert_eq!(order(&replayed.lines()), ["a"], "{line}");
    }
}

#[test]
fn last_line_needs_no_newline() {
    let script = "{\"op\":\"enqueue\",\"t\":0,\"id\":\"a\"}\r\n{\"op\":\"dispatch\",\"t\":1}";
    assert_eq!(order(&run_bytes(&policy(""), script.as_bytes(), &[]).done()), ["a"]);
    assert!(run_bytes(&policy(""), b"", &[]).done().is_empty());
    let long = format!("{{\"op\":\"cancel\",\"t\":0,\"id\":\"{}\"}}", "a".repeat(1 << 20));
    let replayed = run_bytes(&policy(""), long.as_bytes(), &[]);
    assert_eq!(replayed.code(), Some(2));
    assert!(replayed.stderr().contains("bytes"), "{}", replayed.stderr());
}

#[test]
fn unusable_files_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.yaml"), policy("")).expect("write a file");
    let with = |arguments: &[&str]| {
        let mut command = Command::new(binary::penstock());
        command.arg("replay").args(arguments).current_dir(folder.path());
        let output = command.output().expect("penstock starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = with(&["--policy", "p.yaml", "none.jsonl"]);
    assert!(code == Some(2) && said.contains("none.jsonl"), "{said}");
    let (code, said) = with(&["--policy", "none.yaml", "p.yaml"]);
    assert!(code == Some(2) && said.contains("none.yaml"), "{said}");
    let (code, said) = with(&["p.yaml"]);
    assert!(code == Some(2) && said.contains("--policy"), "{said}");
    assert_eq!(replay("colour: red", "").code(), Some(2));
}

#[test]
fn endless_script_is_answered_as_a_stream_in_constant_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.yaml"), policy("")).expect("write a file");
    let mut command = Command::new(binary::penstock());
    command
        .args(["replay", "--policy", "p.yaml", "/dev/stdin"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("penstock starts");
    let mut script = child.stdin.take().expect("piped");
    let mut answers = BufReader::new(child.stdout.take().expect("piped"));
    let peak = || {
        let status = format!("/proc/{}/status", child.id());
        let status = std::fs::read_to_string(status).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        kib.expect("a peak").trim().parse::<u64>().expect("KiB")
    };
    let mut line = String::new();
    let mut rounds = |from: u64, to: u64| {
        // As many lines at a time as the pipes hold.
        for first in (from..to).step_by(100) {
            let mut lines = String::new();
            for n in first..first + 100 {
                let t = n as f64 / 1000.0;
                lines += &format!(
                    "{{\"op\":\"enqueue\",\"t\":{t},\"id\":\"r{n}\",\"flow\":\"f{}\",\"tokens\":7}}\n",
                    n % 50
                );
                lines += &format!("{{\"op\":\"dispatch\",\"t\":{t}}}\n");
                lines +=
                    &format!("{{\"op\":\"settle\",\"t\":{t},\"id\":\"r{n}\",\"tokens\":9,\"output\":1}}\n");
            }
            script.write_all(lines.as_bytes()).expect("it reads");
            for n in first..first + 100 {
                line.clear();
                answers.read_line(&mut line).expect("it answers");
                assert!(line.contains(&format!("\"dispatch\":\"r{n}\"")), "{line}");
            }
        }
    };
    rounds(0, 5_000);
    let before = peak();
    rounds(5_000, 60_000);
    let grown = peak() - before;
    assert!(grown < 2_048, "{grown} KiB more for 55,000 requests that have gone");
    drop(script);
    assert!(child.wait().expect("it ends").success());
}
