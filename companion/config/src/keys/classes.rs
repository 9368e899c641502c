//! `arbitration.classes`: policy classes, in the form of Dynamo's router policy file.
//!
//! The classes of such a file can be used here unchanged. Its keys that choose a worker, or that have no equivalent, are unknown keys;
//! `penstock import dynamo` leaves them out. Buckets rise from 0, a class names a family and a bucket or neither, and every family has one
//! class for every bucket.
//!
//! Penstock allows more than Dynamo. Without buckets, a class may name a family alone. Without a default family, the first
//! class's family is the default. Class sets of models are found by glob. Class names are unique in a
//! pool, so a class is renamed to `GLOB/NAME` if an earlier set has one of the same name.

use std::collections::{BTreeMap, BTreeSet};

use penstock_engine::limits::CLASSES_MAX;
use penstock_engine::policy as engine;
use penstock_wire::limits::NAME_BYTES_MAX;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check_name;
use crate::error::Violation;
use crate::value::{Count, Fraction, List, OrderedMap, WholeNumber};

/// Policy classes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Classes {
    /// The rule by which classes share.
    pub(crate) mode: engine::ClassMode,
    /// The family of requests that name none. Null means the family of the first class.
    pub(crate) default_policy_family: Option<String>,
    /// Buckets by the uncached tokens of a prompt. The first begins at 0, and each further bucket above the one before it.
    pub(crate) uncached_isl_buckets: List<Bucket>,
    /// The classes. Each family has one class for every bucket.
    pub(crate) policy_classes: List<Class>,
    /// Other classes for some models, by glob. The first match counts.
    pub(crate) models: OrderedMap<ClassSet>,
}

/// Classes of some models.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ClassSet {
    /// The family of requests that name none. Null means the family of the first class.
    pub(crate) default_policy_family: Option<String>,
    /// Buckets by the uncached tokens of a prompt.
    pub(crate) uncached_isl_buckets: List<Bucket>,
    /// The classes; at least one.
    pub(crate) policy_classes: List<Class>,
}

/// A range of prompt lengths, in uncached tokens. It ends where the next bucket begins.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bucket {
    /// The smallest number of uncached prompt tokens in the bucket.
    pub(crate) min_tokens: WholeNumber,
    /// The bucket's name.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_.-]{1,256}$"))]
    pub(crate) bucket: String,
}

/// A class. It names both a family and a bucket, or neither.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Class {
    /// The class's unique name. Requests name a class without a family by this name.
    #[schemars(regex(pattern = r"^[A-Za-z0-9_.-]{1,256}$"))]
    pub(crate) name: String,
    /// The family that requests name.
    #[serde(default)]
    #[schemars(regex(pattern = r"^[A-Za-z0-9_.-]{1,256}$"))]
    pub(crate) policy_family: Option<String>,
    /// The name of one of `uncached_isl_buckets`.
    #[serde(default)]
    pub(crate) cache_bucket: Option<String>,
    /// Uncached prompt tokens that the class may use in one turn.
    pub(crate) quantum: Count,
    /// The order inside the class's flows. Null means the pool's `order`.
    #[serde(default)]
    pub(crate) queue_policy: Option<QueuePolicy>,
    /// The class is held while all of its endpoints have more uncached prompt tokens in prefill than this. A prompt is in
    /// prefill from its dispatch to the first byte of the answer; without streaming, to the answer's end.
    #[serde(default)]
    pub(crate) prefill_busy_threshold: Option<WholeNumber>,
    /// `prefill_busy_threshold` as a fraction of the endpoint's `max_batched_tokens`.
    #[serde(default)]
    pub(crate) prefill_busy_threshold_frac: Option<Fraction>,
    /// Requests that may wait in the class, for each ready endpoint of the pool. The request that crosses the limit is still
    /// queued. The limit is one for all requests of the class, whichever endpoints they may go to.
    #[serde(default)]
    pub(crate) request_queue_limit_per_worker: Option<WholeNumber>,
    /// `request_queue_limit_per_worker` in prompt tokens.
    #[serde(default)]
    pub(crate) raw_isl_token_queue_limit_per_worker: Option<WholeNumber>,
    /// `request_queue_limit_per_worker` in cached prompt tokens.
    #[serde(default)]
    pub(crate) cached_token_queue_limit_per_worker: Option<WholeNumber>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum QueuePolicy {
    /// Earliest arrival first.
    Fcfs,
    /// Smallest uncached prompt first.
    Wspt,
}

