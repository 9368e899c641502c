//! Replaces Kubernetes discovery in a binary without the feature `kubernetes`, which rejects such a configuration.

use penstock_config::{KubernetesObject, PodLabels, PodSelector};

use super::Report;

/// Discovers nothing, and logs the reason.
pub(super) async fn run(
    mut report: Report,
    _namespace: Option<String>,
    _object: KubernetesObject,
    _labels: PodLabels,
    _selector: PodSelector,
) {
    report.failed(&"this binary was built without kubernetes; build it with `--features kubernetes`");
}
