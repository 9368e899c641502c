//! A configuration: refused with its place and its key, or good for everything that is made of it.

use std::path::PathBuf;

use penstock_config::{Config, Error};
use penstock_control::Control;
use penstock_data_plane::{policy, settings};
use penstock_engine::Instant;
use penstock_filter_core::config::Config as PluginConfig;
use penstock_filter_core::time::Instant as FilterInstant;
use penstock_filter_core::worker::Worker;
use penstock_server::serve;

use super::host::{DRAW, Shared};

/// Bytes of a document that is worth reading.
const DOCUMENT_BYTES_MAX: usize = 16 << 10;

/// Reads the input as `penstock validate` would; of what is valid everything is made that a start makes.
pub fn run(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else {
        return;
    };
    if text.len() > DOCUMENT_BYTES_MAX {
        return;
    }
    match Config::parse(text, "f.yaml") {
        Ok(config) => starts(&config),
        Err(error) => names_its_place(&error, text),
    }
}

fn names_its_place(error: &Error, text: &str) {
    let Error::Document {
        file,
        line,
        key,
        message,
    } = error
    else {
        panic!("not read from a file: {error}");
    };
    assert_eq!(file, "f.yaml");
    let lines = text.split('\n').count() as u64;
    assert!((1..=lines + 1).contains(line), "line {line} of {lines}: {error}");
    assert!(!key.is_empty() && !message.is_empty(), "{error}");
}

fn starts(config: &Config) {
    assert!(!config.pools.is_empty());
    let _ = policy::frame(config);
    // What Envoy is told for a cold start is what the filter reads.
    let plugin = policy::plugin_configuration(config, "n").to_string();
    let plugin = PluginConfig::parse(plugin.as_bytes())
        .unwrap_or_else(|error| panic!("the filter doesn't read it: {error}\n{plugin}"));
    let _ = Worker::new(
        FilterInstant::default(),
        &DRAW,
        &plugin,
        Box::new(Shared::default()),
    );
    let _ = Control::new(
        serve::settings(config, &serve::Birth::now(Some(1))),
        Instant::ZERO,
    );
    let envoy = settings::settings(config, "n", PathBuf::from("filter.wasm"));
    assert_eq!(envoy.pools.len(), config.pools.len());
}
