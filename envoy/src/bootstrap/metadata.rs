//! Dynamic metadata for the native filter.
//!
//! The filter takes identities from the metadata of other filters. Envoy gives a dynamic module only what lies directly in a namespace, and
//! claims of a token lie deeper. So Envoy copies each value that the configuration names into the stream's filter state, by an expression,
//! and the filter reads it there.

use serde_json::{Value, json};

use super::Settings;

/// The filter state of a value, before its keys, which are joined by slashes.
const STATE: &str = "penstock.metadata/";

/// The HTTP filter that copies the values; `None`: the module needs none.
pub(super) fn copier(settings: &Settings) -> Option<Value> {
    let is_needed = settings.module.is_native() && !settings.metadata.is_empty();
    is_needed.then(|| {
        let values: Vec<Value> = settings.metadata.iter().map(|path| value(path)).collect();
        json!({
            "name": "penstock.metadata",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.set_filter_state.v3.Config",
                "on_request_headers": values,
            },
        })
    })
}

/// One value. In a part of its path, `~1` stands for a slash and `~0` for a tilde.
fn value(path: &str) -> Value {
    let keys: Vec<String> = path.split('/').map(|key| key.replace("~1", "/").replace("~0", "~")).collect();
    let place: String = keys.iter().map(|key| format!("[{}]", json!(key))).collect();
    let place = format!("metadata.filter_metadata{place}");
    // A list or an object is no identity.
    let text = format!("%CEL(type({place}) == list || type({place}) == map ? \"\" : {place})%");
    json!({
        "object_key": format!("{STATE}{}", keys.join("/")),
        "factory_key": "envoy.string",
        "format_string": {
            "text_format_source": { "inline_string": text },
            "omit_empty_values": true,
        },
        "skip_if_empty": true,
    })
}
