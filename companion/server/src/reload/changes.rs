//! From one document to the next: what may change, and what did, key by key.

use penstock_config::{self as config, Config, Document};
use serde_json::{Map, Value};

/// What is settled when the companion starts.
const FIXED: [&[&str]; 5] = [
    &["listen", "gateway"],
    &["listen", "envoy_admin"],
    &["listen", "grpc"],
    &["listen", "http"],
    &["tls"],
];
/// Keys whose values are nobody's business.
const SECRET: [&str; 2] = ["token_file", "redis"];
/// Lists whose members have names, and by which key.
const NAMES: [&str; 4] = ["name", "address", "model", "min_tokens"];
/// Lines about one change; more is said as a number.
const LINES: usize = 50;
/// Characters of a value in a line.
const SHOWN: usize = 120;

/// The document that `text` is, in place of `now`. What can't change needn't be said.
///
/// # Errors
/// When it isn't allowed.
pub(super) fn put(now: &Document, text: &str, name: &str) -> Result<Document, config::Error> {
    let document = now.replaced(text, name)?;
    let said: Value = serde_json::from_str(text).unwrap_or_default();
    let mut unsaid = Map::new();
    for path in FIXED {
        if let (None, Some(value)) = (at(&said, path), at(now.json(), path)) {
            insert(&mut unsaid, path, value.clone());
        }
    }
    if unsaid.is_empty() {
        return Ok(document);
    }
    document.patched(&Value::Object(unsaid))
}

/// Whether nothing is changed that can't be: flags may say something else than the file, and either may be said again.
///
/// # Errors
/// The key, and why.
pub(super) fn are_possible(next: &Value, now: &Value, first: &Value) -> Result<(), String> {
    for path in FIXED {
        let [next, now, first] = [next, now, first].map(|it| at(it, path));
        if next != now && next != first {
            return Err(format!(
                "{}: this can't change while the companion runs: it stays {}; restart it to change that",
                path.join("."),
                shown(now),
            ));
        }
    }
    Ok(())
}

/// The document as a file's text, with what the file says where flags say otherwise.
///
/// # Errors
/// When that is no document, or has no text.
pub(super) fn without_flags(document: &Document, first: &Value) -> Result<String, String> {
    let mut file = Map::new();
    for path in FIXED {
        insert(&mut file, path, at(first, path).cloned().unwrap_or_default());
    }
    let document = document
        .patched(&Value::Object(file))
        .map_err(|it| it.to_string())?;
    document.yaml().map_err(|it| it.to_string())
}

/// What is another value in `after`, a line each: `pools[chat].queue.ttl: 30s -> 60s`.
fn between(before: &Value, after: &Value) -> Vec<String> {
    let mut changes = Vec::new();
    compare("", Some(before), Some(after), &mut changes);
    changes
}

/// Says what has changed.
pub(super) fn log(source: &str, before: &Value, after: &Value) {
    let changes = between(before, after);
    tracing::info!(source, changes = changes.len(), "the configuration has changed");
    for change in changes.iter().take(LINES) {
        tracing::info!("configuration: {change}");
    }
    if let Some(more) = changes.len().checked_sub(LINES).filter(|it| *it > 0) {
        tracing::info!("configuration: {more} more changes");
    }
}

/// What Envoy was told when it started, and isn't told again.
pub(super) fn warn(before: &Config, after: &Config) {
    if after.body_bytes > before.body_bytes {
        tracing::warn!(
            "limits.body_bytes is larger than before: an Envoy whose configuration was made for less still refuses what is \
             above that; make it again and restart Envoy"
        );
    }
}

fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let found = path.iter().try_fold(value, |value, key| value.get(key));
    found.filter(|it| !it.is_null())
}

