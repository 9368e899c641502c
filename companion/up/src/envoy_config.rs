//! `penstock envoy-config`: an Envoy bootstrap for a configuration, to run Envoy with by oneself.
//!
//! The bootstrap
//! holds what Envoy must know before the companion speaks. It has to be rendered again when pools, endpoints,
//! addresses or the body limit change; the rest of the policy reaches the filter by the companion. With `--envoy` pools
//! and endpoints are in a folder that Envoy watches and `penstock serve --envoy` keeps true.

use std::path::PathBuf;

use penstock_config::{self as config, Config, Environment};
use penstock_data_plane::settings::settings;
use penstock_data_plane::traces;
use penstock_envoy::{bootstrap, find, folder::Folder, limits};
use penstock_filter_module as filter_module;

use crate::http_filters;

/// Flags of `penstock envoy-config`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The path at which Envoy finds the filter's module; `penstock filter --out PATH` writes it. Default: the module is
    /// written into the user's cache directory
    #[arg(long, value_name = "PATH")]
    pub filter: Option<PathBuf>,
    /// Filters of Envoy's own to put before Penstock's, one that checks tokens for example: a file with one of Envoy's
    /// HttpFilter objects, or a list of them, in YAML or JSON; may be given several times.
    #[arg(long = "http-filter", value_name = "FILE")]
    pub http_filters: Vec<PathBuf>,
    /// A folder that Envoy sees under the same path: pools and endpoints are written there instead of into the
    /// bootstrap, and `penstock serve --envoy DIR` keeps them true while Envoy runs.
    #[arg(long, value_name = "DIR")]
    pub envoy: Option<PathBuf>,
    /// What this Envoy is called in logs and in the companion's status.
    #[arg(long, value_name = "NAME", default_value = "envoy")]
    pub node: String,
}

/// No bootstrap.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration can't be used.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The module can't be written.
    #[error("{0}; name another place with --filter")]
    Filter(#[from] filter_module::Error),
    /// A filter of the user's can't be used.
    #[error("--http-filter {0}")]
    HttpFilter(#[from] http_filters::Error),
    /// The folder can't be written.
    #[error("--envoy {}: {why}", folder.display())]
    Folder {
        /// Which.
        folder: PathBuf,
        /// Why.
        why: std::io::Error,
    },
    /// It can't be printed.
    #[error(transparent)]
    Yaml(#[from] bootstrap::Error),
}

impl Error {
    /// 2: bad usage or configuration, 1: failed at run time.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::HttpFilter(_) => 2,
            Self::Filter(_) | Self::Folder { .. } | Self::Yaml(_) => 1,
        }
    }
}

/// The bootstrap's text, as it is printed.
///
/// # Errors
/// When the configuration can't be used, or the filter's module can't be written.
pub fn render(args: Args, environment: &Environment) -> Result<String, Error> {
    let config = Config::read(&args.config, environment)?;
    let (filter, origin) = match args.filter {
        Some(path) => (
            path,
            "is where --filter says; put it there with `penstock filter --out PATH`",
        ),
        None => (
            filter_module::cached_in(&find::user_cache_dir())?,
            "was written into this user's cache directory; on another machine, say where it is with --filter",
        ),
    };
    let mut settings = settings(
        &config,
        &args.node,
        filter,
        traces::are_on(|name| std::env::var(name).ok()),
    );
    let (flag, changes) = match args.envoy {
        None => (
            String::new(),
            "pools, endpoints, addresses or the body limit change",
        ),
        Some(folder) => {
            settings.stream_idle_timeout = settings.stream_idle_timeout.max(limits::STREAM_IDLE_RELOADED);
            let written = Folder::open(&folder).and_then(|mut folder| {
                folder.write(&settings.pools)?;
                Ok(folder)
            });
            let written = written.map_err(|why| Error::Folder {
                folder: folder.clone(),
                why,
            })?;
            settings.folder = Some(written.path().to_owned());
            let flag = format!(" --envoy {}", folder.display());
            (
                flag,
                "addresses or the body limit change; pools and endpoints are in its folder",
            )
        }
    };
    let note = format!(
        "Envoy {} for Penstock {}, by `penstock envoy-config --config {}{flag}`.\n\
         The filter's module {origin}.\n\
         Render it again when {changes}.",
        find::VERSION,
        env!("CARGO_PKG_VERSION"),
        args.config.display(),
    );
    settings.http_filters = http_filters::read_all(&args.http_filters)?;
    Ok(bootstrap::yaml(&settings, &note)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "
limits: {body_bytes: 1MiB}
listen: {grpc: 'unix:/run/penstock.sock'}
tls: {cert: /etc/c.pem, key: /etc/k.pem, client_ca: a.pem}
pools:
- {name: a, models: ['a*'], endpoints: {static: ['127.0.0.1:1', '[::1]:2']}, queue: {ttl: 90s, no_endpoint_ttl: 5s}}
- {name: b, endpoints: {static: ['127.0.0.1:3']}, queue: {ttl: 1s, no_endpoint_ttl: 10s}, companion_down: {hold: 95s}}
";

    #[test]
    fn the_bootstrap_says_where_its_filter_comes_from() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("penstock.yaml");
        std::fs::write(&config, TWO).expect("written");
        let args = Args {
            config,
            filter: Some("/etc/penstock.wasm".into()),
            http_filters: Vec::new(),
            envoy: None,
            node: "n".into(),
        };
        let text = render(args.clone(), &Environment::default()).expect("rendered");
        assert!(
            text.starts_with("# Envoy ") && text.contains("penstock filter --out"),
            "{text}"
        );
        assert!(text.contains("filename: /etc/penstock.wasm"), "{text}");
        assert!(text.contains("127.0.0.1"), "the servers: {text}");

        let envoy = folder.path().join("envoy");
        let args = Args {
            envoy: Some(envoy.clone()),
            ..args
        };
        let text = render(args, &Environment::default()).expect("rendered");
        assert!(text.contains(&format!("--envoy {}`", envoy.display())), "{text}");
        let clusters = envoy.join("clusters.json");
        assert!(text.contains(&format!("path: {}", clusters.display())), "{text}");
        let written = std::fs::read_to_string(clusters).expect("an Envoy without a companion has it");
        assert!(written.contains("endpoints-a.json"), "{written}");
        let stands = "stream_idle_timeout: 900s";
        assert!(text.contains(stands), "a ttl may be raised later: {text}");
    }
}
