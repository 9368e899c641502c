//! Which pods of an InferencePool are endpoints: by labels, and by the annotation with the ports in use.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use penstock_config::PodSelector;

/// The annotation with the ports at which a pod takes requests, separated by commas: under data parallelism, those of its ranks. llm-d's
/// name, and before it that of the Gateway API Inference Extension.
const ACTIVE_PORTS: [&str; 2] = ["llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"];

/// Whether the configuration selects this pod, which the InferencePool selects by `pool_labels`. A label and value that a selector names
/// isn't excluded.
pub(super) fn selects(selector: &PodSelector, pool_labels: &BTreeMap<String, String>, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    let value_of = |label: &str| labels.and_then(|labels| labels.get(label));
    let has = |label: &str, values: &[String]| value_of(label).is_some_and(|value| values.contains(value));
    let is_named = |label: &str| {
        let by_pool = pool_labels.get(label).is_some_and(|named| value_of(label) == Some(named));
        by_pool || selector.match_labels.get(label).is_some_and(|values| has(label, values))
    };
    selector.match_labels.iter().all(|(label, values)| has(label, values))
        && !selector.exclude_labels.iter().any(|(label, values)| has(label, values) && !is_named(label))
}

/// The ports at which a pod takes requests, and a sentence about each part of the annotation that is no port. `None`: at all ports of
/// the InferencePool. As llm-d's router has it, an annotation without any port means none.
pub(super) fn active_ports(pod: &Pod) -> (Option<Vec<u16>>, Vec<String>) {
    let annotations = pod.metadata.annotations.as_ref();
    let named = ACTIVE_PORTS.iter().find_map(|name| Some((name, annotations?.get(*name)?)));
    let Some((name, text)) = named else {
        return (None, Vec::new());
    };
    let (mut ports, mut problems) = (Vec::new(), Vec::new());
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.parse::<u16>() {
            Ok(port) if port > 0 => ports.push(port),
            Ok(_) | Err(_) => problems.push(format!(
                "annotation {name}: `{part}` is not a port and is ignored; write ports like 8000,8001"
            )),
        }
    }
    (Some(ports), problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    fn lists(pairs: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
        let pairs = pairs.iter();
        pairs
            .map(|(name, values)| ((*name).into(), values.iter().map(|&value| value.into()).collect()))
            .collect()
    }

    fn pod(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.labels = Some(map(labels));
        pod.metadata.annotations = Some(map(annotations));
        pod
    }

    const ROLE: &str = "llm-d.ai/role";

    #[test]
    fn an_excluded_value_is_no_endpoint_unless_a_selector_names_it() {
        let exclude_labels = lists(&[(ROLE, &["prefill", "encode"])]);
        let default = PodSelector { exclude_labels: exclude_labels.clone(), ..PodSelector::default() };
        let app = map(&[("app", "llama")]);
        let is_selected = |selector: &PodSelector, pool: &BTreeMap<_, _>, role: Option<&str>| {
            let mut labels = vec![("app", "llama")];
            labels.extend(role.map(|role| (ROLE, role)));
            selects(selector, pool, &pod(&labels, &[]))
        };
        for role in [None, Some("decode"), Some("prefill-decode"), Some("both"), Some("")] {
            assert!(is_selected(&default, &app, role), "{role:?}");
        }
        for role in ["prefill", "encode"] {
            assert!(!is_selected(&default, &app, Some(role)), "{role}");
            assert!(is_selected(&PodSelector::default(), &app, Some(role)), "nothing is excluded");
        }
        let pool = map(&[("app", "llama"), (ROLE, "prefill")]);
        assert!(is_selected(&default, &pool, Some("prefill")), "the InferencePool's own selector names it");
        let named = PodSelector { match_labels: lists(&[(ROLE, &["prefill", "decode"])]), exclude_labels };
        assert!(is_selected(&named, &app, Some("prefill")) && is_selected(&named, &app, Some("decode")));
        assert!(!is_selected(&named, &app, Some("encode")) && !is_selected(&named, &app, None));
        assert!(selects(&PodSelector::default(), &app, &Pod::default()), "a pod without labels");
    }

    #[test]
    fn active_ports_are_read_as_the_router_of_llm_d_reads_them() {
        let [new, old] = ACTIVE_PORTS;
        let ports = |annotations: &[(&str, &str)]| {
            let (ports, problems) = active_ports(&pod(&[], annotations));
            (ports, problems.len())
        };
        assert_eq!(ports(&[]), (None, 0));
        assert_eq!(active_ports(&Pod::default()).0, None);
        assert_eq!(ports(&[(new, "8001, 8003")]), (Some(vec![8001, 8003]), 0));
        assert_eq!(ports(&[(old, "8001")]), (Some(vec![8001]), 0));
        assert_eq!(ports(&[(new, "8002"), (old, "8001")]), (Some(vec![8002]), 0));
        assert_eq!(ports(&[(new, "")]), (Some(vec![]), 0), "no rank is active");
        assert_eq!(ports(&[(new, "8001,http,0,70000,-1,")]), (Some(vec![8001]), 4));
    }
}
