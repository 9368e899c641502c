//! Tests of texts that are no document. Each error names the line, the key's path and the allowed values.

use super::{POOL, assert_error};
use crate::Config;

/// A valid pool on one line, for documents with a wrong key before the pools.
const SMALL: &str = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]\n";

#[test]
fn a_document_is_one_yaml_mapping() {
    for (text, line, key, word) in [
        ("", 1, "pools", "at least one pool"),
        ("# nothing\n\n", 1, "pools", "at least one pool"),
        ("pools: []\n", 1, "pools", "at least one pool"),
        ("limits: {}\n", 1, "pools", "at least one pool"),
        ("pools: {a: b}\n", 1, "pools", "a list, not a mapping"),
        ("pools:\n", 1, "pools", "a list, not empty (null)"),
        ("pools: [5]\n", 1, "pools[0]", "a mapping of keys to values, not 5"),
        ("- a\n- b\n", 1, "document", "a mapping of keys"),
        ("pools\n", 1, "document", "a mapping of keys"),
        ("pools: [\n", 1, "document", "unclosed bracket '[' (column 8)"),
        ("pools: [{name: a}\nlimits: {}\n", 2, "document", "isn't YAML"),
        ("limits:\n\tflows: 3\n", 2, "document", "isn't YAML"),
        ("limits: {flows: 3}\n  metrics: {}\n", 2, "document", "isn't YAML"),
        ("limits: *nothing\n", 1, "document", "isn't YAML"),
        ("limits: {flows: 3}\n---\nlimits: {flows: 4}\n", 2, "document", "second document"),
        ("limits:\n  flows: 3\nlimits:\n  flows: 4\n", 3, "limits", "twice"),
        ("limits:\n  flows: 3\n  body_bytes: 1KiB\n  flows: 4\n", 4, "limits.flows", "twice"),
        ("pools:\n- name: a\n  queue: {ttl: 1s, ttl: 2s}\n", 3, "pools[0].queue.ttl", "twice"),
        ("a: \0\n", 1, "document", "bytes of 0"),
    ] {
        assert_error(text, line, key, word);
    }
}

#[test]
fn aliases_are_allowed_and_alias_bombs_are_errors() {
    let shared = "pools:\n- &one\n  name: a\n  endpoints: {static: ['127.0.0.1:1']}\n  queue: &q {ttl: 5s}\n- name: b\n  endpoints: {static: ['127.0.0.1:2']}\n  queue: *q\n- <<: *one\n  name: c\n";
    let config = Config::parse(shared, "f.yaml").expect("aliases are fine");
    let names: Vec<_> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let aliases = format!("*a{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", aliases.trim_end_matches(", ")));
    }
    let message = Config::parse(&bomb, "f.yaml").expect_err("a bomb").to_string();
    assert!(message.starts_with("f.yaml:") && message.contains("isn't YAML"), "{message}");
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let message = Config::parse(&deep, "f.yaml").expect_err("too deep").to_string();
    assert!(message.starts_with("f.yaml:1: document: "), "{message}");
}

#[test]
fn json_windows_line_ends_and_byte_order_marks_are_accepted() {
    let json = r#"{"pools": [{"name": "a", "endpoints": {"static": ["127.0.0.1:8001"]}}]}"#;
    let windows = POOL.replace('\n', "\r\n");
    let marked = format!("\u{feff}{POOL}");
    let one = Config::parse(SMALL, "f.yaml").expect("valid");
    for text in [json, POOL, &windows, &marked, &format!("---\n{POOL}...\n")] {
        let other = Config::parse(text, "f.yaml").unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(format!("{other:?}"), format!("{one:?}"));
    }
}
