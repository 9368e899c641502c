//! Tests of the configuration as a whole, with valid and with wrong documents.

mod check;
mod replicas;
mod schema;
#[cfg(all(feature = "etcd", feature = "kubernetes", feature = "redb", feature = "redis", feature = "tls"))]
mod wrong;
mod wrong_documents;

use penstock_engine::policy as engine;
use penstock_engine::units::Decimal;

use super::{Config, Document, EndpointDefaults, Queued, parse_endpoints};

/// A valid pool in three lines. Tests add wrong keys from the fourth line on.
const POOL: &str = "pools:\n- name: a\n  endpoints: {static: ['127.0.0.1:8001']}\n";
const SMALL: &str = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]";

/// Checks that `text` has an error at `line` for `key`, and that its message contains `word`.
fn assert_error(text: &str, line: u64, key: &str, word: &str) {
    let message = match Config::parse(text, "f.yaml") {
        Ok(_) => panic!("this is valid:\n{text}"),
        Err(error) => error.to_string(),
    };
    let place = format!("f.yaml:{line}: {key}: ");
    assert!(message.starts_with(&place), "expected {place}, got {message}\n{text}");
    assert!(message.contains(word), "expected `{word}` in {message}\n{text}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn a_name_and_endpoints_are_enough() {
    let config = Config::parse(SMALL, "f.yaml").expect("valid");
    assert_eq!(config.listen.gateway.port(), 8080);
    assert_eq!(config.body_bytes, 32 << 20);
    let engine::Gate::Bounded { unit: _, lower, upper, watermark } = config.pools[0].policy.gate else {
        panic!("a gate is the default");
    };
    assert_eq!((lower.billionths(), upper.billionths()), (1_800_000_000, 2_200_000_000));
    assert_eq!(watermark, Decimal::whole(2));
}

#[test]
fn a_list_of_endpoints_may_be_a_file() {
    let list = "- 127.0.0.1:1\n- {address: '127.0.0.1:2', weight: 3}\n";
    assert_eq!(parse_endpoints(list, "e.yaml", &EndpointDefaults::default(), false).expect("valid").len(), 2);
    for empty in ["", "[]", "# none\n"] {
        assert!(
            parse_endpoints(empty, "e.yaml", &EndpointDefaults::default(), false).expect("valid").is_empty()
        );
    }
    for (wrong, start) in [
        ("- 127.0.0.1:1\n- {adress: x}\n", "e.yaml:2: [1].adress: "),
        ("- 127.0.0.1:1\n- nowhere\n", "e.yaml:2: [1]: `nowhere` is not an address"),
        ("static: []\n", "e.yaml:1: document: must be a list"),
    ] {
        let message = parse_endpoints(wrong, "e.yaml", &EndpointDefaults::default(), false)
            .expect_err(wrong)
            .to_string();
        assert!(message.starts_with(start), "{message}");
    }
}

#[test]
fn a_picker_hands_its_requests_over_unless_the_document_says_otherwise() {
    let picker = "picker: {listen: '127.0.0.1:9002'}\n";
    for (head, expected) in [
        ("", Queued::Reject),
        ("shutdown: {queued: hand_over}\n", Queued::HandOver),
        (picker, Queued::HandOver),
        (&format!("{picker}shutdown: {{drain: 9s}}\n"), Queued::HandOver),
        (&format!("{picker}shutdown: {{queued: reject}}\n"), Queued::Reject),
    ] {
        let text = format!("{head}{SMALL}");
        let config = Config::parse(&text, "f.yaml").unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.queued, expected, "{text}");
        let document = Document::parse(&text, "f.yaml").expect("valid");
        let shown = document.json()["shutdown"]["queued"].clone();
        assert_eq!(shown == "hand_over", expected == Queued::HandOver, "{text}");
    }
}
