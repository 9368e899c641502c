//! `penstock envoy-config`: the Envoy bootstrap of a configuration, for an Envoy that `penstock up` doesn't run.
//!
//! The bootstrap contains pools, endpoints, addresses, the access log and the body limit, so a change of these needs a new
//! bootstrap. All other parts of the policy reach the filter through the companion. With `--envoy`, pools and endpoints are in
//! a folder that Envoy watches and `penstock serve --envoy` updates.

use std::fs::{self, Permissions};
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use penstock_config::{self as config, Config, Environment};
use penstock_data_plane::settings::{add_remembered, certificate, remembered, settings};
use penstock_data_plane::traces;
use penstock_envoy::certificate::Certificate;
use penstock_envoy::folder::Folder;
use penstock_envoy::{bootstrap, find, limits, yaml};
use penstock_errors::Failure;
use penstock_filter_module as filter_module;
use siphasher::sip::SipHasher13;

use crate::flags::{Filter, HostPort, code, named_module};
use crate::{http_filters, process_limits};

/// The file that names the certificate for clients, in the folder of `--envoy`.
const CERTIFICATE_FILE: &str = "certificate.json";
/// The smallest heap: less would be full of a few large bodies.
pub(crate) const HEAP_MIN: ByteSize = ByteSize::mib(256);

/// Flags of `penstock envoy-config`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The filter's module: `wasm`, which this command writes into the user's cache directory; `native`, likewise, for Envoy 1.39 and later on
    /// Linux; or the path of a file, as Envoy sees it, which `penstock filter --out PATH` writes. A native module's name must end with
    /// `.so`.
    #[arg(long, value_name = "wasm|native|PATH", default_value = "wasm")]
    pub filter: Filter,
    /// Envoy filters to put before Penstock's, for example one that checks tokens: a file with one of Envoy's HttpFilter
    /// objects, or a list of them, in YAML or JSON. May be given several times.
    #[arg(long = "http-filter", value_name = "FILE")]
    pub http_filters: Vec<PathBuf>,
    /// A folder for pools and endpoints, which are then not in the bootstrap. Envoy sees the folder under the same path,
    /// and `penstock serve --envoy DIR` updates it while Envoy runs.
    #[arg(long, value_name = "DIR")]
    pub envoy: Option<PathBuf>,
    /// The companion's gRPC address, as this Envoy sees it, HOST:PORT. Default: replicas.companions, or else listen.grpc.
    #[arg(long, value_name = "HOST:PORT")]
    pub companion: Option<HostPort>,
    /// The size of Envoy's heap, which holds the bodies of waiting requests, above which it sheds load. The process's memory
    /// limit must be larger.
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize::b(limits::HEAP_BYTES_MAX), value_parser = max_heap)]
    pub max_heap: ByteSize,
    /// The files that Envoy may have open (its hard limit: ulimit -Hn, LimitNOFILE). Clients' connections are limited to half of what
    /// Envoy doesn't need itself, at most 50,000, so that there is a descriptor for each request's connection to a server. `auto`: as
    /// many as this command may have open, for an Envoy in another container of the same pod or under the same service manager. Default:
    /// enough for 50,000, which Envoy must then be allowed.
    #[arg(long, value_name = "N|auto", default_value_t = limits::FILES_ASSUMED, value_parser = open_files)]
    pub open_files: u64,
    /// Write the bootstrap to a file instead of printing it. An existing file is replaced atomically.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
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
        /// The path.
        folder: PathBuf,
        /// The cause.
        why: io::Error,
    },
    /// The file that names the certificate for clients can't be written.
    #[error("listen.tls: {}: {why}", file.display())]
    Certificate {
        /// The path.
        file: PathBuf,
        /// The cause.
        why: io::Error,
    },
    /// The file of `--out` can't be written.
    #[error("--out {}: {why}", file.display())]
    Out {
        /// The path.
        file: PathBuf,
        /// The cause.
        why: io::Error,
    },
    /// Envoy needs an address that the configuration doesn't name.
    #[error(
        "listen.keep_alive: write the address at which the companions on this machine reach this Envoy, like 127.0.0.1:9195: a pool has queue.keep_alive"
    )]
    KeepAlive,
    /// Companions send the streams that they keep alive to an Envoy on their own machine.
    #[error(
        "--companion {0}: a pool has queue.keep_alive, for which the companion must be on Envoy's machine, at a loopback address"
    )]
    KeepAliveElsewhere(HostPort),
    /// The bootstrap can't be written as YAML.
    #[error(transparent)]
    Yaml(#[from] yaml::Error),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        matches!(self, Self::Config(_) | Self::HttpFilter(_) | Self::KeepAlive | Self::KeepAliveElsewhere(_))
    }
}

