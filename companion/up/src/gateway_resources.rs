//! `penstock gateway-resources`: the resources that put Penstock into the Envoys of a Kubernetes Gateway.
//!
//! They contain the pools, how the gateway finds their servers, the companion's address, the digest of the filter's module, and the
//! limit on bodies, so a change of these needs new resources. All other parts of the policy reach the filter through the
//! companion.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::ValueEnum as _;
use penstock_config::{self as config, Config, Discovery, Environment, KubernetesObject};
use penstock_data_plane::settings::{settings, upstream};
use penstock_data_plane::traces;
use penstock_envoy::bootstrap::{Address, Code, Companions, Module, RemoteModule, Settings, Source};
use penstock_envoy::gateway_resources::{self, Gateway, Listener, Pool, Servers};
use penstock_envoy::yaml;
use penstock_errors::Failure;
use penstock_filter_module as filter_module;

use crate::flags::{self, GatewayName, HostPort, PoolService};

/// The path at which the companion serves the filter's module.
const fn module_path(kind: filter_module::Kind) -> &'static str {
    match kind {
        filter_module::Kind::Wasm => "/penstock.wasm",
        filter_module::Kind::Native => "/penstock.so",
    }
}

/// Flags of `penstock gateway-resources`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The Gateway. The resources get its namespace.
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub gateway: GatewayName,
    /// The gateway's implementation.
    #[arg(long = "for", value_enum, value_name = "KIND", default_value = "envoy-gateway")]
    pub kind: Kind,
    /// A listener of the Gateway that gets the filter, with its port unless the name is http or https. May be given several
    /// times. Default: http and https, and with --for istio all listeners.
    #[arg(long = "listener", value_name = "NAME[:PORT]", value_parser = flags::listener)]
    pub listeners: Vec<Listener>,
    /// The companion's gRPC address, as Envoy sees it. Default: replicas.companions, or else listen.grpc.
    #[arg(long, value_name = "HOST:PORT")]
    pub companion: Option<HostPort>,
    /// The address from which Envoy fetches the filter's module. Default: http://ADDRESS/penstock.wasm, or penstock.so, with the address
    /// of listen.http. A native module may be a file of Envoy's pods: file:///PATH.so.
    #[arg(long, value_name = "URL")]
    pub module: Option<url::Url>,
    /// What Envoy runs the filter as. `native` needs no EnvoyPatchPolicy.
    #[arg(long, value_enum, value_name = "KIND", default_value = "wasm")]
    pub filter: filter_module::Kind,
    /// Queue a request again that no server accepted. As WebAssembly it needs an internal listener in Envoy's bootstrap; the native filter
    /// always does so.
    #[arg(long)]
    pub requeue: bool,
    /// The Service of a pool's model servers, by which the gateway finds them. Required for pools that the companion finds by a file,
    /// an InferencePool or a Service. May be given for several pools.
    #[arg(long = "service", value_name = "POOL=[NAMESPACE/]NAME:PORT")]
    pub services: Vec<PoolService>,
}

/// An implementation of the Gateway API with Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Envoy Gateway, tried with 1.9.1.
    EnvoyGateway,
    /// Istio.
    Istio,
}

/// Why no resources could be printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// `listen.grpc` is no address for Envoys on other machines.
    #[error(
        "listen.grpc is {0}: give the address at which Envoy reaches the companion, --companion HOST:PORT"
    )]
    Companion(String),
    /// `listen.http` is no address for Envoys on other machines.
    #[error(
        "listen.http is {0}: give the address from which Envoy fetches the filter's module, --module http://HOST:PORT{1}"
    )]
    ModuleAddress(String, &'static str),
    /// Envoy can't fetch this.
    #[error(
        "--module {0}: must be an http URL with a host, without user, password and fragment; its SHA-256 is in the resources"
    )]
    Module(String),
    /// A pool's servers can't be found by the gateway.
    #[error(
        "pool `{pool}`: its servers are found by {found}. Name a Service that selects the same servers: --service \
         {pool}=[NAMESPACE/]NAME:PORT"
    )]
    Unknown {
        /// The pool.
        pool: String,
        /// How the companion finds them.
        found: &'static str,
    },
    /// A Service for a pool that doesn't need one.
    #[error("--service {pool}: {why}")]
    Service {
        /// The pool.
        pool: String,
        /// The cause.
        why: String,
    },
    /// Envoy's cluster of a DNS name takes no internal address.
    #[error(
        "--requeue: pool `{0}` is found by DNS. Leave --requeue out, or name a Service of the same servers: --service {0}=[NAMESPACE/]NAME:PORT"
    )]
    RequeueDns(String),
    /// The way to a pool's servers can't be expressed.
    #[error("pool `{pool}`: {why}")]
    Upstream {
        /// The pool.
        pool: String,
        /// The key, the cause and the remedy.
        why: String,
    },
    /// The gateway resolves the name itself.
    #[error(
        "pool `{0}`: the gateway's Envoy asks its own name servers, not those of endpoints.dns.resolver. Name a Service of the same \
         servers: --service {0}=[NAMESPACE/]NAME:PORT"
    )]
    Resolver(String),
    /// This build has no native filter.
    #[error(transparent)]
    Filter(#[from] filter_module::Error),
    /// Dynamic modules are a part of Envoy Gateway's API alone.
    #[error("--filter native isn't available with --for istio: leave it out")]
    NativeIstio,
    /// The filter is on the routes.
    #[error(
        "--listener isn't available with --filter native, which runs on all listeners of the Gateway: leave it out"
    )]
    NativeListener,
    /// A dynamic module reads no nested metadata, and Envoy Gateway can't copy it.
    #[error(
        "identity: --filter native can't read `metadata:{0}` in a gateway. Take the identity from a header, which a SecurityPolicy can fill from a \
         token (claimToHeaders), or leave --filter native out"
    )]
    NativeMetadata(String),
    /// Istio has no requeue listener.
    #[error("--requeue isn't available with --for istio: leave it out")]
    RequeueIstio,
    /// Istio's configuration doesn't have the listener's name.
    #[error("--listener {0}: Istio needs the port, --listener {0}:PORT")]
    Listener(String),
    /// The resources can't be written as YAML.
    #[error(transparent)]
    Yaml(#[from] yaml::Error),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        !matches!(self, Self::Yaml(_))
    }
}

