//! The difference between two documents: which keys may change at run time, and a log line for each change.

use std::collections::{BTreeMap, BTreeSet};

use penstock_config::{self as config, Config, Document};
use serde_json::{Map, Value};

use super::ChangeError;
use crate::base::role::Roles;

/// Keys that can't change while the companion runs.
const FIXED: [&[&str]; 9] = [
    &["listen", "gateway"],
    &["listen", "envoy_admin"],
    &["listen", "grpc"],
    &["listen", "http"],
    &["listen", "access_log"],
    &["listen", "tls"],
    &["tls"],
    &["picker"],
    &["replicas"],
];
/// Keys with secret values.
const SECRET: [&str; 2] = ["token_file", "redis"];
/// Keys that name the members of a list.
const NAMES: [&str; 4] = ["name", "address", "model", "min_tokens"];
/// Logged lines about one change; the rest is summed up in one line.
const LINES: usize = 50;
/// Characters of a value in a log line.
const SHOWN: usize = 120;

/// The document `text`, to replace `now`. Where `text` omits a key that can't change, the present value is kept.
///
/// # Errors
/// When the document is invalid.
pub(super) fn put(now: &Document, text: &str, name: &str) -> Result<Document, config::Error> {
    let document = now.replaced(text, name)?;
    let given: Value = serde_json::from_str(text).unwrap_or_default();
    let mut omitted = Map::new();
    for path in FIXED {
        if let (None, Some(value)) = (value_at(&given, path), value_at(now.json(), path)) {
            insert(&mut omitted, path, value.clone());
        }
    }
    if omitted.is_empty() {
        return Ok(document);
    }
    document.patched(&Value::Object(omitted))
}

/// Checks that no key changes that can't. The next document may have the value in force or the value of the file at the
/// start, which differ where a flag replaces the file's value.
///
/// # Errors
/// The key, and the value that it keeps.
pub(super) fn check_fixed_keys(next: &Value, now: &Value, file: &Value) -> Result<(), String> {
    for path in FIXED {
        let [next, now, file] = [next, now, file].map(|document| value_at(document, path));
        if next != now && next != file {
            return Err(format!(
                "{}: this key can't change while the companion runs; it stays {}; restart the companion to change it",
                path.join("."),
                shown(now),
            ));
        }
    }
    let ports = |document| -> BTreeMap<String, Value> {
        let port = |pool: &Value| pool.get("picker_port").filter(|port| !port.is_null()).cloned();
        pools(document).into_iter().filter_map(|(name, pool)| Some((name, port(pool)?))).collect()
    };
    let present = ports(now);
    match ports(next).into_iter().find(|(name, port)| present.get(name) != Some(port)) {
        Some((name, _)) => Err(format!(
            "pools[{name}].picker_port: this key can't change while the companion runs; restart the companion to change it"
        )),
        None => Ok(()),
    }
}

/// Checks, where each pool has a leader of its own, that a change by HTTP concerns only pools that this companion leads. A change of
/// anything else would hold for this companion alone.
///
/// # Errors
/// The pool of another leader, or the key.
pub(super) fn check_leads(next: &Value, now: &Value, roles: &Roles) -> Result<(), ChangeError> {
    let Roles::Pools(_) = roles else {
        return Ok(());
    };
    let (next_pools, now_pools) = (pools(next), pools(now));
    let names: BTreeSet<&String> = next_pools.keys().chain(now_pools.keys()).collect();
    for name in names {
        let role = roles.of(name);
        match (next_pools.get(name), now_pools.get(name)) {
            (next, now) if next == now => {}
            (Some(_), Some(_)) if role.is_leader() => {}
            (Some(_), Some(_)) => {
                return Err(ChangeError::OtherLeader { pool: name.clone(), leader: role.leader });
            }
            (_, _) => return Err(of_every_companion(&format!("pools[{name}]"))),
        }
    }
    let rest = |document: &Value| {
        let mut rest = document.clone();
        if let Some(rest) = rest.as_object_mut() {
            rest.remove("pools");
        }
        rest
    };
    let mut changes = Vec::new();
    compare("", Some(&rest(now)), Some(&rest(next)), &mut changes);
    changes
        .first()
        .map_or(Ok(()), |change| Err(of_every_companion(change.split(':').next().unwrap_or(change))))
}

