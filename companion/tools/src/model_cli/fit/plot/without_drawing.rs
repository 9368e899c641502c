//! Replaces the drawing of plots in a binary without the feature `plots`.

use std::path::Path;

use super::{Error, Plot};

/// Always fails.
pub(super) fn check(to: &Path) -> Result<(), Error> {
    Err(Error::Plot {
        path: to.into(),
        why: "this binary was built without plots; build it with `--features plots`".to_owned(),
    })
}

/// Never called, because [`check`] fails before.
pub(super) const fn svg(_plot: &Plot) -> String {
    String::new()
}
