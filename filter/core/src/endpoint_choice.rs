//! Chooses the endpoints for a request that the filter admits by itself, while the companion is down.

use penstock_wire::Register;

use crate::limits::FALLBACK_ENDPOINTS_MAX;

/// Up to `FALLBACK_ENDPOINTS_MAX` of the `known` endpoints that the request allows, starting at position `turn` of the
/// round robin. If no endpoint is known, the endpoints that the request itself names; an empty list then leaves the choice
/// to Envoy. `None`: the request allows none of the endpoints.
pub(crate) fn choose_endpoints(known: &[String], register: &Register, turn: usize) -> Option<Vec<String>> {
    let Register { subset, pin, .. } = register;
    let allows = |endpoint: &&String| {
        (pin.is_empty() || **endpoint == *pin) && (subset.is_empty() || subset.contains(endpoint))
    };
    let is_unrestricted = pin.is_empty() && subset.is_empty();
    let named: Vec<String>;
    let candidates = if known.is_empty() {
        named = subset.iter().chain((!pin.is_empty()).then_some(pin)).cloned().collect();
        &named
    } else {
        known
    };
    let start = turn.checked_rem(candidates.len()).unwrap_or(0);
    let (before, after) = candidates.split_at_checked(start)?;
    let mut chosen: Vec<String> = Vec::new();
    for endpoint in after.iter().chain(before).filter(allows) {
        if chosen.len() < FALLBACK_ENDPOINTS_MAX && !chosen.contains(endpoint) {
            chosen.push(endpoint.clone());
        }
    }
    (is_unrestricted || !chosen.is_empty()).then_some(chosen)
}

#[cfg(test)]
mod tests {
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn chosen(known: &[&str], subset: &[&str], pin: &str, turn: usize) -> Option<Vec<String>> {
        let register = Register { subset: strings(subset), pin: pin.to_owned(), ..Register::default() };
        choose_endpoints(&strings(known), &register, turn)
    }

    #[test]
    fn endpoints_are_tried_in_turn() {
        let known = ["a", "b", "c", "d"];
        assert_eq!(chosen(&known, &[], "", 0), Some(strings(&["a", "b", "c"])));
        assert_eq!(chosen(&known, &[], "", 3), Some(strings(&["d", "a", "b"])));
        assert_eq!(chosen(&known, &[], "", 4), Some(strings(&["a", "b", "c"])));
        assert_eq!(chosen(&["a"], &[], "", 9), Some(strings(&["a"])));
    }

    #[test]
    fn only_allowed_endpoints_are_chosen() {
        let known = ["a", "b", "c"];
        assert_eq!(chosen(&known, &["c", "x", "a"], "", 1), Some(strings(&["c", "a"])));
        assert_eq!(chosen(&known, &[], "b", 0), Some(strings(&["b"])));
        assert_eq!(chosen(&known, &["a"], "b", 0), None);
        assert_eq!(chosen(&known, &[], "x", 0), None);
    }

    #[test]
    fn without_known_endpoints_envoy_chooses_unless_the_request_names_some() {
        assert_eq!(chosen(&[], &[], "", 0), Some(Vec::new()));
        assert_eq!(chosen(&[], &["x", "y", "x"], "", 0), Some(strings(&["x", "y"])));
        assert_eq!(chosen(&[], &["x", "y"], "y", 0), Some(strings(&["y"])));
        assert_eq!(chosen(&[], &["x"], "y", 0), None);
    }
}