/// The bootstrap as YAML, after a comment that names its origin.
///
/// # Errors
/// When the configuration is invalid, or the filter's module or the folder can't be written.
pub fn render(args: Args, environment: &Environment) -> Result<String, Error> {
    let config = Config::read(&args.config, environment)?.read_secrets()?;
    if config.keeps_alive() && config.listen.keep_alive.is_none() {
        return Err(Error::KeepAlive);
    }
    if config.keeps_alive()
        && let Some(companion) = args.companion.as_ref().filter(|companion| !companion.is_loopback())
    {
        return Err(Error::KeepAliveElsewhere(companion.clone()));
    }
    let (filter, origin) = match args.filter {
        Filter::File(path) => {
            (named_module(&path), "is the file of --filter; write it with `penstock filter --out PATH`")
        }
        Filter::Own(kind) => (
            bootstrap::Module::file(code(kind), kind.cached_in(&find::user_cache_dir())?),
            "was written into this user's cache directory; for another machine, give its path with --filter",
        ),
    };
    let mut settings =
        settings(&config, &args.node, filter, traces::are_on(|name| environment.opentelemetry(name)));
    let certificate = certificate(&config);
    let written = certificate.map(|certificate| write_certificate(&certificate, args.envoy.as_deref()));
    settings.certificate = written.transpose()?;
    if let Some(companion) = &args.companion {
        settings.companions = companion.companions(config.replicas.is_some());
    }
    settings.heap_bytes_max = args.max_heap.as_u64();
    settings.connections_max = limits::connections_max(args.open_files, limits::WORKERS_ASSUMED);
    let (flag, changes) = match args.envoy {
        None => (String::new(), "pools, endpoints, addresses, the access log or the body limit change"),
        Some(folder) => {
            let written = Folder::open(&folder).and_then(|mut folder| {
                add_remembered(&mut settings.pools, &remembered(&config, &folder));
                folder.write(&settings.pools)?;
                Ok(folder)
            });
            let written = written.map_err(|why| Error::Folder { folder: folder.clone(), why })?;
            settings.folder = Some(written.path().to_owned());
            let flag = format!(" --envoy {}", folder.display());
            (
                flag,
                "addresses, the access log or the body limit change; pools and endpoints are in the folder",
            )
        }
    };
    let command = format!("penstock envoy-config --config {}{flag}", args.config.display());
    let note = note(&command, origin, changes, settings.connections_max, args.open_files);
    settings.http_filters = http_filters::read_all(&args.http_filters)?;
    Ok(yaml::text(&[bootstrap::document(&settings)], &note)?)
}

/// The comment at the beginning of a bootstrap.
fn note(command: &str, origin: &str, changes: &str, connections: u64, files: u64) -> String {
    format!(
        "Envoy {} for Penstock {}, by `{command}`.\n\
         The filter's module {origin}.\n\
         Envoy refuses clients' connections above {connections} and must be allowed {files} open files (ulimit -Hn, LimitNOFILE).\n\
         Print a new bootstrap when {changes}.",
        find::VERSION,
        env!("CARGO_PKG_VERSION"),
    )
}

/// Writes the file that names the certificate for clients, into the folder for Envoy or the user's cache directory. Returns its
/// absolute path.
fn write_certificate(certificate: &Certificate, folder: Option<&Path>) -> Result<PathBuf, Error> {
    let file = match folder {
        Some(folder) => folder.join(CERTIFICATE_FILE),
        None => cached_certificate_file(certificate),
    };
    let folder = file.parent().unwrap_or(Path::new("."));
    let written = fs::create_dir_all(folder).and_then(|()| certificate.write(&file));
    let path = written.and_then(|()| std::path::absolute(&file));
    path.map_err(|why| Error::Certificate { file, why })
}

/// The file without a folder for Envoy, one for each certificate, in the user's cache directory.
fn cached_certificate_file(certificate: &Certificate) -> PathBuf {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    certificate.cert.hash(&mut hasher);
    certificate.key.hash(&mut hasher);
    let name = format!("penstock-certificate-{:016x}.json", hasher.finish());
    find::user_cache_dir().join(name)
}

/// A heap that is too small for one request would refuse all of them.
fn max_heap(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse()?;
    if size < HEAP_MIN {
        return Err(format!("must be at least {HEAP_MIN}"));
    }
    Ok(size)
}

/// The files of `--open-files`.
fn open_files(text: &str) -> Result<u64, String> {
    match text {
        "auto" => process_limits::open_files()
            .map_err(|error| format!("the limit of open files isn't known: {error}")),
        number => number.parse().map_err(|_| "must be a whole number, or auto".to_owned()),
    }
}

