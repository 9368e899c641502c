//! The InferenceModelRewrites of an InferencePool: rules that replace the model of a request.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use penstock_config::Rewrite;
use penstock_wire::limits::NAME_BYTES_MAX;
use serde::Deserialize;
use serde_json::Value;

use super::pool_objects::{Kind, PoolRef};

/// Rewrites, kept as the rules of each object.
pub(super) static KIND: Kind<Rules> =
    Kind { name: "InferenceModelRewrite", plural: "inferencemodelrewrites", key: "rewrites", read };

/// The most rules of an object, and the most models that they name.
const RULES_MAX: usize = 1_024;
/// The most targets of a rule.
const TARGETS_MAX: usize = 64;
/// The glob of a rule without matches.
const EVERY_MODEL: &str = "*";

/// The rules of one object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rules {
    created: Option<Time>,
    /// In the order of the object. A rule for several models is there once for each of them.
    rules: Vec<Rewrite>,
    /// The rules that aren't applied, and why.
    problems: Vec<String>,
}

/// The rules of all objects in the order in which they count: rules for one model before rules for every model, and among these the
/// rules of older objects first, each object's in its own order.
pub(super) fn ordered(objects: BTreeMap<String, Rules>) -> Vec<Rewrite> {
    let mut objects: Vec<Rules> = objects.into_values().collect();
    // Stable: objects of the same second stay in the order of their names.
    objects.sort_by_cached_key(|object| object.created.clone());
    let mut rules: Vec<Rewrite> = objects.into_iter().flat_map(|object| object.rules).collect();
    rules.sort_by_key(|rule| rule.model == EVERY_MODEL);
    // A further rule for the same model would never be reached.
    let mut seen = BTreeSet::new();
    rules.retain(|rule| seen.insert(rule.model.clone()));
    rules
}

#[derive(Deserialize)]
struct Object {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    pool_ref: PoolRef,
    #[serde(default)]
    rules: Vec<Value>,
}