fn insert(into: &mut Map<String, Value>, path: &[&str], value: Value) {
    match path {
        [] => {}
        [key] => {
            into.insert((*key).to_owned(), value);
        }
        [key, rest @ ..] => {
            let inner = into.entry(*key).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

fn compare(path: &str, before: Option<&Value>, after: Option<&Value>, changes: &mut Vec<String>) {
    if before == after {
        return;
    }
    match (before, after) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let added = after.keys().filter(|key| !before.contains_key(*key));
            for key in before.keys().chain(added) {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                compare(&path, before.get(key), after.get(key), changes);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            let by_name = named(before).zip(named(after));
            let Some((before_names, after_names)) = by_name else {
                return changes.push(line(
                    path,
                    Some(&before.clone().into()),
                    Some(&after.clone().into()),
                ));
            };
            let known = |it: &&(String, &Value)| !before_names.iter().any(|(name, _)| *name == it.0);
            let of = |all: &[(String, &Value)], name: &str| {
                all.iter().find(|it| it.0 == name).map(|it| it.1.clone())
            };
            let at = changes.len();
            for (name, _) in before_names.iter().chain(after_names.iter().filter(known)) {
                let (before, after) = (of(&before_names, name), of(&after_names, name));
                compare(
                    &format!("{path}[{name}]"),
                    before.as_ref(),
                    after.as_ref(),
                    changes,
                );
            }
            if changes.len() == at {
                changes.push(format!("{path}: in another order"));
            }
        }
        (before, after) => changes.push(line(path, before, after)),
    }
}

/// The members of a list by their names, if they all have distinct ones.
fn named(list: &[Value]) -> Option<Vec<(String, &Value)>> {
    let key = NAMES
        .into_iter()
        .find(|key| list.iter().all(|it| it.get(key).is_some()))?;
    let mut named: Vec<(String, &Value)> = Vec::with_capacity(list.len());
    for member in list {
        let name = match member.get(key)? {
            Value::String(name) => name.clone(),
            other => other.to_string(),
        };
        if named.iter().any(|it| it.0 == name) {
            return None;
        }
        named.push((name, member));
    }
    Some(named)
}

fn line(path: &str, before: Option<&Value>, after: Option<&Value>) -> String {
    if SECRET.iter().any(|it| path.ends_with(it)) {
        return format!("{path}: changed");
    }
    match (before, after) {
        (None, after) => format!("{path}: {} is new", shown(after)),
        (before, None) => format!("{path}: {} is gone", shown(before)),
        (before, after) => format!("{path}: {} -> {}", shown(before), shown(after)),
    }
}

fn shown(value: Option<&Value>) -> String {
    let text = match value {
        None | Some(Value::Null) => "null".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    if text.chars().count() <= SHOWN {
        return text;
    }
    text.chars().take(SHOWN).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_told_by_the_keys_path_and_by_names() {
        let before = json!({
            "admin": {"token_file": "/a"},
            "pools": [
                {"name": "chat", "queue": {"ttl": "30s"}, "endpoints": {"static": [{"address": "127.0.0.1:1", "weight": 1}]}},
                {"name": "old", "models": []},
            ],
            "identity": {"strict": [], "user": [{"header": "a"}, {"body": "user"}]},
        });
        let after = json!({
            "admin": {"token_file": "/b"},
            "pools": [
                {"name": "new"},
                {"name": "chat", "queue": {"ttl": "60s"}, "endpoints": {"static": [{"address": "127.0.0.1:1", "weight": 2}]}},
            ],
            "identity": {"strict": [{"header": "s"}], "user": [{"body": "user"}]},
        });
        assert_eq!(between(&before, &before), Vec::<String>::new());
        let expected = [
            "admin.token_file: changed",
            r#"identity.strict: [] -> [{"header":"s"}]"#,
            r#"identity.user: [{"header":"a"},{"body":"user"}] -> [{"body":"user"}]"#,
            "pools[chat].endpoints.static[127.0.0.1:1].weight: 1 -> 2",
            "pools[chat].queue.ttl: 30s -> 60s",
            r#"pools[old]: {"name":"old","models":[]} is gone"#,
            r#"pools[new]: {"name":"new"} is new"#,
        ];
        let mut seen = between(&before, &after);
        seen.sort();
        let mut expected = expected.map(str::to_owned).to_vec();
        expected.sort();
        assert_eq!(seen, expected);
        let turned = json!({"pools": [{"name": "b"}, {"name": "a"}]});
        let straight = json!({"pools": [{"name": "a"}, {"name": "b"}]});
        assert_eq!(between(&straight, &turned), ["pools: in another order"]);
        let long = between(&json!({"models": "a"}), &json!({"models": "b".repeat(500)}));
        assert_eq!(long[0].len(), "models: a -> ".len() + SHOWN + 3);
    }

    #[test]
    fn addresses_and_certificates_stay() {
        let now = json!({"listen": {"grpc": "127.0.0.1:2", "http": "127.0.0.1:3"}});
        let first = json!({"listen": {"grpc": "127.0.0.1:1", "http": "127.0.0.1:3"}, "tls": null});
        for same in [&now, &first] {
            assert_eq!(are_possible(same, &now, &first), Ok(()));
        }
        let wrong = [
            (
                json!({"listen": {"grpc": "127.0.0.1:9", "http": "127.0.0.1:3"}}),
                "listen.grpc: ",
            ),
            (json!({"listen": {"grpc": "127.0.0.1:1"}}), "listen.http: "),
            (json!({"listen": first["listen"], "tls": {"cert": "a"}}), "tls: "),
        ];
        for (next, key) in wrong {
            let why = are_possible(&next, &now, &first).expect_err(key);
            assert!(why.starts_with(key) && why.contains("restart"), "{why}");
        }
    }

    #[test]
    fn what_cannot_change_need_not_be_said() {
        let pools = "pools: [{name: a, endpoints: {static: ['127.0.0.1:1']}}]";
        let now = Document::parse(&format!("listen: {{http: '127.0.0.1:7'}}\n{pools}"), "f").expect("valid");
        let next = r#"{"pools": [{"name": "b", "endpoints": {"static": ["127.0.0.1:1"]}}]}"#;
        let next = put(&now, next, "body").expect("valid");
        assert_eq!(next.config().listen.http.to_string(), "127.0.0.1:7");
        assert_eq!(next.config().pools[0].name, "b");
        let wrong = put(&now, "{\n\"pools\": []}", "body").expect_err("no pool");
        assert!(wrong.to_string().starts_with("body:2: pools: "), "{wrong}");
    }

    #[test]
    fn a_file_says_what_it_said_where_flags_say_otherwise() {
        let pools = "pools: [{name: a, endpoints: {static: ['127.0.0.1:1']}}]";
        let first =
            Document::parse(&format!("listen: {{http: '127.0.0.1:7'}}\n{pools}"), "f").expect("valid");
        let now = first
            .patched(&json!({"listen": {"http": "127.0.0.1:8"}, "startup_wait": "3s"}))
            .expect("valid");
        let text = without_flags(&now, first.json()).expect("a text");
        let again = Document::parse(&text, "f").expect("valid");
        assert_eq!(again.config().listen.http.to_string(), "127.0.0.1:7");
        assert_eq!(again.config().startup_wait.as_secs(), 3);
    }
}