/// The resources as YAML, after a comment that names their origin and what they need.
///
/// # Errors
/// When the configuration is invalid, or doesn't say what a gateway must know.
pub fn render(args: &Args, environment: &Environment) -> Result<String, Error> {
    let config = Config::read(&args.config, environment)?.read_secrets()?;
    let gateway = gateway(args)?;
    let pools = pools(args, &config)?;
    let node = format!("{}/{}", gateway.namespace, gateway.name);
    let module = module(args, &config)?;
    let tracing = traces::are_on(|name| environment.opentelemetry(name));
    let mut settings = settings(&config, &node, module, tracing);
    if let (filter_module::Kind::Native, Some(path)) = (args.filter, settings.metadata.first()) {
        return Err(Error::NativeMetadata(path.clone()));
    }
    settings.companions = companions(args, &config, settings.companions)?;
    // Both are of Penstock's own bootstrap.
    settings.keep_alive = None;
    settings.cors = None;
    let documents = match args.kind {
        Kind::EnvoyGateway => gateway_resources::envoy_gateway(&settings, &gateway, &pools),
        Kind::Istio => vec![gateway_resources::istio(&settings, &gateway, &pools)],
    };
    let note = note(args, &config, &settings);
    Ok(yaml::text(&documents, &note)?)
}

fn gateway(args: &Args) -> Result<Gateway, Error> {
    let default =
        [("http", 80), ("https", 443)].map(|(name, port)| Listener { name: name.into(), port: Some(port) });
    if args.filter == filter_module::Kind::Native {
        if args.kind == Kind::Istio {
            return Err(Error::NativeIstio);
        }
        if !args.listeners.is_empty() {
            return Err(Error::NativeListener);
        }
    }
    let listeners = match (args.kind, args.listeners.as_slice()) {
        (Kind::EnvoyGateway, []) => default.into(),
        (Kind::EnvoyGateway, given) => given.to_vec(),
        (Kind::Istio, given) => {
            if args.requeue {
                return Err(Error::RequeueIstio);
            }
            if let Some(unknown) = given.iter().find(|listener| listener.port.is_none()) {
                return Err(Error::Listener(unknown.name.clone()));
            }
            given.to_vec()
        }
    };
    Ok(Gateway {
        namespace: args.gateway.namespace.clone(),
        name: args.gateway.name.clone(),
        listeners,
        requeue: args.requeue,
    })
}

fn pools(args: &Args, config: &Config) -> Result<Vec<Pool>, Error> {
    let mut services = BTreeMap::new();
    for service in &args.services {
        let pool = &service.pool;
        let error = |why: String| Error::Service { pool: pool.clone(), why };
        let known = config.pools.iter().find(|known| known.name == *pool);
        let known = known.ok_or_else(|| {
            let names: Vec<_> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
            error(format!("no pool has this name; the pools are {}", names.join(", ")))
        })?;
        if known.discovery.is_none() {
            return Err(error(
                "the configuration lists the pool's servers (endpoints.static), so leave it out".into(),
            ));
        }
        if services.insert(pool.as_str(), service).is_some() {
            return Err(error("given twice; a pool has one Service".into()));
        }
    }
    let pools = config.pools.iter().map(|pool| {
        let servers = match services.get(pool.name.as_str()) {
            Some(service) => by_service(args, pool, service),
            None => servers(args, pool)?,
        };
        check_upstream(args.kind, pool, &servers)
            .map_err(|why| Error::Upstream { pool: pool.name.clone(), why })?;
        Ok(Pool { name: pool.name.clone(), servers, upstream: upstream(&pool.upstream) })
    });
    pools.collect()
}

