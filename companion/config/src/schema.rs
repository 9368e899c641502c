//! The document's JSON Schema, draft 2020-12: what `penstock validate --schema` prints, and editors complete with.
//!
//! It comes from the raw types, so that a key that is read is in it. Whatever is valid is valid by the schema too; what
//! fits together across keys is for `penstock validate`.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::raw;

/// Defaults that aren't a type's own, for they follow from other keys.
const FOLLOWING: [(&str, &str, &str); 3] = [
    ("Identity", "trust", "\"all\""),
    ("Scrape", "stale_after", "\"5s\""),
    ("Stock", "watermark_per_backend", "2"),
];

/// The schema of a configuration.
#[must_use]
pub fn schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<raw::Document>().to_value();
    schema["title"] = json!("Penstock configuration");
    for (of, key, default) in FOLLOWING {
        let default = serde_json::from_str(default).expect("invariant: the table holds JSON");
        let property = &mut schema["$defs"][of]["properties"][key];
        if property.is_object() {
            property["default"] = default;
        }
    }
    schema
}
