//! `arbitration.classes`: policy classes, in the form of Dynamo's router policy file.
//!
//! The classes of such a file can be used here unchanged. Its keys that choose a worker, or that have no equivalent, are unknown keys;
//! `penstock import dynamo` leaves them out.

use penstock_engine::policy::ClassMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::value::{Count, Fraction, List, OrderedMap, WholeNumber};

/// Policy classes.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Classes {
    /// The rule by which classes share.
    pub(crate) mode: ClassMode,
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
    /// The same threshold as a fraction of the endpoint's `max_batched_tokens`.
    #[serde(default)]
    pub(crate) prefill_busy_threshold_frac: Option<Fraction>,
    /// Requests that may wait in the class, for each ready endpoint of the pool. The request that crosses the limit is still
    /// queued. The limit is one for all requests of the class, whichever endpoints they may go to.
    #[serde(default)]
    pub(crate) request_queue_limit_per_worker: Option<WholeNumber>,
    /// The same limit in prompt tokens.
    #[serde(default)]
    pub(crate) raw_isl_token_queue_limit_per_worker: Option<WholeNumber>,
    /// The same limit in cached prompt tokens.
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