/// Writes the bootstrap to a file, atomically and readable for Envoy, which may run as another user.
///
/// # Errors
/// When the folder doesn't exist or can't be written to.
pub fn write(bootstrap: &str, path: &Path) -> Result<(), Error> {
    let failed = |why| Error::Out { file: path.to_owned(), why };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = tempfile::Builder::new()
        .prefix(".penstock-envoy")
        .tempfile_in(folder.unwrap_or(Path::new(".")))
        .map_err(failed)?;
    file.write_all(bootstrap.as_bytes()).map_err(failed)?;
    // The mask of the process may have taken the permission.
    fs::set_permissions(file.path(), Permissions::from_mode(0o644)).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
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
            filter: Filter::File("/etc/penstock.wasm".into()),
            http_filters: Vec::new(),
            envoy: None,
            companion: None,
            max_heap: ByteSize::gib(1),
            open_files: limits::FILES_ASSUMED,
            out: None,
            node: "n".into(),
        };
        let text = render(args, &Environment::default()).expect("rendered");
        let (_, cluster) = text.split_once("- name: penstock~companion").expect("the companions' cluster");
        for line in ["port_value: 9190", "port_value: 9290", "- header: x-penstock-companion"] {
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
            filter: Filter::File("/etc/penstock.wasm".into()),
            http_filters: Vec::new(),
            envoy: None,
            companion: None,
            max_heap: ByteSize::gib(1),
            open_files: limits::FILES_ASSUMED,
            out: None,
            node: "n".into(),
        };
        let text = render(args.clone(), &Environment::default()).expect("rendered");
        assert!(text.starts_with("# Envoy ") && text.contains("penstock filter --out"), "{text}");
        assert!(text.contains("filename: /etc/penstock.wasm"), "{text}");
        assert!(text.contains("127.0.0.1"), "the endpoints: {text}");

        let envoy = folder.path().join("envoy");
        let args = Args { envoy: Some(envoy.clone()), ..args };
        let text = render(args.clone(), &Environment::default()).expect("rendered");
        assert!(text.contains(&format!("--envoy {}`", envoy.display())), "{text}");
        let clusters = envoy.join("clusters.json");
        assert!(text.contains(&format!("path: {}", clusters.display())), "{text}");
        let written = std::fs::read_to_string(clusters).expect("the folder has it before a companion runs");
        assert!(written.contains("endpoints-chat.json"), "{written}");
        std::fs::write(&args.config, CONFIG.replace("static: ['127.0.0.1:8001']", "file: l"))
            .expect("written");
        render(args.clone(), &Environment::default()).expect("rendered");
        let endpoints = std::fs::read_to_string(envoy.join("endpoints-chat.json")).expect("there");
        assert!(
            endpoints.contains("8001"),
            "nothing was discovered yet, so Envoy keeps the server: {endpoints}"
        );
    }

    #[test]
    fn a_companion_elsewhere_is_named_by_a_flag() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("penstock.yaml");
        std::fs::write(&config, CONFIG).expect("written");
        let args = Args {
            config,
            filter: Filter::File("/etc/penstock.wasm".into()),
            http_filters: Vec::new(),
            envoy: None,
            companion: Some("penstock.models:9190".parse().expect("an address")),
            max_heap: ByteSize::gib(1),
            open_files: limits::FILES_ASSUMED,
            out: None,
            node: "n".into(),
        };
        let text = render(args, &Environment::default()).expect("rendered");
        assert!(text.contains("address: penstock.models"), "{text}");
        assert!(text.contains("max_heap_size_bytes: 1073741824"), "{text}");
        assert!(text.contains("max_active_downstream_connections: 50000"), "{text}");
        assert!(max_heap("1MB").expect_err("too small").contains("256.0 MiB"));
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, "old").expect("written");
        write(&text, &file).expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("it is there"), text);
        let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        let nowhere = write(&text, Path::new("/nowhere/envoy.yaml")).expect_err("no such folder");
        assert!(nowhere.to_string().starts_with("--out /nowhere/envoy.yaml: "), "{nowhere}");
    }

    #[test]
    fn auto_is_the_hard_limit_of_the_command() {
        let hard = process_limits::open_files().expect("the system has a limit");
        assert_eq!(open_files("auto"), Ok(hard));
        assert_eq!(open_files("20000"), Ok(20_000));
        for wrong in ["", "-1", "1e6", "hard"] {
            assert!(open_files(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn clients_get_half_of_the_files_that_envoy_may_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("penstock.yaml");
        std::fs::write(&config, CONFIG).expect("written");
        let args = Args {
            config,
            filter: Filter::File("/etc/penstock.wasm".into()),
            http_filters: Vec::new(),
            envoy: None,
            companion: None,
            max_heap: ByteSize::gib(1),
            open_files: 20_000,
            out: None,
            node: "n".into(),
        };
        let text = render(args, &Environment::default()).expect("rendered");
        assert!(text.contains("max_active_downstream_connections: 9840"), "{text}");
        let note = "Envoy refuses clients' connections above 9840 and must be allowed 20000 open files";
        assert!(text.contains(note), "{text}");
    }
}
