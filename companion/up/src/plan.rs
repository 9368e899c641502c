//! What `penstock up` is going to start: addresses settled, files written, Envoy found. Nothing runs yet.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use penstock_config::{Address, Config, Listen, Pool};
use penstock_data_plane::settings::settings;
use penstock_envoy::{bootstrap, find, folder::Folder, limits, run::Launch};
use penstock_filter_module as filter_module;
use serde_json::json;
use tempfile::TempDir;

use super::{Error, Options, backend, ports::Ports};
use crate::http_filters;

/// The one pool of a gateway without a configuration.
const POOL: &str = "default";

/// All that is decided before the first start, and that every restart uses again.
#[derive(Debug)]
pub(super) struct Plan {
    /// Settled: no port is 0.
    pub listen: Listen,
    pub config: PathBuf,
    pub drain: std::time::Duration,
    pub envoy: Launch,
    /// Where Envoy reads pools and endpoints, and the companion writes them.
    pub pools: PathBuf,
    /// What the model servers of a file are called, and where they are.
    pub servers: Vec<(String, SocketAddr)>,
    /// The model servers without a file.
    pub backends: Vec<backend::Backend>,
    /// The first pool: theirs.
    pub pool: Pool,
    /// Holds the addresses.
    _ports: Ports,
    /// Holds the files; they go with it.
    _folder: TempDir,
}

impl Plan {
    pub(super) async fn new(options: &Options) -> Result<Self, Error> {
        let folder = tempfile::Builder::new()
            .prefix("penstock-")
            .tempdir()
            .map_err(Error::Folder)?;
        let (mut config, file, servers, backends) = match (&options.config, options.backends.as_slice()) {
            (Some(_), [_, ..]) => return Err(Error::Both),
            (None, []) => return Err(Error::Neither),
            (Some(file), []) => {
                let config = Config::read(file)?;
                let servers = of_config(&config);
                (config, file.clone(), servers, Vec::new())
            }
            (None, urls) => {
                let backends = backend::resolve(urls).await?;
                let file = write_config(folder.path(), &backends)?;
                let config = Config::read(&file)?;
                (config, file, Vec::new(), backends)
            }
        };
        let ports = settle(&mut config.listen, options)?;

        let filter = folder.path().join(filter_module::file_name());
        filter_module::write_to(&filter)?;
        let bootstrap = folder.path().join("envoy.json");
        let mut settings = settings(&config, "up", filter);
        settings.http_filters = http_filters::read_all(&options.http_filters)?;
        let mut pools = Folder::open(&folder.path().join("envoy")).map_err(Error::Folder)?;
        pools.write(&settings.pools).map_err(Error::Folder)?;
        settings.folder = Some(pools.path().to_owned());
        settings.stream_idle_timeout = settings.stream_idle_timeout.max(limits::STREAM_IDLE_RELOADED);
        let document = bootstrap::document(&settings);
        write(&bootstrap, &document.to_string())?;
        // It may download, and it runs programs.
        let found = tokio::task::spawn_blocking(|| find::Search::here().find()).await;
        let found = found.map_err(|_| Error::Interrupted)??;
        tracing::info!(version = found.version, path = %found.path.display(), "Envoy is {}", found.source);
        if found.is_older() {
            tracing::warn!(
                "this Envoy is {}; Penstock is tested with {}",
                found.version,
                find::VERSION
            );
        }
        let envoy = Launch {
            binary: found.path,
            bootstrap,
            admin: config.listen.envoy_admin,
            workers: options.workers.unwrap_or_else(cores),
        };
        Ok(Self {
            listen: config.listen,
            config: file,
            drain: config.drain,
            envoy,
            pools: pools.path().to_owned(),
            servers,
            backends,
            pool: config.pools.swap_remove(0),
            _ports: ports,
            _folder: folder,
        })
    }
}

/// Flags over the file, and a free port for 0. Without a file nobody named the addresses that no flag names: any will
/// do, the usual ones if they are free, unless `--port` hints at another gateway on this machine.
fn settle(listen: &mut Listen, options: &Options) -> Result<Ports, Error> {
    let mut ports = Ports::default();
    let from_file = options.config.is_some();
    let mut settle = |address: &mut SocketAddr, flag: Option<u16>, key, remedy| {
        if let Some(port) = flag {
            address.set_port(port);
        }
        let named = from_file || flag.is_some() || key == "listen.gateway";
        *address = match (named, options.port) {
            (true, _) => ports.settle(*address, key, remedy)?,
            (false, None) => ports.settle_near(*address, key, remedy)?,
            (false, Some(_)) => ports.settle(SocketAddr::new(address.ip(), 0), key, remedy)?,
        };
        Ok::<_, Error>(())
    };
    settle(&mut listen.gateway, options.port, "listen.gateway", "--port")?;
    settle(
        &mut listen.envoy_admin,
        options.admin_port,
        "listen.envoy_admin",
        "--admin-port",
    )?;
    for (address, key) in [
        (&mut listen.grpc, "listen.grpc"),
        (&mut listen.http, "listen.http"),
    ] {
        if let Address::Tcp(address) = address {
            settle(address, None, key, "that key")?;
        }
    }
    Ok(ports)
}

fn of_config(config: &Config) -> Vec<(String, SocketAddr)> {
    let servers = config.pools.iter().flat_map(|pool| {
        pool.endpoints.iter().map(|endpoint| {
            (
                format!("{} of pool {}", endpoint.address, pool.name),
                endpoint.address,
            )
        })
    });
    servers.collect()
}

/// JSON is YAML.
fn write_config(folder: &Path, backends: &[backend::Backend]) -> Result<PathBuf, Error> {
    let addresses: Vec<String> = backends
        .iter()
        .map(|backend| backend.address.to_string())
        .collect();
    let file = folder.join("penstock.yaml");
    let document = json!({ "pools": [{ "name": POOL, "endpoints": { "static": addresses } }] });
    write(&file, &document.to_string())?;
    Ok(file)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(Error::Folder)
}

fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}
