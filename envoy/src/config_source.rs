//! Configuration that Envoy reads from a file, and reads again whenever the file is replaced.

use std::path::Path;

use serde_json::{Value, json};

/// The file that lists the pools (Envoy's CDS), in the folder of watched files.
pub(crate) const CLUSTERS_FILE: &str = "clusters.json";

/// A `ConfigSource` that reads from `file`.
pub(crate) fn config_source(file: &Path) -> Value {
    json!({
        "resource_api_version": "V3",
        "path_config_source": { "path": file },
    })
}
