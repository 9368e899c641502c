//! `penstock import`, `completions` and `--help` as a user runs them: their output and exit codes.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use penstock_tests::binary;

const SOURCES: [&str; 5] = ["dynamo", "wva", "nexus", "kthena", "gie"];

fn penstock(arguments: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(binary::penstock())
        .args(arguments)
        .current_dir(binary::workspace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("penstock starts");
    // A command that does not read stdin may have closed it.
    let _ = child.stdin.take().expect("piped").write_all(stdin.as_bytes());
    child.wait_with_output().expect("penstock ends")
}

fn stored(name: &str) -> String {
    let path = binary::workspace().join("tests/import").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

#[test]
fn each_example_gives_its_golden_configuration_which_is_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    for source in SOURCES {
        let example = format!("tests/import/{source}.example");
        let printed = penstock(&["import", source, &example], "");
        assert_eq!(printed.status.code(), Some(0), "{printed:?}");
        assert!(printed.stderr.is_empty(), "{printed:?}");
        let page = String::from_utf8(printed.stdout).expect("UTF-8");
        assert_eq!(page, stored(&format!("{source}.golden.yaml")));
        let written: PathBuf = folder.path().join("penstock.yaml");
        std::fs::write(&written, &page).expect("written");
        let path = written.to_str().expect("a plain path");
        let checked = penstock(&["validate", "--config", path], "");
        assert_eq!(checked.status.code(), Some(0), "{checked:?}\n{page}");
        // The same from stdin.
        let piped = penstock(&["import", source, "-"], &stored(&format!("{source}.example")));
        let piped = String::from_utf8(piped.stdout).expect("UTF-8");
        assert_eq!(piped, page.replace(&format!("{source}.example"), "stdin"));
    }
}

#[test]
fn wrong_input_exits_2_with_file_and_line() {
    let wrong = [
        ("gie", "fair_request_queue:\n  queue_ttl: soon\n", "stdin:2: "),
        ("nexus", "[queue]\nmax_size = -1\n", "stdin:2: "),
        ("kthena", "FAIRNESS_WINDOW_SIZE=2h\n", "stdin:1: "),
        ("wva", "a:\n  model_id: m\n  namespace: n\n  tuningEnabled: perhaps\n", "stdin:4: "),
        ("dynamo", "policy_classes:\n- {name: a, quantum: 0}\n", "stdin:2: "),
    ];
    for (source, text, place) in wrong {
        let refused = penstock(&["import", source, "-"], text);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        assert!(refused.stdout.is_empty(), "{refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.starts_with(place), "{said}");
    }
    for arguments in [
        &["import", "gie", "no-such-file"][..],
        &["import", "gie", "tests"],
        &["import", "gie"],
        &["import", "haproxy", "-"],
        &["completions", "tcsh"],
    ] {
        let refused = penstock(arguments, "");
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}

#[test]
fn closed_stdout_is_not_an_error() {
    for arguments in [
        &["completions", "zsh"][..],
        &["--help"],
        &["validate", "--schema"],
        &["import", "dynamo", "tests/import/dynamo.example"],
    ] {
        let mut child = Command::new(binary::penstock())
            .args(arguments)
            .current_dir(binary::workspace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("penstock starts");
        drop(child.stdout.take());
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).expect("UTF-8");
        assert_eq!(child.wait().expect("ends").code(), Some(0), "{arguments:?}: {said}");
        assert!(said.is_empty(), "{arguments:?}: {said}");
    }
}

#[test]
fn missing_command_prints_the_help_and_exits_2() {
    let alone = penstock(&[], "");
    assert_eq!(alone.status.code(), Some(2), "{alone:?}");
    let said = String::from_utf8_lossy(&alone.stderr);
    assert!(said.contains("Usage: penstock") && said.contains("import"), "{said}");
}