/// The class sets: first that of the root, then one for each of `globs`. Both lists are empty if no classes are configured.
pub(super) struct ClassSets {
    pub(super) sets: Vec<engine::ClassSet>,
    pub(super) globs: Vec<String>,
}

/// Checks `classes` at `path`.
pub(super) fn convert(raw: Classes, path: &str) -> Result<ClassSets, Violation> {
    let root = ClassSet {
        default_policy_family: raw.default_policy_family,
        uncached_isl_buckets: raw.uncached_isl_buckets,
        policy_classes: raw.policy_classes,
    };
    let mut names = BTreeSet::new();
    let root = convert_set(root, path, None, &mut names)?;
    let mut globs = Vec::with_capacity(raw.models.0.len());
    let mut sets = vec![root];
    for (glob, set) in raw.models.0 {
        let path = format!("{path}.models.{glob}");
        if glob.is_empty() || globs.contains(&glob) {
            return Err(Violation::new(path, "a glob isn't empty, and is listed once"));
        }
        if set.policy_classes.0.is_empty() {
            return Err(Violation::new(format!("{path}.policy_classes"), "at least one class is required"));
        }
        sets.push(convert_set(set, &path, Some(&glob), &mut names)?);
        globs.push(glob);
    }
    let too_many = names.len() > CLASSES_MAX || sets.len() > usize::from(u16::MAX);
    if too_many {
        return Err(Violation::new(
            format!("{path}.policy_classes"),
            format!("a pool has at most {CLASSES_MAX} classes"),
        ));
    }
    if names.is_empty() {
        sets.clear();
    }
    Ok(ClassSets { sets, globs })
}

fn convert_set(
    raw: ClassSet,
    path: &str,
    glob: Option<&str>,
    names: &mut BTreeSet<String>,
) -> Result<engine::ClassSet, Violation> {
    let classes = raw.policy_classes.0;
    let buckets = convert_buckets(raw.uncached_isl_buckets.0, &format!("{path}.uncached_isl_buckets"))?;
    if classes.is_empty() {
        let unused = raw.default_policy_family.map(|_| "default_policy_family");
        return match unused.or((!buckets.is_empty()).then_some("uncached_isl_buckets")) {
            Some(key) => {
                Err(Violation::new(format!("{path}.{key}"), "this has no effect without policy_classes"))
            }
            None => Ok(engine::ClassSet::default()),
        };
    }
    check_matrix(&classes, &buckets, path)?;
    check_default(raw.default_policy_family.as_deref(), &classes, path)?;
    let converted = classes
        .into_iter()
        .map(|class| {
            let name = match glob {
                Some(glob) if names.contains(&class.name) => format!("{glob}/{}", class.name),
                Some(_) | None => class.name.clone(),
            };
            names.insert(name.clone());
            convert_class(class, &name)
        })
        .collect();
    Ok(engine::ClassSet {
        default_family: raw.default_policy_family.map(Into::into),
        buckets,
        classes: converted,
    })
}

fn convert_buckets(raw: Vec<Bucket>, path: &str) -> Result<Vec<engine::Bucket>, Violation> {
    let mut names = BTreeSet::new();
    let mut above = None;
    raw.into_iter()
        .enumerate()
        .map(|(index, bucket)| {
            let path = format!("{path}[{index}]");
            let rises = above.map_or(bucket.min_tokens.0 == 0, |above| bucket.min_tokens.0 > above);
            if !rises {
                return Err(Violation::new(
                    format!("{path}.min_tokens"),
                    "the first bucket begins at 0, and each further bucket above the one before it",
                ));
            }
            above = Some(bucket.min_tokens.0);
            check_class_name(&bucket.bucket, &format!("{path}.bucket"))?;
            if !names.insert(bucket.bucket.clone()) {
                return Err(Violation::new(
                    format!("{path}.bucket"),
                    format!("`{}` is the name of two buckets", bucket.bucket),
                ));
            }
            Ok(engine::Bucket { min_tokens: bucket.min_tokens.0, name: bucket.bucket.into() })
        })
        .collect()
}