/// A key that isn't known here may narrow what the rule matches, so such a rule is not applied.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    #[serde(default)]
    matches: Vec<Match>,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Match {
    model: Option<ModelMatch>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelMatch {
    #[serde(rename = "type")]
    kind: Option<String>,
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Target {
    model_rewrite: String,
    weight: Option<u32>,
}

/// Logs the rules that aren't applied, unless they were the same before.
fn read(object: &DynamicObject, pool: &str, before: Option<&Rules>) -> Option<Rules> {
    let created = object.metadata.creation_timestamp.clone();
    let found =
        rules(&object.data, pool, created).filter(|_| object.metadata.deletion_timestamp.is_none())?;
    if before.is_none_or(|before| before.problems != found.problems) {
        for problem in &found.problems {
            tracing::warn!(
                inference_pool = pool,
                "InferenceModelRewrite {}: {problem}; not applied",
                object.name_any()
            );
        }
    }
    Some(found)
}

/// The rules of an object with this content; `None`: it belongs to another pool, or has no form that is known.
fn rules(data: &Value, pool: &str, created: Option<Time>) -> Option<Rules> {
    let Object { spec } = Object::deserialize(data).ok()?;
    if spec.pool_ref.name != pool {
        return None;
    }
    let mut found = Rules { created, rules: Vec::new(), problems: Vec::new() };
    for (index, rule) in spec.rules.iter().enumerate() {
        if index.max(found.rules.len()) >= RULES_MAX {
            let most = format!("an object has at most {RULES_MAX} rules and models");
            found.problems.push(format!("rules[{index}] and those after it: {most}"));
            break;
        }
        match rewrites(rule) {
            Ok(rewrites) => found.rules.extend(rewrites),
            Err(why) => found.problems.push(format!("rules[{index}]: {why}")),
        }
    }
    Some(found)
}

/// A rule, once for each model that it matches.
fn rewrites(rule: &Value) -> Result<Vec<Rewrite>, String> {
    let Rule { matches, targets } = Rule::deserialize(rule).map_err(|why| why.to_string())?;
    if matches.len() > RULES_MAX {
        return Err(format!("a rule has at most {RULES_MAX} matches, not {}", matches.len()));
    }
    let models = if matches.is_empty() {
        vec![EVERY_MODEL.to_owned()]
    } else {
        matches.into_iter().map(model).collect::<Result<_, _>>()?
    };
    let targets = weighted(targets)?;
    Ok(models.into_iter().map(|model| Rewrite { model, targets: targets.clone() }).collect())
}

/// The model that a match names.
fn model(found: Match) -> Result<String, String> {
    let ModelMatch { kind, value } = found.model.ok_or("a match names no model")?;
    if let Some(kind) = kind.filter(|kind| kind != "Exact") {
        return Err(format!("the match type {kind} is not known; only Exact is"));
    }
    if value.contains(['*', '?']) {
        return Err(format!("the model `{value}` has a wildcard, and can't be matched exactly"));
    }
    checked(value)
}

/// The targets with their weights. Targets without a weight share evenly if none has one, and get nothing if another one has.
fn weighted(targets: Vec<Target>) -> Result<Vec<(String, f64)>, String> {
    if targets.is_empty() || targets.len() > TARGETS_MAX {
        return Err(format!("a rule has 1 to {TARGETS_MAX} targets, not {}", targets.len()));
    }
    let has_weights = targets.iter().any(|target| target.weight.unwrap_or_default() > 0);
    let weight = |target: &Target| if has_weights { target.weight.unwrap_or_default() } else { 1 };
    let targets = targets.into_iter().filter(|target| weight(target) > 0);
    targets
        .map(|target| {
            let weight = f64::from(weight(&target));
            Ok((checked(target.model_rewrite)?, weight))
        })
        .collect()
}

fn checked(name: String) -> Result<String, String> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        Ok(name)
    } else {
        Err(format!("a model's name has 1 to {NAME_BYTES_MAX} bytes, not {}", name.len()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An object of pool `llama` that was created at this second.
    fn object(second: u8, rules_written: &Value) -> Rules {
        let created = format!("2026-01-01T00:00:{second:02}Z");
        let created = serde_json::from_value(created.into()).expect("a time");
        let data = json!({"spec": {"poolRef": {"name": "llama"}, "rules": rules_written}});
        rules(&data, "llama", Some(created)).expect("an object of the pool")
    }

    /// A rule of these models with one target.
    fn rule(models: &[&str], target: &str) -> Value {
        let matches: Vec<_> =
            models.iter().map(|model| json!({"model": {"type": "Exact", "value": model}})).collect();
        json!({"matches": matches, "targets": [{"modelRewrite": target}]})
    }

    fn shown(rules: &[Rewrite]) -> Vec<String> {
        rules.iter().map(|rule| format!("{} {}", rule.model, rule.targets[0].0)).collect()
    }

    #[test]
    fn exact_rules_come_first_then_older_objects_then_earlier_rules() {
        let objects = [
            ("a-young", 9, json!([rule(&["chat"], "young"), rule(&["code"], "young")])),
            ("b-old", 1, json!([rule(&[], "old"), rule(&["chat", "draft"], "old")])),
            ("c-old", 1, json!([rule(&["draft"], "c"), rule(&[], "c"), rule(&["x"], "c")])),
            ("d-twice", 3, json!([rule(&["y"], "first"), rule(&["y"], "second")])),
        ];
        let objects = objects.map(|(name, second, rules)| (name.to_owned(), object(second, &rules)));
        let expected = ["chat old", "draft old", "x c", "y first", "code young", "* old"];
        assert_eq!(shown(&ordered(objects.into())), expected);
    }

    #[test]
    fn weights_are_shares_and_all_or_none_of_them_are_given() {
        let targets = |written: Value| object(0, &json!([{"targets": written}])).rules.remove(0).targets;
        let target = |name: &str, weight: f64| (name.to_owned(), weight);
        assert_eq!(
            targets(json!([{"modelRewrite": "a", "weight": 90}, {"modelRewrite": "b", "weight": 10}])),
            [target("a", 90.0), target("b", 10.0)]
        );
        assert_eq!(
            targets(json!([{"modelRewrite": "a"}, {"modelRewrite": "b", "weight": 0}])),
            [target("a", 1.0), target("b", 1.0)]
        );
        assert_eq!(
            targets(json!([{"modelRewrite": "a"}, {"modelRewrite": "b", "weight": 5}])),
            [target("b", 5.0)]
        );
    }

    #[test]
    fn a_rule_that_cannot_be_expressed_is_not_applied_and_the_others_are() {
        let named = |model: Value| json!({"matches": [{"model": model}], "targets": [{"modelRewrite": "b"}]});
        for (wrong, problem) in [
            (named(json!({"type": "Regex", "value": "a.*"})), "match type Regex"),
            (named(json!({"value": "a*"})), "`a*` has a wildcard"),
            (named(json!({"value": ""})), "1 to 256 bytes"),
            (json!({"matches": [{}], "targets": [{"modelRewrite": "b"}]}), "names no model"),
            (json!({"matches": [{"headers": []}], "targets": [{"modelRewrite": "b"}]}), "headers"),
            (json!({"filters": [], "targets": [{"modelRewrite": "b"}]}), "filters"),
            (json!({"matches": [{"model": {"value": "a"}}]}), "1 to 64 targets, not 0"),
            (json!({"targets": [{"modelRewrite": "b", "weight": -1}]}), "-1"),
            (json!("text"), "string"),
        ] {
            let found = object(0, &json!([wrong, rule(&["ok"], "b")]));
            assert_eq!(shown(&found.rules), ["ok b"], "{wrong}");
            let [only] = &found.problems[..] else { panic!("{:?}", found.problems) };
            assert!(only.starts_with("rules[0]: ") && only.contains(problem), "{only}");
        }
    }

    #[test]
    fn an_object_has_as_many_rules_and_models_as_fit() {
        let many: Vec<_> = (0..=RULES_MAX).map(|index| format!("m{index}")).collect();
        let each: Vec<_> = many.iter().map(|model| rule(&[model.as_str()], "b")).collect();
        let found = object(0, &each.into());
        assert_eq!((found.rules.len(), found.problems.len()), (RULES_MAX, 1));
        let all: Vec<_> = many.iter().map(String::as_str).collect();
        let found = object(0, &json!([rule(&all, "b"), rule(&all[1..], "b"), rule(&[], "b")]));
        assert_eq!((found.rules.len(), found.problems.len()), (RULES_MAX, 2));
        assert!(found.problems[1].starts_with("rules[2]"), "{:?}", found.problems);
    }

    #[test]
    fn objects_of_other_pools_and_of_unknown_forms_have_no_rules() {
        let of_qwen = json!({"spec": {"poolRef": {"name": "qwen"}, "rules": [rule(&["a"], "b")]}});
        for other in [of_qwen, json!({}), json!({"spec": {"rules": []}})] {
            assert_eq!(rules(&other, "llama", None), None, "{other}");
        }
    }
}
