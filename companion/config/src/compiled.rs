//! Keys whose implementation is a Cargo feature: a document that uses one is refused by a binary without the feature.

use crate::Broken;

/// Refuses `key` in a binary that was built without the feature.
pub(crate) fn require(feature: &str, is_compiled_in: bool, key: &str) -> Result<(), Broken> {
    if is_compiled_in {
        return Ok(());
    }
    Err(Broken(
        key.to_owned(),
        format!("this binary was built without {feature}; build it with `--features {feature}`"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_an_absent_feature_is_refused_with_the_feature_to_build_with() {
        assert!(require("kubernetes", true, "pools[0].endpoints.kubernetes").is_ok());
        let Err(Broken(key, why)) = require("kubernetes", false, "pools[0].endpoints.kubernetes") else {
            panic!("an absent feature is refused");
        };
        assert_eq!(key, "pools[0].endpoints.kubernetes");
        assert!(
            why.contains("built without kubernetes") && why.contains("--features kubernetes"),
            "{why}"
        );
    }
}