/// Refuses what the resources can't say, so that nothing is sent in plain text or without a credential by mistake.
fn check_upstream(kind: Kind, pool: &config::Pool, servers: &Servers) -> Result<(), String> {
    if let Some(header) = pool.upstream.headers.iter().find(|header| header.file.is_some()) {
        return Err(format!(
            "upstream.headers.{}: a credential from a file would stand in the resources in plain text. Leave it out and set it in the gateway: \
             `credentialInjection` of an HTTPRouteFilter, or an EnvoyFilter",
            header.name
        ));
    }
    match (&pool.upstream.tls, kind, servers) {
        (None, _, _) => Ok(()),
        (Some(_), Kind::EnvoyGateway, _) => Err(
            "upstream.tls: Envoy Gateway takes certificates from Secrets and ConfigMaps, not from files. Name a Service of the servers by --service, \
             leave upstream.tls out of this copy of the configuration, and attach a BackendTLSPolicy to the Service"
                .into(),
        ),
        (Some(tls), Kind::Istio, Servers::Service { .. })
            if tls.authorities.is_some() && tls.server_name.is_none() =>
        {
            Err("upstream.tls: the addresses of a Service aren't known here: set upstream.tls.server_name".into())
        }
        (Some(_), Kind::Istio, _) => Ok(()),
    }
}

/// The Service is in the namespace of the flag, or of the pool's discovery, or of the Gateway.
fn by_service(args: &Args, pool: &config::Pool, service: &PoolService) -> Servers {
    let discovered = match &pool.discovery {
        Some(Discovery::Kubernetes { namespace, .. }) => namespace.as_ref(),
        _ => None,
    };
    let namespace = service.namespace.as_ref().or(discovered);
    Servers::Service {
        namespace: namespace.unwrap_or(&args.gateway.namespace).clone(),
        name: service.name.clone(),
        port: service.port,
    }
}

fn servers(args: &Args, pool: &config::Pool) -> Result<Servers, Error> {
    let unknown = |found| Error::Unknown { pool: pool.name.clone(), found };
    match &pool.discovery {
        None => {
            let addresses = pool.endpoints.iter().map(|endpoint| endpoint.address);
            Ok(Servers::Addresses(addresses.collect()))
        }
        Some(Discovery::Dns { .. }) if args.requeue && args.filter == filter_module::Kind::Wasm => {
            Err(Error::RequeueDns(pool.name.clone()))
        }
        Some(Discovery::Dns { resolver, .. }) if !resolver.is_empty() => {
            Err(Error::Resolver(pool.name.clone()))
        }
        Some(Discovery::Dns { name, port, refresh, .. }) => {
            Ok(Servers::Dns { name: name.clone(), port: *port, refresh: *refresh })
        }
        Some(Discovery::File(_)) => Err(unknown("a file")),
        Some(Discovery::Kubernetes { object, .. }) => Err(unknown(match object {
            KubernetesObject::InferencePool(_) => "an InferencePool",
            KubernetesObject::Service { .. } => "a Service, and a gateway needs the number of its port",
        })),
    }
}

/// `configured`: the companions of the configuration.
fn companions(args: &Args, config: &Config, configured: Companions) -> Result<Companions, Error> {
    match (&args.companion, &config.replicas) {
        (Some(address), replicas) => Ok(address.companions(replicas.is_some())),
        (None, Some(_)) => Ok(configured),
        (None, None) => {
            reachable(&config.listen.grpc).map_err(Error::Companion)?;
            Ok(configured)
        }
    }
}

/// The address, if others can connect to it, or its text.
fn reachable(address: &config::Address) -> Result<SocketAddr, String> {
    match address {
        config::Address::Tcp(address) if address.ip().is_unspecified() || address.port() == 0 => {
            Err(address.to_string())
        }
        config::Address::Tcp(address) => Ok(*address),
        config::Address::Unix(path) => Err(format!("unix:{}", path.display())),
    }
}

