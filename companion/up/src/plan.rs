//! Preparation of `penstock up`: reserves addresses, writes files and finds Envoy. No process runs yet.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use penstock_config::{Address, Config, Listen, Pool};
use penstock_data_plane::settings::{certificate, settings};
use penstock_data_plane::traces;
use penstock_envoy::folder::Folder;
use penstock_envoy::run::Launch;
use penstock_envoy::{bootstrap, find, limits};
use penstock_filter_module::Kind;
use serde_json::json;
use tempfile::TempDir;

use super::companions::{self, Companion, Etcd, Lease};
use super::{Error, Options, backend};
use crate::envoy_config::HEAP_MIN;
use crate::flags::code;
use crate::{certificate_files, http_filters, process_limits};
use penstock_envoy::ports::Ports;

/// The name of the only pool without a configuration file.
const POOL: &str = "default";

/// Everything that is decided before the first start and reused by every restart.
#[derive(Debug)]
pub(super) struct Plan {
    /// The addresses to listen on, those of the first companion among them. No port is 0.
    pub listen: Listen,
    /// At least one.
    pub companions: Vec<Companion>,
    /// The etcd that keeps the lease; `None`: none is run here.
    pub etcd: Option<Etcd>,
    /// Where the leader's lease is kept; `None`: there is one companion, or the configuration names the store.
    pub lease: Option<Lease>,
    pub config: PathBuf,
    pub drain: std::time::Duration,
    pub envoy: Launch,
    /// What Envoy runs the filter as.
    pub filter: Kind,
    /// Number of the filter's configurations in Envoy.
    pub plugins: u32,
    /// Directory with pools and endpoints, written by the companion and read by Envoy.
    pub pools: PathBuf,
    /// Names and addresses of the model servers in the configuration file.
    pub servers: Vec<(String, SocketAddr)>,
    /// The model servers of --backend.
    pub backends: Vec<backend::Backend>,
    /// The first pool. With --backend it is the only one.
    pub pool: Pool,
    /// Keeps the addresses reserved.
    _ports: Ports,
    /// Dropping it deletes the generated files.
    _directory: TempDir,
}

/// A configuration and the model servers in it.
struct Source {
    config: Config,
    file: PathBuf,
    servers: Vec<(String, SocketAddr)>,
    backends: Vec<backend::Backend>,
}

impl Source {
    async fn read(options: &Options, directory: &Path) -> Result<Self, Error> {
        match (&options.config, options.backends.as_slice()) {
            (Some(_), [_, ..]) => Err(Error::Both),
            (None, []) => Err(Error::Neither),
            (Some(file), []) => {
                let config = Config::read(file, &options.environment)?;
                Ok(Self { servers: servers_of(&config), config, file: file.clone(), backends: Vec::new() })
            }
            (None, urls) => {
                let backends = backend::resolve(urls).await?;
                let file = write_config(directory, &backends)?;
                Ok(Self {
                    config: Config::read(&file, &options.environment)?,
                    file,
                    servers: Vec::new(),
                    backends,
                })
            }
        }
    }
}

impl Plan {
    pub(super) async fn new(options: &Options) -> Result<Self, Error> {
        let directory = tempfile::Builder::new().prefix("penstock-").tempdir().map_err(Error::Directory)?;
        let Source { mut config, file, servers, backends } = Source::read(options, directory.path()).await?;
        let mut ports = reserve_ports(&mut config.listen, options)?;
        if config.keeps_alive() {
            let address = config.listen.keep_alive.unwrap_or(companions::ANY);
            config.listen.keep_alive = Some(ports.reserve(address, "listen.keep_alive", "that key")?);
        }
        let keep_alive = config.listen.keep_alive;
        let mut companions = companions::reserve(options, &config.listen, &mut ports)?;
        let (mut etcd, mut lease) = (None, None);
        if let [_, _, ..] = companions.as_slice() {
            if config.replicas.is_none() {
                etcd = find_etcd(directory.path(), &mut ports)?;
                lease = Some(choose_lease(etcd.as_ref(), directory.path()));
            }
            companions::introduce(&mut companions, lease.as_ref());
            for companion in companions.iter().rev() {
                config = companions::configuration(companion, &file, &options.environment, &config.listen)?;
            }
        }
        if let Some(address) = keep_alive {
            companions::add_keep_alive(&mut companions, address);
        }
        config = config.read_secrets()?;
        let (bootstrap, pools, plugins) = write_bootstrap(&config, options, directory.path())?;
        let envoy = Launch {
            binary: find_envoy(options.filter).await?,
            bootstrap,
            admin: config.listen.envoy_admin,
            workers: options.workers.unwrap_or_else(cores),
        };
        Ok(Self {
            listen: config.listen,
            companions,
            etcd,
            lease,
            config: file,
            drain: config.drain,
            envoy,
            filter: options.filter,
            plugins,
            pools,
            servers,
            backends,
            pool: config.pools.swap_remove(0),
            _ports: ports,
            _directory: directory,
        })
    }
}

/// An etcd of this machine, unless this build can't use it.
fn find_etcd(directory: &Path, ports: &mut Ports) -> Result<Option<Etcd>, Error> {
    if !penstock_config::Lease::supports_etcd() {
        return Ok(None);
    }
    Etcd::find(std::env::var_os("PATH").as_deref(), directory.join("etcd"), ports)
}

fn choose_lease(etcd: Option<&Etcd>, directory: &Path) -> Lease {
    match etcd {
        Some(etcd) => {
            tracing::info!(
                client = %etcd.client,
                program = %etcd.binary.display(),
                "the leader's lease is in an etcd that this command runs"
            );
            Lease::Etcd(etcd.client)
        }
        None => {
            let file = directory.join("lease");
            tracing::info!(
                file = %file.display(),
                "the leader's lease is in a file, which works on one machine only: there is no etcd on the PATH, or this binary can't use one"
            );
            Lease::File(file)
        }
    }
}