fn pools(document: &Value) -> BTreeMap<String, &Value> {
    let pools = document.get("pools").and_then(Value::as_array);
    let named = |pool: &'_ Value| pool.get("name").and_then(Value::as_str).map(str::to_owned);
    pools.into_iter().flatten().filter_map(|pool| Some((named(pool)?, pool))).collect()
}

fn of_every_companion(key: &str) -> ChangeError {
    ChangeError::Invalid(format!(
        "{key}: with replicas.per: pool, every companion leads some pools, so this key must be the same everywhere; change the \
         file of each companion"
    ))
}

/// The document as text for the file: keys that flags replace keep the file's values.
///
/// # Errors
/// When that document is invalid or can't be written as YAML.
pub(super) fn without_flags(document: &Document, file: &Value) -> Result<String, String> {
    let mut fixed = Map::new();
    for path in FIXED {
        insert(&mut fixed, path, value_at(file, path).cloned().unwrap_or_default());
    }
    let document = document.patched(&Value::Object(fixed)).map_err(|error| error.to_string())?;
    document.yaml().map_err(|error| error.to_string())
}

/// One line for each key with another value in `after`: `pools[chat].queue.ttl: 30s -> 60s`.
fn between(before: &Value, after: &Value) -> Vec<String> {
    let mut changes = Vec::new();
    compare("", Some(before), Some(after), &mut changes);
    changes
}

/// Logs the changes.
pub(super) fn log(source: &str, before: &Value, after: &Value) {
    let changes = between(before, after);
    tracing::info!(source, changes = changes.len(), "configuration changed");
    for change in changes.iter().take(LINES) {
        tracing::info!("configuration: {change}");
    }
    if let Some(more) = changes.len().checked_sub(LINES).filter(|more| *more > 0) {
        tracing::info!("configuration: {more} more changes");
    }
}

/// Warns about changes that a running Envoy doesn't take over.
pub(super) fn warn_about_envoy(before: &Config, after: &Config) {
    if after.body_bytes > before.body_bytes {
        tracing::warn!(
            "limits.body_bytes is larger than before, but a running Envoy still rejects bodies above its old limit: \
             regenerate Envoy's configuration and restart Envoy"
        );
    }
}

fn value_at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    let found = path.iter().try_fold(value, |value, key| value.get(key));
    found.filter(|value| !value.is_null())
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
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(&path, before.get(key), after.get(key), changes);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(after))) => {
            let Some((before, after)) = named(before).zip(named(after)) else {
                let (before, after) = (Value::from(before.clone()), Value::from(after.clone()));
                return changes.push(line(path, Some(&before), Some(&after)));
            };
            compare_members(path, &before, &after, changes);
        }
        (before, after) => changes.push(line(path, before, after)),
    }
}

/// Compares two lists with named members.
fn compare_members(
    path: &str,
    before: &[(String, &Value)],
    after: &[(String, &Value)],
    changes: &mut Vec<String>,
) {
    let find = |members: &[(String, &Value)], name: &str| {
        let found = members.iter().find(|member| member.0 == name);
        found.map(|member| member.1.clone())
    };
    let added = after.iter().filter(|(name, _)| !before.iter().any(|member| member.0 == *name));
    let changes_before = changes.len();
    for (name, _) in before.iter().chain(added) {
        let (before, after) = (find(before, name), find(after, name));
        compare(&format!("{path}[{name}]"), before.as_ref(), after.as_ref(), changes);
    }
    if changes.len() == changes_before {
        changes.push(format!("{path}: in another order"));
    }
}

