//! The properties of a model server that its pod's labels or annotations name.

use k8s_openapi::api::core::v1::Pod;
use penstock_config::{EndpointDefaults, PodLabels, is_variant};
use penstock_engine::input::Role;

/// The values of a pod: those of its labels, else of its annotations, else `defaults`. Also a sentence about each value that is
/// not allowed, or missing although the pool `needs_batched_tokens`.
pub(super) fn values(
    pod: &Pod,
    labels: &PodLabels,
    defaults: &EndpointDefaults,
    needs_batched_tokens: bool,
) -> (EndpointDefaults, Vec<String>) {
    let mut values = defaults.clone();
    let mut problems = Vec::new();
    if let Some((label, text)) = find(pod, labels.variant.as_deref()) {
        if is_variant(text) {
            values.variant = text.to_owned();
        } else {
            problems.push(format!(
                "label {label} is not a variant; it has 1 to 63 letters, digits, `-`, `_` or `.`, not `{text}`"
            ));
        }
    }
    if let Some((label, text)) = find(pod, labels.max_batch.as_deref()) {
        match count(label, text) {
            Ok(requests) => values.max_batch = requests,
            Err(problem) => problems.push(problem),
        }
    }
    if let Some((label, text)) = find(pod, labels.max_batched_tokens.as_deref()) {
        match count(label, text) {
            Ok(tokens) => values.max_batched_tokens = Some(tokens),
            Err(problem) => problems.push(problem),
        }
    }
    if let Some(label) = labels.role.as_deref() {
        values.role = match find(pod, Some(label)).map(|(_, role)| role) {
            Some("prefill") => Role::Prefill,
            Some("decode") => Role::Decode,
            Some(_) | None => Role::Both,
        };
    }
    if needs_batched_tokens && values.max_batched_tokens.is_none() {
        problems.push(
            "max_batched_tokens is unknown, so no class's prefill_busy_threshold_frac holds requests at this pod; label the \
             pod, or set endpoints.defaults.max_batched_tokens"
                .to_owned(),
        );
    }
    (values, problems)
}

/// The label of this name, or the annotation.
fn find<'a>(pod: &'a Pod, name: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let name = name?;
    let metadata = &pod.metadata;
    let maps = [&metadata.labels, &metadata.annotations];
    let value = maps.into_iter().flatten().find_map(|map| map.get(name))?;
    Some((name, value.as_str()))
}

fn count(label: &str, text: &str) -> Result<u64, String> {
    match text.trim().parse() {
        Ok(count) if count > 0 => Ok(count),
        Ok(_) | Err(_) => Err(format!("label {label} is not a whole number of at least 1, but `{text}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Pod {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            Some(pairs.collect())
        };
        let mut pod = Pod::default();
        pod.metadata.labels = map(labels);
        pod.metadata.annotations = map(annotations);
        pod
    }

    fn names() -> PodLabels {
        PodLabels {
            variant: Some("accelerator".into()),
            max_batch: Some("vllm/max-num-seqs".into()),
            max_batched_tokens: Some("vllm/max-num-batched-tokens".into()),
            role: Some("llm-d.ai/role".into()),
        }
    }

    #[test]
    fn labels_come_before_annotations_and_both_before_the_defaults() {
        let defaults = EndpointDefaults::default();
        let pod = pod(
            &[("accelerator", "h100"), ("vllm/max-num-seqs", "64"), ("llm-d.ai/role", "prefill")],
            &[("vllm/max-num-seqs", "32"), ("vllm/max-num-batched-tokens", "16384")],
        );
        let (found, problems) = values(&pod, &names(), &defaults, true);
        let expected = EndpointDefaults {
            variant: "h100".into(),
            max_batch: 64,
            max_batched_tokens: Some(16_384),
            role: Role::Prefill,
        };
        assert_eq!((found, problems), (expected, Vec::new()));
        let (found, _) = values(&pod, &PodLabels::default(), &defaults, false);
        assert_eq!(found, defaults);
    }

    #[test]
    fn a_value_that_is_not_allowed_is_reported_and_has_no_effect() {
        let defaults = EndpointDefaults::default();
        let pod = pod(
            &[("accelerator", "a b"), ("vllm/max-num-seqs", "0")],
            &[("vllm/max-num-batched-tokens", "many")],
        );
        let (found, problems) = values(&pod, &names(), &defaults, true);
        assert_eq!(found, defaults);
        let words = ["`a b`", "`0`", "`many`", "defaults.max_batched_tokens"];
        assert_eq!(problems.len(), words.len());
        for (problem, word) in problems.iter().zip(words) {
            assert!(problem.contains(word), "{problem}");
        }
    }
}