/// Writes Envoy's bootstrap and the filter's module. Returns the bootstrap's path, the directory of pools and endpoints, and the number of the
/// filter's configurations.
fn write_bootstrap(
    config: &Config,
    options: &Options,
    directory: &Path,
) -> Result<(PathBuf, PathBuf, u32), Error> {
    let filter = directory.join(options.filter.file_name()?);
    options.filter.write_to(&filter)?;
    let mut settings = settings(
        config,
        "up",
        bootstrap::Module::file(code(options.filter), filter),
        traces::are_on(|name| options.environment.opentelemetry(name)),
    );
    settings.http_filters = http_filters::read_all(&options.http_filters)?;
    limit_to_process(&mut settings, options.workers.unwrap_or_else(cores));
    if let Some(certificate) = certificate(config) {
        certificate_files::check(&certificate)?;
        let file = directory.join("certificate.json");
        certificate.write(&file).map_err(Error::Directory)?;
        settings.certificate = Some(file);
    }
    let mut pools = Folder::open(&directory.join("envoy")).map_err(Error::Directory)?;
    pools.write(&settings.pools).map_err(Error::Directory)?;
    settings.folder = Some(pools.path().to_owned());
    let bootstrap = directory.join("envoy.json");
    let document = bootstrap::document(&settings);
    write(&bootstrap, &document.to_string())?;
    Ok((bootstrap, pools.path().to_owned(), settings.plugins()))
}

/// Keeps Envoy's limits within what the operating system allows here.
fn limit_to_process(settings: &mut bootstrap::Settings, workers: u32) {
    match process_limits::open_files() {
        Ok(open_files) => {
            settings.connections_max = limits::connections_max(open_files, workers);
            let connections = settings.connections_max;
            if connections < limits::CONNECTIONS_MAX {
                tracing::warn!(
                    open_files,
                    "Envoy refuses clients' connections above {connections}, because it may open {open_files} files and keeps half of \
                     them for connections to servers: raise the hard limit of open files (ulimit -Hn, LimitNOFILE) for more"
                );
            }
        }
        Err(error) => {
            tracing::warn!(%error, "the limit of open files isn't known: Envoy takes up to {} connections", settings.connections_max);
        }
    }
    if let Some(memory) = process_limits::memory() {
        settings.heap_bytes_max = limits::heap_bytes_max(memory, HEAP_MIN.as_u64());
        let heap = ByteSize::b(settings.heap_bytes_max);
        tracing::info!(
            "Envoy refuses requests when its heap has {heap}: this process may use {} of memory",
            ByteSize::b(memory)
        );
    }
}

async fn find_envoy(filter: Kind) -> Result<PathBuf, Error> {
    // The search runs programs and may download Envoy, so it blocks.
    let found = tokio::task::spawn_blocking(|| find::Search::here().find()).await;
    let found = found.map_err(|_| Error::Interrupted)??;
    tracing::info!(version = found.version, path = %found.path.display(), "Envoy is {}", found.source);
    if filter == Kind::Native && found.lacks_native() {
        return Err(Error::TooOldForNative(found.version));
    }
    if found.is_older() {
        tracing::warn!(
            "Envoy {} is older than {}, with which Penstock is tested",
            found.version,
            find::VERSION
        );
    }
    Ok(found.path)
}

/// Reserves the addresses. Flags override the configuration, and port 0 becomes a free port. Without a configuration
/// file, addresses that no flag chooses may move to a free port: if the default is in use, or always if `--port` is
/// given, which suggests another gateway on this machine.
fn reserve_ports(listen: &mut Listen, options: &Options) -> Result<Ports, Error> {
    let mut ports = Ports::default();
    let from_file = options.config.is_some();
    let mut reserve = |address: &mut SocketAddr, flag: Option<u16>, key, remedy| {
        if let Some(port) = flag {
            address.set_port(port);
        }
        let chosen = from_file || flag.is_some() || key == "listen.gateway";
        *address = match (chosen, options.port) {
            (true, _) => ports.reserve(*address, key, remedy)?,
            (false, None) => ports.reserve_or_free(*address, key, remedy)?,
            (false, Some(_)) => ports.reserve(SocketAddr::new(address.ip(), 0), key, remedy)?,
        };
        Ok::<_, Error>(())
    };
    reserve(&mut listen.gateway, options.port, "listen.gateway", "--port")?;
    reserve(&mut listen.envoy_admin, options.admin_port, "listen.envoy_admin", "--admin-port")?;
    for (address, key) in [(&mut listen.grpc, "listen.grpc"), (&mut listen.http, "listen.http")] {
        if let Address::Tcp(address) = address {
            reserve(address, None, key, "that key")?;
        }
    }
    Ok(ports)
}

/// Names and addresses of the model servers in a configuration.
fn servers_of(config: &Config) -> Vec<(String, SocketAddr)> {
    let servers = config.pools.iter().flat_map(|pool| {
        pool.endpoints
            .iter()
            .map(|endpoint| (format!("{} of pool {}", endpoint.address, pool.name), endpoint.address))
    });
    servers.collect()
}

/// Writes a configuration for --backend, as JSON, which is valid YAML.
fn write_config(directory: &Path, backends: &[backend::Backend]) -> Result<PathBuf, Error> {
    let addresses: Vec<String> = backends.iter().map(|backend| backend.address.to_string()).collect();
    let file = directory.join("penstock.yaml");
    let document = json!({ "pools": [{ "name": POOL, "endpoints": { "static": addresses } }] });
    write(&file, &document.to_string())?;
    Ok(file)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::Directory)
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}
