//! Stands in for discovery by Kubernetes in a binary without the feature `kubernetes`, which refuses such a configuration.

use super::Report;

/// Finds nothing, and logs why.
pub(super) async fn run(mut report: Report, _namespace: String, _name: String) {
    report.failed(&"this binary was built without kubernetes; build it with `--features kubernetes`");
}
