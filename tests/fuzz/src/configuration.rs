//! The configuration parser: a document is rejected with its line and key, or everything that a start builds from it
//! works.

use penstock_config::{Config, Error};
use penstock_control::Control;
use penstock_data_plane::{filter_policy, settings};
use penstock_engine::Instant;
use penstock_envoy::bootstrap::{Code, Module};
use penstock_filter_core::config::Config as PluginConfig;
use penstock_filter_core::time::Instant as FilterInstant;
use penstock_filter_core::worker::Worker;
use penstock_server::control_settings;

use super::host::{DRAW, Shared};

/// The largest document that is parsed, in bytes.
const DOCUMENT_BYTES_MAX: usize = 16 << 10;

/// Parses the input like `penstock validate`, and builds everything from a valid document that a start builds.
pub fn run(input: &[u8]) {
    let Ok(text) = core::str::from_utf8(input) else {
        return;
    };
    if text.len() > DOCUMENT_BYTES_MAX {
        return;
    }
    match Config::parse(text, "f.yaml") {
        Ok(config) => assert_starts(&config),
        Err(error) => assert_located(&error, text),
    }
}

fn assert_located(error: &Error, text: &str) {
    let Error::Document { file, line, key, message } = error else {
        panic!("an error without a document: {error}");
    };
    assert_eq!(file, "f.yaml");
    let lines = text.split('\n').count() as u64;
    assert!((1..=lines + 1).contains(line), "line {line} of {lines}: {error}");
    assert!(!key.is_empty() && !message.is_empty(), "{error}");
}

fn assert_starts(config: &Config) {
    assert!(!config.pools.is_empty());
    let _ = filter_policy::frame(config, false);
    // The configuration that Envoy gets for a cold start must be one that the filter reads.
    let plugin = filter_policy::plugin_configuration(config, "n", false).to_string();
    let plugin = PluginConfig::parse(plugin.as_bytes())
        .unwrap_or_else(|error| panic!("the filter doesn't read it: {error}\n{plugin}"));
    let _ = Worker::new(FilterInstant::default(), &DRAW, &plugin, Box::new(Shared::default()));
    let _ = Control::new(
        control_settings::settings(config, &control_settings::ProcessIdentity::now(Some(1), false)),
        Instant::ZERO,
    );
    let envoy = settings::settings(config, "n", Module::file(Code::Wasm, "filter.wasm"), false);
    assert_eq!(envoy.pools.len(), config.pools.len());
}
