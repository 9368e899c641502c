//! Tests of wrong keys outside the pools, and of texts that are no document. Each error names the line, the key's path and the
//! allowed values.

use super::{POOL, assert_error};
use crate::Config;

/// A valid pool on one line, for documents with a wrong key before the pools.
const SMALL: &str = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]\n";

#[test]
fn keys_outside_pools_reject_values_out_of_range() {
    for (written, key, word) in [
        ("listen: {gateway: localhost}", "listen.gateway", "write ip:port, like 127.0.0.1:8080"),
        ("listen: {gateway: '0.0.0.0:8080'}", "listen.gateway", "identity.trust"),
        ("identity: {user: [{header: 'x user'}]}", "identity.user[0].header", "like x-penstock-tenant"),
        ("identity: {user: [{metadata: sub}]}", "identity.user[0].metadata", "NAMESPACE/KEY"),
        ("listen: {gateway: 8080}", "listen.gateway", "a text, not 8080"),
        ("listen: {grpc: '0.0.0.0:9190'}", "listen.grpc", "needs tls"),
        ("listen: {grpc: 'unix:p.sock'}", "listen.grpc", "starts with /"),
        ("listen: {envoy_admin: '0.0.0.0:9901'}", "listen.envoy_admin", "loopback"),
        ("listen: {https: '127.0.0.1:443'}", "listen.https", "did you mean `http`?"),
        ("tls: {cert: f.pem}", "tls.key", "missing"),
        ("admin: {hosts: ['a:80']}", "admin.hosts[0]", "without a port"),
        ("admin: {token: secret}", "admin.token", "did you mean `token_file`?"),
        ("identity: {user: {header: x}}", "identity.user", "a list, not a mapping"),
        ("identity: {user: [{head: x}]}", "identity.user[0].head", "did you mean `header`?"),
        ("identity: {user: [{header: ''}]}", "identity.user[0]", "1 to 256"),
        (
            "identity: {user: [{header: x, body: y}]}",
            "identity.user[0]",
            "one of header, body, metadata, model",
        ),
        ("identity: {user: [x-user]}", "identity.user[0]", "header or body or metadata or model"),
        (
            "identity: {priority: [{model: {'*': urgent}}]}",
            "identity.priority[0].model.*",
            "critical, default or sheddable",
        ),
        ("identity: {strict: [{model: {'*': 16}}]}", "identity.strict[0].model.*", "0 to 15"),
        ("identity: {jump: [{model: {'*': 3601}}]}", "identity.jump[0].model.*", "0 to 3600"),
        (
            "identity: {objectives: {gold: urgent}}",
            "identity.objectives.gold",
            "critical or default or sheddable",
        ),
        (
            "identity: {max_priority: {default: top}}",
            "identity.max_priority.default",
            "critical or default or sheddable",
        ),
        (
            "identity: {max_priority: {acme: critical}}",
            "identity.max_priority.acme",
            "known: default, tenants",
        ),
        ("identity: {trust: some}", "identity.trust", "all, none, or a list of networks"),
        ("identity: {trust: [10.0.0.0/33]}", "identity.trust[0]", "a network like 10.0.0.0/8"),
        ("shutdown: {queued: keep}", "shutdown.queued", "reject or hand_over"),
        ("shutdown: {drain: 0s}", "shutdown.drain", "above zero"),
        ("startup_wait: 0s", "startup_wait", "above zero"),
        ("limits: {flows: 0}", "limits.flows", "from 1 to 100000"),
        ("limits: {flows: 100001}", "limits.flows", "from 1 to 100000"),
        ("limits: {body_bytes: 0}", "limits.body_bytes", "at least 1"),
        ("limits: {body_bytes: 32MB or so}", "limits.body_bytes", "a size like 256MiB"),
        ("metrics: {flows: 0}", "metrics.flows", "at least 1"),
        ("metrics: {aliases: [prometheus]}", "metrics.aliases[0]", "must be nexus, not `prometheus`"),
        ("metrics: {aliases: [nexus, nexus]}", "metrics.aliases[1]", "once"),
        ("pool: []", "pool", "did you mean `pools`?"),
        ("colour: red", "colour", "known: listen, tls, replicas, admin"),
    ] {
        assert_error(&format!("# one\n{written}\n{SMALL}"), 2, key, word);
    }
}

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