fn module(args: &Args, config: &Config) -> Result<Module, Error> {
    let bytes = args.filter.bytes()?;
    let path = module_path(args.filter);
    let remote = |host, port, path| {
        let source = Source::Server(RemoteModule { host, port, path, sha256: filter_module::sha256(bytes) });
        Module { code: flags::code(args.filter), source }
    };
    let Some(url) = &args.module else {
        let address =
            reachable(&config.listen.http).map_err(|address| Error::ModuleAddress(address, path))?;
        return Ok(remote(address.ip().to_string(), address.port(), path.into()));
    };
    if args.filter == filter_module::Kind::Native
        && url.scheme() == "file"
        && let Ok(file) = url.to_file_path()
    {
        return Ok(Module::file(Code::Native, file));
    }
    let host = url.host_str().filter(|_| {
        url.scheme() == "http"
            && url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none()
    });
    let port = url.port_or_known_default().filter(|&port| port > 0);
    let (Some(host), Some(port)) = (host, port) else {
        return Err(Error::Module(without_password(url)));
    };
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    Ok(remote(host.trim_matches(['[', ']']).to_owned(), port, format!("{}{query}", url.path())))
}

fn without_password(url: &url::Url) -> String {
    let mut url = url.clone();
    // A URL that can't have a password has none.
    let _ = url.set_password(None);
    url.into()
}

/// What a reader of the resources must know.
fn note(args: &Args, config: &Config, settings: &Settings) -> String {
    let companions = &settings.companions;
    let (place, is_on_loopback) = match &settings.module.source {
        Source::File(path) => (path.display().to_string(), false),
        Source::Server(module) => {
            let is_on_loopback = module.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
            (format!("{}:{}", module.host, module.port), is_on_loopback)
        }
    };
    let Args { gateway, config: file, .. } = args;
    let kind = args.kind.to_possible_value();
    let kind = kind.as_ref().map_or("", |kind| kind.get_name());
    let mut note = format!(
        "Penstock {} in the Gateway {} of namespace {}, by `penstock gateway-resources --for {kind} --config {}`.\n\
         Filters connect to the companion at {}, and Envoy gets the filter from {place}.\n\
         Print and apply the resources again when pools, their endpoints, these addresses or limits.body_bytes change, and \
         with each new version of Penstock.\n",
        env!("CARGO_PKG_VERSION"),
        gateway.name,
        gateway.namespace,
        file.display(),
        shown(companions),
    );
    let mut add = |line: &str| {
        note.push_str(line);
        note.push('\n');
    };
    if config.keeps_alive() {
        add("queue.keep_alive has no effect here: it needs a listener of Penstock's own bootstrap.");
    }
    if !config.listen.cors.origins.is_empty() {
        add(
            "listen.cors has no effect here: what pages of other origins may do is the gateway's own policy.",
        );
    }
    let is_native = args.filter == filter_module::Kind::Native;
    if is_native {
        add(
            "Envoy Gateway must allow them: extensionApis: {enableBackend: true}. It needs Envoy 1.39 or later.",
        );
    } else if args.kind == Kind::EnvoyGateway {
        add(
            "Envoy Gateway must allow them: extensionApis: {enableBackend: true, enableEnvoyPatchPolicy: true}.",
        );
    }
    if args.requeue || is_native {
        add(
            "The EnvoyProxy at the end takes effect if the GatewayClass (parametersRef) or the Gateway (infrastructure.parametersRef) refers \
             to it. If they refer to one already, add its spec to that one.",
        );
    }
    let files = config.pools.iter().filter_map(|pool| pool.upstream.tls.as_ref());
    let files = files.flat_map(|tls| {
        let identity = tls.identity.iter().flat_map(|(cert, key)| [cert, key]);
        tls.authorities.iter().chain(identity)
    });
    let files: Vec<String> = files.map(|file| file.display().to_string()).collect();
    if !files.is_empty() {
        add(&format!(
            "Envoy reads files for TLS to model servers: mount {} in Envoy's pods.",
            files.join(", ")
        ));
    }
    if is_loopback(companions) || is_on_loopback {
        add(
            "An address on loopback is reached only by an Envoy on the same machine: see --companion and --module.",
        );
    }
    if let Some(tls) = &config.tls {
        add(&format!(
            "Envoy reads its certificate for the companion from {}, {} and {}: mount these files in Envoy's pods.",
            tls.cert.display(),
            tls.key.display(),
            tls.client_ca.display(),
        ));
    }
    note
}

fn is_loopback(companions: &Companions) -> bool {
    match companions {
        Companions::One(Address::Tcp(address)) => address.ip().is_loopback(),
        Companions::List(addresses) => addresses.iter().any(|address| address.ip().is_loopback()),
        Companions::One(Address::Unix(_)) | Companions::Dns { .. } => false,
    }
}

fn shown(companions: &Companions) -> String {
    match companions {
        Companions::One(Address::Tcp(address)) => address.to_string(),
        Companions::One(Address::Unix(path)) => path.display().to_string(),
        Companions::List(addresses) => {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            addresses.join(", ")
        }
        Companions::Dns { name, port } => format!("{name}:{port}"),
    }
}

#[cfg(test)]
mod tests;
