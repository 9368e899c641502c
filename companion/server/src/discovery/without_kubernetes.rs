//! Replaces Kubernetes discovery in a binary without the feature `kubernetes`, which rejects such a configuration.

use super::Report;

/// Discovers nothing, and logs the reason.
pub(super) async fn run(mut report: Report) {
    report.failed(&"this binary was built without kubernetes; build it with `--features kubernetes`");
}