/// Checks that names are unique, and that every family has exactly one class for every bucket.
fn check_matrix(classes: &[Class], buckets: &[engine::Bucket], path: &str) -> Result<(), Violation> {
    let mut names = BTreeSet::new();
    let mut families: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
    for (index, class) in classes.iter().enumerate() {
        let path = format!("{path}.policy_classes[{index}]");
        check_class(class, buckets, &path)?;
        if !names.insert(class.name.as_str()) {
            return Err(Violation::new(
                format!("{path}.name"),
                format!("`{}` is the name of two classes", class.name),
            ));
        }
        let Some(family) = class.policy_family.as_deref() else {
            continue;
        };
        if !families.entry(family).or_default().insert(class.cache_bucket.as_deref()) {
            return Err(Violation::new(
                path,
                format!("family `{family}` has two classes for this bucket; allowed is one for each bucket"),
            ));
        }
    }
    for (index, class) in classes.iter().enumerate() {
        if class.policy_family.is_none() && families.contains_key(class.name.as_str()) {
            return Err(Violation::new(
                format!("{path}.policy_classes[{index}].name"),
                format!("`{}` is also the name of a family", class.name),
            ));
        }
    }
    for (family, present) in &families {
        if let Some(missing) = buckets.iter().find(|bucket| !present.contains(&Some(&*bucket.name))) {
            return Err(Violation::new(
                format!("{path}.policy_classes"),
                format!(
                    "family `{family}` has no class for bucket `{}`; it needs one for each bucket",
                    missing.name
                ),
            ));
        }
    }
    Ok(())
}

/// Checks the class at `path` by itself: its names, and that it names a family and a bucket or neither.
fn check_class(class: &Class, buckets: &[engine::Bucket], path: &str) -> Result<(), Violation> {
    check_class_name(&class.name, &format!("{path}.name"))?;
    if let Some(family) = &class.policy_family {
        check_class_name(family, &format!("{path}.policy_family"))?;
    }
    match (class.policy_family.as_deref(), class.cache_bucket.as_deref()) {
        (None, None) => Ok(()),
        (Some(_), None) if buckets.is_empty() => Ok(()),
        (Some(_), None) | (None, Some(_)) => {
            Err(Violation::new(path, "a class names policy_family and cache_bucket, or neither"))
        }
        (Some(_), Some(bucket)) if buckets.iter().all(|known| &*known.name != bucket) => Err(Violation::new(
            format!("{path}.cache_bucket"),
            format!("`{bucket}` is none of uncached_isl_buckets"),
        )),
        (Some(_), Some(_)) => Ok(()),
    }
}

/// Checks that the default is a family of the classes, or the name of a class if none names a family.
fn check_default(default: Option<&str>, classes: &[Class], path: &str) -> Result<(), Violation> {
    let Some(default) = default else { return Ok(()) };
    let families: BTreeSet<&str> =
        classes.iter().filter_map(|class| class.policy_family.as_deref()).collect();
    let known = if families.is_empty() {
        classes.iter().any(|class| class.name == default)
    } else {
        families.contains(default)
    };
    if known {
        Ok(())
    } else {
        Err(Violation::new(
            format!("{path}.default_policy_family"),
            format!("`{default}` is not a family of policy_classes"),
        ))
    }
}

/// A class without a family is the only class of a family with its own name.
fn convert_class(raw: Class, name: &str) -> engine::Class {
    // A fraction of 0 is 0 tokens, even if the batched tokens are unknown.
    let idle_only = raw.prefill_busy_threshold_frac.is_some_and(|fraction| fraction.0 == 0.0);
    let busy_tokens = if idle_only { Some(0) } else { raw.prefill_busy_threshold.map(|tokens| tokens.0) };
    engine::Class {
        family: raw.policy_family.unwrap_or(raw.name).into(),
        bucket: raw.cache_bucket.map(Into::into),
        order: raw.queue_policy.map(|order| match order {
            QueuePolicy::Fcfs => engine::Order::Fcfs,
            QueuePolicy::Wspt => engine::Order::Wspt,
        }),
        busy_tokens,
        busy_fraction: raw
            .prefill_busy_threshold_frac
            .map(|fraction| fraction.0)
            .filter(|fraction| *fraction > 0.0),
        requests_per_endpoint: raw.request_queue_limit_per_worker.map(|limit| limit.0),
        prompt_tokens_per_endpoint: raw.raw_isl_token_queue_limit_per_worker.map(|limit| limit.0),
        cached_tokens_per_endpoint: raw.cached_token_queue_limit_per_worker.map(|limit| limit.0),
        ..engine::Class::new(name, raw.quantum.0)
    }
}

/// Names are used in headers and labels.
fn check_class_name(name: &str, key: &str) -> Result<(), Violation> {
    check_name(name, NAME_BYTES_MAX, "a name", key)
}

#[cfg(test)]
mod tests {
    use penstock_engine::policy::{Bucket, ClassMode, Order};

    use crate::{Config, Pool};

