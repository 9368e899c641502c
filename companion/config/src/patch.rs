//! Changes of a document: a JSON merge patch (RFC 7396), except that pools are merged by name.
//!
//! A list of pools in a patch changes or adds the pools that it names, and no other pool. A mapping from names to patches
//! does the same. `null` under a pool's name removes the pool. In a list, `endpoints: null` as the only key besides the name
//! does, because a pool without endpoints isn't valid.

use serde_json::{Map, Value, json};

/// Changes `document` by `patch`.
pub(super) fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *document = patch.clone();
        return;
    };
    let mut patch = patch.clone();
    let pools = match patch.get("pools") {
        Some(Value::Array(list)) => list.iter().map(pool_patch).collect(),
        Some(Value::Object(map)) => {
            Some(map.iter().map(|(name, patch)| (name.clone(), patch.clone())).collect())
        }
        _ => None,
    };
    // A value of another form replaces the list, so that the check of the result reports it.
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
        let index = list.iter().position(|pool| pool["name"] == name.as_str());
        match (index, &patch) {
            (Some(index), Value::Null) => {
                list.remove(index);
            }
            (None, Value::Null) => {}
            (Some(index), patch) => {
                if let Some(pool) = list.get_mut(index) {
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

/// The name and the patch of a pool in a list; a patch that removes the pool is null.
fn pool_patch(pool: &Value) -> Option<(String, Value)> {
    let map: &Map<String, Value> = pool.as_object()?;
    let name = map.get("name")?.as_str()?.to_owned();
    let is_removed = map.len() == 2 && map.get("endpoints") == Some(&Value::Null);
    Some((name, if is_removed { Value::Null } else { pool.clone() }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::Document;

    const TWO: &str = "pools:\n- {name: a, endpoints: {static: ['127.0.0.1:1']}, queue: {ttl: 5s}}\n- {name: b, models: [x], endpoints: {static: ['127.0.0.1:2']}}\n";

    fn names(document: &Document) -> Vec<&str> {
        document.config().pools.iter().map(|pool| pool.name.as_str()).collect()
    }

    #[test]
    fn pools_are_changed_by_name() {
        let document = Document::parse(TWO, "f.yaml").expect("valid");
        for patch in [
            json!({"pools": [{"name": "a", "queue": {"flow_capacity": 7}}], "limits": {"flows": 9}}),
            json!({"pools": {"a": {"queue": {"flow_capacity": 7}}}, "limits": {"flows": 9}}),
        ] {
            let changed = document.patched(&patch).expect("valid");
            assert_eq!(names(&changed), ["a", "b"]);
            let queue = &changed.json()["pools"][0]["queue"];
            assert_eq!((&queue["ttl"], &queue["flow_capacity"]), (&json!("5s"), &json!(7)));
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
    fn pools_are_added_and_removed() {
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
    fn a_change_of_another_key_does_not_count_as_a_decision_on_trust() {
        let document = Document::parse(TWO, "f.yaml").expect("valid");
        assert_eq!(document.json()["identity"]["trust"], "all");
        let open = json!({"listen": {"gateway": "0.0.0.0:80"}});
        let message = document.patched(&open).expect_err("trust is missing").to_string();
        assert!(message.contains("identity.trust"), "{message}");
        let trust = json!({"listen": {"gateway": "0.0.0.0:80"}, "identity": {"trust": "all"}});
        document.patched(&trust).expect("trust is given");
    }

    #[test]
    fn the_result_must_be_valid() {
        let document = Document::parse(TWO, "f.yaml").expect("valid");
        for (patch, start) in [
            (json!({"pools": [{"name": "a", "queue": {"ttl": "0s"}}]}), "patch: pools[0].queue.ttl: "),
            (json!({"pools": {"b": {"colour": "red"}}}), "patch: pools[1].colour: "),
            (json!({"pools": {"c": {}}}), "patch: pools[2].endpoints: "),
            (json!({"pools": {"a": null, "b": null}}), "patch: pools: at least one pool"),
            (json!({"pools": null}), "patch: pools: at least one pool"),
            (json!({"pools": 5}), "patch: pools: must be a list"),
            (json!({"pools": [{"queue": {}}]}), "patch: pools[0].name: "),
            (json!([]), "patch: document: must be a mapping"),
            (json!({"pools": {"a": {"name": "b"}}}), "patch: pools[1].name: `b` is the name of two pools"),
        ] {
            let message = document.patched(&patch).expect_err(&patch.to_string()).to_string();
            assert!(message.starts_with(start), "{patch}: {message}");
        }
    }
}
