//! Keys that need a Cargo feature. A binary that was built without the feature rejects them.

use crate::error::Violation;

/// Rejects `key` if this binary was built without the feature.
pub(crate) fn require(feature: &str, is_compiled_in: bool, key: &str) -> Result<(), Violation> {
    if is_compiled_in {
        return Ok(());
    }
    Err(Violation::new(
        key,
        format!("this binary was built without {feature}; build it with `--features {feature}`"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_an_absent_feature_is_rejected_with_the_feature_to_build_with() {
        assert!(require("kubernetes", true, "pools[0].endpoints.kubernetes").is_ok());
        let Err(Violation { key, message }) = require("kubernetes", false, "pools[0].endpoints.kubernetes")
        else {
            panic!("an absent feature is rejected");
        };
        assert_eq!(key, "pools[0].endpoints.kubernetes");
        assert!(
            message.contains("built without kubernetes") && message.contains("--features kubernetes"),
            "{message}"
        );
    }
}
