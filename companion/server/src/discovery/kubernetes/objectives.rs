//! The InferenceObjectives of an InferencePool, by which requests that name one get a priority.

use kube::api::DynamicObject;
use penstock_engine::input::Band;
use serde::Deserialize;
use serde_json::Value;

use super::pool_objects::{Kind, PoolRef};

/// Objectives, kept as bands.
pub(super) static KIND: Kind<Band> =
    Kind { name: "InferenceObjective", plural: "inferenceobjectives", key: "objectives", read };

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    priority: i64,
    pool_ref: PoolRef,
}

fn read(object: &DynamicObject, pool: &str, _before: Option<&Band>) -> Option<Band> {
    band(&object.data, pool)
}

/// The band of an objective with this content; `None`: it belongs to another pool, or has no form that is known.
fn band(data: &Value, pool: &str) -> Option<Band> {
    let Object { spec } = Object::deserialize(data).ok()?;
    (spec.pool_ref.name == pool).then_some(match spec.priority {
        1.. => Band::Critical,
        0 => Band::Default,
        _ => Band::Sheddable,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_sign_of_the_priority_is_the_band() {
        let objective = |priority: Value| json!({"spec": {"priority": priority, "poolRef": {"group": "inference.networking.k8s.io", "name": "llama"}}});
        for (priority, expected) in [
            (100, Band::Critical),
            (1, Band::Critical),
            (0, Band::Default),
            (-1, Band::Sheddable),
            (-100, Band::Sheddable),
        ] {
            assert_eq!(band(&objective(priority.into()), "llama"), Some(expected), "{priority}");
            assert_eq!(band(&objective(priority.into()), "other"), None);
        }
        let without = json!({"spec": {"poolRef": {"name": "llama"}}});
        assert_eq!(band(&without, "llama"), Some(Band::Default));
        for wrong in [json!({}), json!({"spec": {"priority": 1}}), objective("high".into())] {
            assert_eq!(band(&wrong, "llama"), None, "{wrong}");
        }
    }
}
