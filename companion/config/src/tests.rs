//! The configuration as a whole, in documents that are right and in documents that are wrong.

mod check;
mod schema;
mod wrong_documents;
mod wrong_pools;

use penstock_engine::policy as engine;
use penstock_engine::units::Decimal;

use super::{Config, endpoints};

/// A pool that is right, in three lines; what is wrong follows from the fourth on.
const POOL: &str = "pools:\n- name: a\n  endpoints: {static: ['127.0.0.1:8001']}\n";
const SMALL: &str = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]";

/// What is said of a text that is wrong.
fn said(text: &str) -> String {
    Config::parse(text, "f.yaml").expect_err("refused").to_string()
}

/// `text` is refused at `line` for `key`, and `word` is in what is said.
fn refused(text: &str, line: u64, key: &str, word: &str) {
    let said = match Config::parse(text, "f.yaml") {
        Ok(_) => panic!("this is taken:\n{text}"),
        Err(why) => why.to_string(),
    };
    let place = format!("f.yaml:{line}: {key}: ");
    assert!(said.starts_with(&place), "{place}is wanted, not {said}\n{text}");
    assert!(said.contains(word), "`{word}` is wanted in {said}\n{text}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn name_and_endpoints_are_enough() {
    let config = Config::parse(SMALL, "f.yaml").expect("valid");
    assert_eq!(config.listen.gateway.port(), 8080);
    assert_eq!(config.body_bytes, 32 << 20);
    let engine::Gate::Bounded {
        unit: _,
        lower,
        upper,
        watermark,
    } = config.pools[0].policy.gate
    else {
        panic!("a gate is the default");
    };
    assert_eq!(
        (lower.billionths(), upper.billionths()),
        (1_800_000_000, 2_200_000_000)
    );
    assert_eq!(watermark, Decimal::whole(2));
}

#[test]
fn errors_name_line_and_path() {
    let wrong = "pools:\n- name: a\n  endpoints: {static: ['127.0.0.1:8001']}\n  queue:\n    ttl: soon\n";
    let message = said(wrong);
    assert!(message.starts_with("f.yaml:5: pools[0].queue.ttl: "), "{message}");
    assert!(message.contains("30s"), "{message}");
    let message = said(&SMALL.replace("name: a,", "name: a, colour: red,"));
    assert!(
        message.contains("f.yaml:1: pools[0]") && message.contains("colour"),
        "{message}"
    );
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let stock = |it: &str| said(&SMALL.replace("name: a,", &format!("name: a, stock: {{{it}}},")));
    assert!(stock("deviation: 1").contains("pools[0].stock.deviation"));
    assert!(stock("watermark_per_backend: 0").contains("at least 1"));
    assert!(stock("lower_bound_per_backend: 5").contains("pools[0].stock.lower_bound_per_backend: 0 <="));
    assert!(said("pools: []").contains("at least one pool"));
    assert!(said("listen: {gateway: 0.0.0.0:80}\n").contains("pools"));
    let twice = SMALL.replace(
        "['127.0.0.1:8001']",
        "['127.0.0.1:8001', {address: '127.0.0.1:8001'}]",
    );
    assert!(said(&twice).contains("listed twice"));
    let two = "pools: [{name: a, endpoints: {static: ['127.0.0.1:1']}}, {name: a, endpoints: {static: ['127.0.0.1:2']}}]";
    assert!(said(two).contains("pools[1].name"));
}

#[test]
fn a_list_of_endpoints_stands_in_a_file_by_itself() {
    let list = "- 127.0.0.1:1\n- {address: '127.0.0.1:2', weight: 3}\n";
    assert_eq!(endpoints(list, "e.yaml").expect("valid").len(), 2);
    for nothing in ["", "[]", "# none\n"] {
        assert!(endpoints(nothing, "e.yaml").expect("valid").is_empty());
    }
    for (wrong, said) in [
        ("- 127.0.0.1:1\n- {adress: x}\n", "e.yaml:2: [1].adress: "),
        (
            "- 127.0.0.1:1\n- nowhere\n",
            "e.yaml:2: [1]: `nowhere` is no address",
        ),
        ("static: []\n", "e.yaml:1: document: this is a list"),
    ] {
        let why = endpoints(wrong, "e.yaml").expect_err(wrong).to_string();
        assert!(why.starts_with(said), "{why}");
    }
}