/// The members of a list with their names, if all of them have distinct names.
fn named(list: &[Value]) -> Option<Vec<(String, &Value)>> {
    let key = NAMES.into_iter().find(|key| list.iter().all(|member| member.get(key).is_some()))?;
    let mut named: Vec<(String, &Value)> = Vec::with_capacity(list.len());
    for member in list {
        let name = match member.get(key)? {
            Value::String(name) => name.clone(),
            other => other.to_string(),
        };
        if named.iter().any(|member| member.0 == name) {
            return None;
        }
        named.push((name, member));
    }
    Some(named)
}

fn line(path: &str, before: Option<&Value>, after: Option<&Value>) -> String {
    if SECRET.iter().any(|key| path.ends_with(key)) {
        return format!("{path}: changed");
    }
    match (before, after) {
        (None, after) => format!("{path}: {} added", shown(after)),
        (before, None) => format!("{path}: {} removed", shown(before)),
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
    fn changes_are_listed_by_key_path_and_member_name() {
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
            r#"pools[old]: {"name":"old","models":[]} removed"#,
            r#"pools[new]: {"name":"new"} added"#,
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
    fn addresses_certificates_and_replicas_cannot_change() {
        let replicas = json!({"duration": "3s"});
        let now = json!({"listen": {"grpc": "127.0.0.1:2", "http": "127.0.0.1:3"}, "replicas": replicas});
        let first = json!({"listen": {"grpc": "127.0.0.1:1", "http": "127.0.0.1:3"}, "tls": null, "replicas": replicas});
        for same in [&now, &first] {
            assert_eq!(check_fixed_keys(same, &now, &first), Ok(()));
        }
        let wrong = [
            (json!({"listen": {"grpc": "127.0.0.1:9", "http": "127.0.0.1:3"}}), "listen.grpc: "),
            (json!({"listen": {"grpc": "127.0.0.1:1"}}), "listen.http: "),
            (json!({"listen": first["listen"], "tls": {"cert": "a"}}), "tls: "),
            (json!({"listen": first["listen"], "replicas": {"duration": "9s"}}), "replicas: "),
        ];
        for (next, key) in wrong {
            let why = check_fixed_keys(&next, &now, &first).expect_err(key);
            assert!(why.starts_with(key) && why.contains("restart"), "{why}");
        }
    }

    #[test]
    fn a_replacing_document_may_omit_fixed_keys() {
        let pools = "pools: [{name: a, endpoints: {static: ['127.0.0.1:1']}}]";
        let replicas = "replicas: {companions: ['127.0.0.1:9190'], lease: {file: /run/lease}}";
        let now = format!("listen: {{http: '127.0.0.1:7'}}\n{replicas}\n{pools}");
        let now = Document::parse(&now, "f").expect("valid");
        let next = r#"{"pools": [{"name": "b", "endpoints": {"static": ["127.0.0.1:1"]}}]}"#;
        let next = put(&now, next, "body").expect("valid");
        assert_eq!(next.config().listen.http.to_string(), "127.0.0.1:7");
        assert_eq!(next.config().pools[0].name, "b");
        assert_eq!(next.config().replicas, now.config().replicas);
        let wrong = put(&now, "{\n\"pools\": []}", "body").expect_err("no pool");
        assert!(wrong.to_string().starts_with("body:2: pools: "), "{wrong}");
    }

    #[test]
    fn the_saved_file_keeps_values_that_flags_replace() {
        let pools = "pools: [{name: a, endpoints: {static: ['127.0.0.1:1']}}]";
        let first =
            Document::parse(&format!("listen: {{http: '127.0.0.1:7'}}\n{pools}"), "f").expect("valid");
        let now =
            first.patched(&json!({"listen": {"http": "127.0.0.1:8"}, "startup_wait": "3s"})).expect("valid");
        let text = without_flags(&now, first.json()).expect("a text");
        let again = Document::parse(&text, "f").expect("valid");
        assert_eq!(again.config().listen.http.to_string(), "127.0.0.1:7");
        assert_eq!(again.config().startup_wait.as_secs(), 3);
    }
}
