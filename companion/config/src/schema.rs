//! The document's JSON Schema, draft 2020-12. `penstock validate --schema` prints it, and editors complete and check documents
//! with it.
//!
//! The schema is made from the types of the keys, so it has every key. It accepts every valid document. Rules across keys are not in the
//! schema; `penstock validate` checks them.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::keys;

/// Defaults that follow from other keys, so that the types don't have them: the type, the key and the default as JSON.
const DERIVED_DEFAULTS: [(&str, &str, &str); 4] = [
    ("Identity", "trust", "\"all\""),
    ("Shutdown", "queued", "\"reject\""),
    ("Scrape", "stale_after", "\"5s\""),
    ("Stock", "watermark_per_backend", "2"),
];

/// The schema of a configuration document.
#[must_use]
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<keys::Document>().to_value();
    schema["title"] = json!("Penstock configuration");
    for (definition, key, default) in DERIVED_DEFAULTS {
        let default = serde_json::from_str(default).expect("invariant: the table holds JSON");
        let property = &mut schema["$defs"][definition]["properties"][key];
        if property.is_object() {
            property["default"] = default;
        }
    }
    schema
}
