//! What a change says: a JSON merge patch (RFC 7396), but for `pools`, which are told apart by their names.
//!
//! A list of pools in a patch says what becomes of these, not which there are; a mapping from names to patches says the
//! same. `null` under a pool's name takes it out; in a list, `endpoints: null` beside its name does, for there is no pool
//! without endpoints.

use serde_json::{Map, Value, json};

/// `document` changed by `patch`.
pub(super) fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *document = patch.clone();
        return;
    };
    let mut patch = patch.clone();
    let pools = match patch.get("pools") {
        Some(Value::Array(list)) => list.iter().map(named).collect(),
        Some(Value::Object(map)) => Some(
            map.iter()
                .map(|(name, patch)| (name.clone(), patch.clone()))
                .collect(),
        ),
        _ => None,
    };
    // What isn't one of both forms replaces the list; what comes of it says what is wrong.
    let pools: Vec<(String, Value)> = match pools {
        Some(pools) => {
            patch.shift_remove("pools");
            pools
        }
        None => Vec::new(),
    };
    json_patch::merge(document, &Value::Object(patch));
    if pools.is_empty() {
        return;
    }
    let Some(Value::Array(list)) = document.get_mut("pools") else {
        return;
    };
    for (name, patch) in pools {
        let known = list.iter().position(|pool| pool["name"] == name.as_str());
        match (known, &patch) {
            (Some(at), Value::Null) => {
                list.remove(at);
            }
            (None, Value::Null) => {}
            (Some(at), patch) => {
                if let Some(pool) = list.get_mut(at) {
                    json_patch::merge(pool, patch);
                }
            }
            (None, patch) => {
                let mut pool = json!({"name": name});
                json_patch::merge(&mut pool, patch);
                list.push(pool);
            }
        }
    }
}

/// A pool of a list: its name, and what is said of it.
fn named(pool: &Value) -> Option<(String, Value)> {
    let map: &Map<String, Value> = pool.as_object()?;
    let name = map.get("name")?.as_str()?.to_owned();
    let gone = map.len() == 2 && map.get("endpoints") == Some(&Value::Null);
    Some((name, if gone { Value::Null } else { pool.clone() }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Document;

    const TWO: &str = "pools:\n- {name: a, endpoints: {static: ['127.0.0.1:1']}, queue: {ttl: 5s}}\n- {name: b, models: [x], endpoints: {static: ['127.0.0.1:2']}}\n";

    fn names(document: &Document) -> Vec<&str> {
        document
            .config()
            .pools
            .iter()
            .map(|it| it.name.as_str())
            .collect()
    }

    #[test]
    fn pools_are_changed_by_their_names() {
        let document = Document::parse(TWO, "f.yaml").expect("valid");
        for patch in [
            json!({"pools": [{"name": "a", "queue": {"flow_capacity": 7}}], "limits": {"flows": 9}}),
            json!({"pools": {"a": {"queue": {"flow_capacity": 7}}}, "limits": {"flows": 9}}),
        ] {
            let changed = document.patched(&patch).expect("valid");
            assert_eq!(names(&changed), ["a", "b"]);
            let queue = &changed.json()["pools"][0]["queue"];
            assert_eq!(
                (&queue["ttl"], &queue["flow_capacity"]),
                (&json!("5s"), &json!(7))
            );
            assert_eq!(changed.json()["limits"]["flows"], 9);
            assert_eq!(changed.json()["limits"]["body_bytes"], "32MiB");
            assert_ne!(changed.digest(), document.digest());
        }
        let reset = json!({"pools": [{"name": "a", "queue": {"ttl": null}}]});
        let reset = document.patched(&reset).expect("valid");
        assert_eq!(reset.json()["pools"][0]["queue"]["ttl"], "30s");
        let nothing = document.patched(&json!({})).expect("valid");
        assert_eq!(nothing.digest(), document.digest());
    }

    #[test]
    fn pools_come_and_go() {
        let document = Document::parse(TWO, "f.yaml").expect("valid");
        let come = json!({"pools": [{"name": "c", "endpoints": {"static": ["127.0.0.1:3"]}}]});
        assert_eq!(names(&document.patched(&come).expect("valid")), ["a", "b", "c"]);
        for gone in [
            json!({"pools": {"a": null}}),
            json!({"pools": [{"name": "a", "endpoints": null}]}),
            json!({"pools": {"a": null, "never": null}}),
        ] {
            assert_eq!(names(&document.patched(&gone).expect("valid")), ["b"]);
        }
        let kept = json!({"pools": [{"name": "b", "models": null}]});
        assert_eq!(names(&document.patched(&kept).expect("valid")), ["a", "b"]);
    }

    #[test]
    fn a_change_of_something_else_does_not_say_whose_claims_count() {
        let document = Document::parse(TWO, "f.yaml").expect("valid");
        assert_eq!(document.json()["identity"]["trust"], "all");
        let open = json!({"listen": {"gateway": "0.0.0.0:80"}});
        let why = document.patched(&open).expect_err("nobody said it").to_string();
        assert!(why.contains("identity.trust"), "{why}");
        let trust = json!({"listen": {"gateway": "0.0.0.0:80"}, "identity": {"trust": "all"}});
        document.patched(&trust).expect("somebody said it");
    }

    #[test]
    fn what_comes_of_it_must_be_valid() {
        let document = Document::parse(TWO, "f.yaml").expect("valid");
        for (patch, said) in [
            (
                json!({"pools": [{"name": "a", "queue": {"ttl": "0s"}}]}),
                "patch: pools[0].queue.ttl: ",
            ),
            (
                json!({"pools": {"b": {"colour": "red"}}}),
                "patch: pools[1].colour: ",
            ),
            (json!({"pools": {"c": {}}}), "patch: pools[2].endpoints: "),
            (
                json!({"pools": {"a": null, "b": null}}),
                "patch: pools: at least one pool",
            ),
            (json!({"pools": null}), "patch: pools: at least one pool"),
            (json!({"pools": 5}), "patch: pools: this is a list"),
            (json!({"pools": [{"queue": {}}]}), "patch: pools[0].name: "),
            (json!([]), "patch: document: this is a mapping"),
            (
                json!({"pools": {"a": {"name": "b"}}}),
                "patch: pools[1].name: `b` is the name of two pools",
            ),
        ] {
            let why = document
                .patched(&patch)
                .expect_err(&patch.to_string())
                .to_string();
            assert!(why.starts_with(said), "{patch}: {why}");
        }
    }
}
