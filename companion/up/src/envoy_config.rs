//! `penstock envoy-config`: the Envoy bootstrap of a configuration, for an Envoy that `penstock up` doesn't run.
//!
//! The bootstrap contains pools, endpoints, addresses, the access log and the body limit, so a change of these needs a new
//! bootstrap. All other parts of the policy reach the filter through the companion. With `--envoy`, pools and endpoints are in
//! a folder that Envoy watches and `penstock serve --envoy` updates.

use std::path::PathBuf;

use penstock_config::{self as config, Config, Environment};
use penstock_data_plane::settings::settings;
use penstock_data_plane::traces;
use penstock_envoy::{bootstrap, find, folder::Folder, limits, yaml};
use penstock_filter_module as filter_module;

use crate::http_filters;

/// Flags of `penstock envoy-config`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The path of the filter's module, as Envoy sees it; `penstock filter --out PATH` writes it. Default: this command
    /// writes the module into the user's cache directory.
    #[arg(long, value_name = "PATH")]
    pub filter: Option<PathBuf>,
    /// Envoy filters to put before Penstock's, for example one that checks tokens: a file with one of Envoy's HttpFilter
    /// objects, or a list of them, in YAML or JSON. May be given several times.
    #[arg(long = "http-filter", value_name = "FILE")]
    pub http_filters: Vec<PathBuf>,
    /// A folder for pools and endpoints, which are then not in the bootstrap. Envoy sees the folder under the same path,
    /// and `penstock serve --envoy DIR` updates it while Envoy runs.
    #[arg(long, value_name = "DIR")]
    pub envoy: Option<PathBuf>,
    /// The name of this Envoy in logs and in the companion's status.
    #[arg(long, value_name = "NAME", default_value = "envoy")]
    pub node: String,
}

/// Why no bootstrap could be printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The module can't be written.
    #[error("{0}; give another path with --filter")]
    Filter(#[from] filter_module::Error),
    /// A file of `--http-filter` is invalid.
    #[error("--http-filter {0}")]
    HttpFilter(#[from] http_filters::Error),
    /// The folder can't be written.
    #[error("--envoy {}: {why}", folder.display())]
    Folder {
        /// Its path.
        folder: PathBuf,
        /// The cause.
        why: std::io::Error,
    },
    /// The bootstrap can't be written as YAML.
    #[error(transparent)]
    Yaml(#[from] yaml::Error),
}

impl Error {
    /// The exit code: 2 for bad usage or configuration, 1 for a failure at run time.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::HttpFilter(_) => 2,
            Self::Filter(_) | Self::Folder { .. } | Self::Yaml(_) => 1,
        }
    }
}

/// The bootstrap as YAML, after a comment that names its origin.
///
/// # Errors
/// When the configuration is invalid, or the filter's module or the folder can't be written.
pub fn render(args: Args, environment: &Environment) -> Result<String, Error> {
    let config = Config::read(&args.config, environment)?;
    let (filter, origin) = match args.filter {
        Some(path) => (
            path,
            "is the file of --filter; write it with `penstock filter --out PATH`",
        ),
        None => (
            filter_module::cached_in(&find::user_cache_dir())?,
            "was written into this user's cache directory; for another machine, give its path with --filter",
        ),
    };
    let mut settings = settings(
        &config,
        &args.node,
        bootstrap::Module::File(filter),
        traces::are_on(|name| environment.opentelemetry(name)),
    );
    let (flag, changes) = match args.envoy {
        None => (
            String::new(),
            "pools, endpoints, addresses, the access log or the body limit change",
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
                "addresses, the access log or the body limit change; pools and endpoints are in the folder",
            )
        }
    };
    let note = format!(
        "Envoy {} for Penstock {}, by `penstock envoy-config --config {}{flag}`.\n\
         The filter's module {origin}.\n\
         Print a new bootstrap when {changes}.",
        find::VERSION,
        env!("CARGO_PKG_VERSION"),
        args.config.display(),
    );
    settings.http_filters = http_filters::read_all(&args.http_filters)?;
    Ok(yaml::text(&[bootstrap::document(&settings)], &note)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "pools: [{name: chat, endpoints: {static: ['127.0.0.1:8001']}}]";

    #[test]
    fn the_bootstrap_has_all_companions_of_replicas() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("penstock.yaml");
        let replicas = "replicas: {companions: ['127.0.0.1:9190', '127.0.0.1:9290'], lease: {file: l}}";
        std::fs::write(&config, format!("{replicas}\n{CONFIG}")).expect("written");
        let args = Args {
            config,
            filter: Some("/etc/penstock.wasm".into()),
            http_filters: Vec::new(),
            envoy: None,
            node: "n".into(),
        };
        let text = render(args, &Environment::default()).expect("rendered");
        let (_, cluster) = text
            .split_once("- name: penstock~companion")
            .expect("the companions' cluster");
        for line in [
            "port_value: 9190",
            "port_value: 9290",
            "- header: x-penstock-companion",
        ] {
            assert!(cluster.contains(line), "{line}: {cluster}");
        }
    }

    #[test]
    fn the_bootstrap_names_the_origin_of_its_filter() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("penstock.yaml");
        std::fs::write(&config, CONFIG).expect("written");
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
        assert!(text.contains("127.0.0.1"), "the endpoints: {text}");

        let envoy = folder.path().join("envoy");
        let args = Args {
            envoy: Some(envoy.clone()),
            ..args
        };
        let text = render(args, &Environment::default()).expect("rendered");
        assert!(text.contains(&format!("--envoy {}`", envoy.display())), "{text}");
        let clusters = envoy.join("clusters.json");
        assert!(text.contains(&format!("path: {}", clusters.display())), "{text}");
        let written = std::fs::read_to_string(clusters).expect("the folder has it before a companion runs");
        assert!(written.contains("endpoints-chat.json"), "{written}");
        assert!(
            text.contains("stream_idle_timeout: 900s"),
            "a ttl may be raised later: {text}"
        );
    }
}