    /// Dynamo's published form, with two profiles.
    const DYNAMO: &str = "
default_policy_family: standard
uncached_isl_buckets:
  - min_tokens: 0
    bucket: cached
  - min_tokens: 3072
    bucket: uncached
policy_classes:
  - name: cached
    policy_family: standard
    cache_bucket: cached
    queue_policy: wspt
    quantum: 2048
    prefill_busy_threshold_frac: 16.0
  - name: uncached
    policy_family: standard
    cache_bucket: uncached
    quantum: 512
    prefill_busy_threshold: 0
    request_queue_limit_per_worker: 8
    raw_isl_token_queue_limit_per_worker: 65536
    cached_token_queue_limit_per_worker: 4096
  - name: custom_priority
    quantum: 4096
    prefill_busy_threshold: 8192
models:
  z/*:
    default_policy_family: latency
    uncached_isl_buckets:
      - min_tokens: 0
        bucket: all
    policy_classes:
      - name: cached
        policy_family: latency
        cache_bucket: all
        quantum: 1
  example/large-model:
    default_policy_family: batch
    uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
    policy_classes: [{name: batch, policy_family: batch, cache_bucket: all, quantum: 7, prefill_busy_threshold_frac: 0.0}]
";

    fn parse(classes: &str) -> Result<Pool, String> {
        let indented: String = classes.lines().map(|line| format!("      {line}\n")).collect();
        let text = format!(
            "pools:\n- name: a\n  endpoints: {{static: ['127.0.0.1:8001'], defaults: {{max_batched_tokens: 8192}}}}\n  arbitration:\n    classes:\n{indented}"
        );
        Config::parse(&text, "f.yaml")
            .map(|mut config| config.pools.remove(0))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn classes_of_dynamos_file_are_accepted() {
        let pool = parse(DYNAMO).expect("valid");
        assert_eq!(pool.class_globs, ["z/*", "example/large-model"]);
        assert_eq!(pool.policy.class_mode, ClassMode::Exact);
        let [root, first, second] = &pool.policy.classes[..] else { panic!("three sets") };
        assert_eq!(root.default_family.as_deref(), Some("standard"));
        let bucket = |min_tokens, name: &str| Bucket { min_tokens, name: name.into() };
        assert_eq!(root.buckets, [bucket(0, "cached"), bucket(3_072, "uncached")]);
        let [cached, uncached, custom] = &root.classes[..] else { panic!("three classes") };
        assert_eq!((&*cached.name, &*cached.family, cached.quantum), ("cached", "standard", 2_048));
        assert_eq!(cached.bucket.as_deref(), Some("cached"));
        assert_eq!((cached.order, cached.busy_fraction), (Some(Order::Wspt), Some(16.0)));
        assert_eq!((uncached.order, uncached.busy_tokens), (None, Some(0)));
        assert_eq!(uncached.requests_per_endpoint, Some(8));
        assert_eq!(uncached.prompt_tokens_per_endpoint, Some(65_536));
        assert_eq!(uncached.cached_tokens_per_endpoint, Some(4_096));
        // A class without a family is its own family, in every bucket.
        assert_eq!((&*custom.family, custom.bucket.as_deref()), ("custom_priority", None));
        // The root set has a class of this name.
        assert_eq!((&*first.classes[0].name, &*first.classes[0].family), ("z/*/cached", "latency"));
        let batch = &second.classes[0];
        assert_eq!((&*batch.name, batch.busy_fraction, batch.busy_tokens), ("batch", None, Some(0)));
    }

    #[test]
    fn buckets_families_and_defaults_may_be_left_out() {
        let pool =
            parse("policy_classes: [{name: a, quantum: 2048}, {name: b, quantum: 512}]").expect("valid");
        assert_eq!(pool.policy.classes.len(), 1);
        assert_eq!(pool.policy.classes[0].default_family, None);
        let pool =
            parse("default_policy_family: b\npolicy_classes: [{name: a, quantum: 1}, {name: b, quantum: 1}]");
        assert_eq!(pool.expect("valid").policy.classes[0].default_family.as_deref(), Some("b"));
        let pool =
            parse("mode: dynamo\npolicy_classes: [{name: a, policy_family: f, quantum: 1}]").expect("valid");
        assert_eq!(pool.policy.class_mode, ClassMode::Dynamo);
        // Without classes at the root, models that no glob matches have one class.
        let pool = parse("models: {'m*': {policy_classes: [{name: a, quantum: 1}]}}").expect("valid");
        assert_eq!((pool.policy.classes.len(), pool.class_globs.len()), (2, 1));
        assert!(pool.policy.classes[0].classes.is_empty());
        assert!(parse("mode: exact").expect("valid").policy.classes.is_empty());
    }
}
