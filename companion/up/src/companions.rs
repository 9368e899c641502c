//! The companions of a gateway: where each listens, and how `penstock up` tells several of them about each other.
//!
//! Several companions share the configuration file. What differs reaches each by flags and environment variables.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use penstock_config::{Address, Config, Environment, Listen};
use serde_json::{Value, json};

use super::{Error, Options};
use penstock_envoy::ports::Ports;

/// The address of any free port of this machine.
pub(super) const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Where one companion listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Companion {
    /// For filters.
    pub grpc: Address,
    /// For the HTTP API.
    pub http: Address,
    /// Environment variables that override keys of the configuration file.
    pub variables: Vec<(String, String)>,
}

/// The addresses of the companions. The first has those of the configuration, the others have free ports.
///
/// # Errors
/// `listen.grpc` is a unix socket, which only one companion can have, or no port is free.
pub(super) fn reserve(
    options: &Options,
    listen: &Listen,
    ports: &mut Ports,
) -> Result<Vec<Companion>, Error> {
    let mut companions =
        vec![Companion { grpc: listen.grpc.clone(), http: listen.http.clone(), variables: Vec::new() }];
    let Address::Tcp(grpc) = listen.grpc else {
        return match options.companions {
            0 | 1 => Ok(companions),
            _ => Err(Error::UnixSocket(listen.grpc.clone())),
        };
    };
    for number in 2..=options.companions {
        let free = |ports: &mut Ports, address: SocketAddr, key| {
            ports.reserve(SocketAddr::new(address.ip(), 0), key, "--companions")
        };
        let http = match &listen.http {
            Address::Tcp(http) => Address::Tcp(free(ports, *http, "listen.http")?),
            Address::Unix(path) => Address::Unix(PathBuf::from(format!("{}.{number}", path.display()))),
        };
        companions.push(Companion {
            grpc: Address::Tcp(free(ports, grpc, "listen.grpc")?),
            http,
            variables: Vec::new(),
        });
    }
    Ok(companions)
}

/// Where the lease is kept if the configuration has no `replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    /// In an etcd that `penstock up` runs.
    Etcd(SocketAddr),
    File(PathBuf),
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Etcd(client) => write!(f, "an etcd at {client}"),
            Self::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

impl Lease {
    fn json(&self) -> Value {
        match self {
            Self::Etcd(client) => json!({ "etcd": { "endpoints": [format!("http://{client}")] } }),
            Self::File(path) => json!({ "file": path }),
        }
    }
}

/// Sets the variables of several companions. `lease` is `None` if the configuration has one.
pub(super) fn introduce(companions: &mut [Companion], lease: Option<&Lease>) {
    let addresses: Vec<String> = companions.iter().filter_map(advertised).collect();
    let all = json!(addresses).to_string();
    for (companion, advertise) in companions.iter_mut().zip(addresses) {
        let mut variables = vec![
            // The flag --grpc takes effect only after the file was checked together with `replicas`.
            ("PENSTOCK_LISTEN__GRPC", companion.grpc.to_string()),
            ("PENSTOCK_REPLICAS__COMPANIONS", all.clone()),
            ("PENSTOCK_REPLICAS__ADVERTISE", advertise),
        ];
        if let Some(lease) = lease {
            variables.push(("PENSTOCK_REPLICAS__LEASE", lease.json().to_string()));
        }
        let owned = variables.into_iter().map(|(name, value)| (name.to_owned(), value));
        companion.variables = owned.collect();
    }
}

/// Sets `listen.keep_alive` of the companions, the address to which they send back the streams that they keep alive.
pub(super) fn add_keep_alive(companions: &mut [Companion], address: SocketAddr) {
    for companion in companions {
        companion.variables.push(("PENSTOCK_LISTEN__KEEP_ALIVE".to_owned(), address.to_string()));
    }
}

/// Where Envoy, on the same machine, reaches a companion.
fn advertised(companion: &Companion) -> Option<String> {
    let Address::Tcp(mut address) = companion.grpc else {
        return None;
    };
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    Some(address.to_string())
}

/// The configuration as this companion reads it, but with the addresses of `listen`, which flags set.
///
/// # Errors
/// The file can't be used by several companions.
pub(super) fn configuration(
    companion: &Companion,
    file: &std::path::Path,
    environment: &Environment,
    listen: &Listen,
) -> Result<Config, Error> {
    let mut config = Config::read(file, &environment.with(companion.variables.iter().cloned()))?;
    config.listen = listen.clone();
    Ok(config)
}

/// The addresses of an etcd that keeps the lease: for clients, and for other members, of which there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Etcd {
    /// The program.
    pub binary: PathBuf,
    /// For the companions.
    pub client: SocketAddr,
    /// Required by etcd.
    pub peer: SocketAddr,
    /// The folder of its data.
    pub data: PathBuf,
}

impl Etcd {
    /// An etcd of the PATH on free ports. `None`: there is none.
    ///
    /// # Errors
    /// No port is free.
    pub(super) fn find(
        path: Option<&std::ffi::OsStr>,
        folder: PathBuf,
        ports: &mut Ports,
    ) -> Result<Option<Self>, Error> {
        let folders = path.map(std::env::split_paths).into_iter().flatten();
        let mut programs = folders.map(|folder| folder.join("etcd"));
        let Some(binary) = programs.find(|program| is_program(program)) else {
            return Ok(None);
        };
        let mut free = || ports.reserve(ANY, "replicas.lease", "--companions");
        Ok(Some(Self { binary, client: free()?, peer: free()?, data: folder }))
    }

    pub(super) fn command(&self) -> tokio::process::Command {
        let (client, peer) = (format!("http://{}", self.client), format!("http://{}", self.peer));
        let mut command = tokio::process::Command::new(&self.binary);
        command
            .args(["--name", "penstock", "--logger", "zap", "--log-level", "error"])
            .arg("--data-dir")
            .arg(&self.data)
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("penstock={peer}")])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null());
        // Its own variables would override the flags of the embedded one.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("ETCD_")) {
                command.env_remove(name);
            }
        }
        command
    }
}

fn is_program(path: &std::path::Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;

    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use penstock_config as config;
    use tempfile::TempDir;

    use penstock_errors::Failure as _;

    use super::*;

    const POOLS: &str = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}}]\n";
    const FREE: &str = "listen: {grpc: '127.0.0.1:0', http: '127.0.0.1:0'}\n";

    struct Planned {
        file: PathBuf,
        companions: Vec<Companion>,
        listen: Listen,
        _ports: Ports,
        _folder: TempDir,
    }

    impl Planned {
        /// Several companions with this configuration, whose ports are reserved as `penstock up` does.
        fn new(text: &str, count: usize) -> Result<Self, Error> {
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("penstock.yaml");
            std::fs::write(&file, text).expect("written");
            let mut listen = Config::read(&file, &Environment::default())?.listen;
            let mut ports = Ports::default();
            for address in [&mut listen.grpc, &mut listen.http] {
                if let Address::Tcp(address) = address {
                    address.set_port(0);
                    *address = ports.reserve(*address, "a key", "a flag")?;
                }
            }
            let options = Options { companions: count, ..Options::default() };
            let companions = reserve(&options, &listen, &mut ports)?;
            Ok(Self { file, companions, listen, _ports: ports, _folder: folder })
        }

        /// What each companion reads.
        fn replicas(&self) -> Result<Vec<config::Replicas>, Error> {
            let read =
                |companion| configuration(companion, &self.file, &Environment::default(), &self.listen);
            let configs = self.companions.iter().map(read);
            configs.map(|config| config.map(|config| config.replicas.expect("several companions"))).collect()
        }
    }

    #[test]
    fn several_companions_know_each_other_and_the_lease() {
        for (listen, count) in
            [(FREE, 2), (FREE, 3), ("listen: {grpc: '[::1]:0', http: 'unix:/p.sock'}\n", 2)]
        {
            let mut planned = Planned::new(&format!("{listen}{POOLS}"), count).expect("free ports");
            introduce(&mut planned.companions, Some(&Lease::File("/run/lease".into())));
            let replicas = planned.replicas().expect("valid");
            let own: Vec<SocketAddr> = replicas.iter().map(|replicas| replicas.advertise).collect();
            assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), count, "{own:?}");
            for (replicas, companion) in replicas.iter().zip(&planned.companions) {
                assert_eq!(companion.grpc, Address::Tcp(replicas.advertise));
                assert_eq!(replicas.companions, config::Companions::List(own.clone()));
                assert_eq!(replicas.lease, config::Lease::File("/run/lease".into()));
            }
            let pages: BTreeSet<String> =
                planned.companions.iter().map(|companion| companion.http.to_string()).collect();
            assert_eq!(pages.len(), count, "{pages:?}");
        }
    }

    #[test]
    fn a_configured_lease_stays() {
        let replicas = "replicas: {companions: ['127.0.0.1:9190'], advertise: '127.0.0.1:9190', duration: 9s, \
                        lease: {kubernetes: {namespace: n, name: l}}}\n";
        let mut planned = Planned::new(&format!("{replicas}{POOLS}"), 2).expect("free ports");
        introduce(&mut planned.companions, None);
        for replicas in planned.replicas().expect("valid") {
            assert_eq!(replicas.duration.as_secs(), 9);
            assert!(matches!(replicas.lease, config::Lease::Kubernetes { .. }), "{replicas:?}");
            assert!(matches!(&replicas.companions, config::Companions::List(list) if list.len() == 2));
        }
    }

    #[test]
    fn the_only_companion_gets_the_configured_addresses_and_no_variables() {
        for count in [0, 1] {
            let planned = Planned::new(&format!("{FREE}{POOLS}"), count).expect("free ports");
            let expected = Companion {
                grpc: planned.listen.grpc.clone(),
                http: planned.listen.http.clone(),
                variables: Vec::new(),
            };
            assert_eq!(planned.companions, [expected]);
        }
    }

    #[test]
    fn keys_that_several_companions_can_not_share_are_errors() {
        let socket = format!("listen: {{grpc: 'unix:/run/p.sock'}}\n{POOLS}");
        let error = Planned::new(&socket, 2).err().expect("one socket");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("listen.grpc is unix:/run/p.sock"), "{error}");

        let redb = "pools: [{name: a, endpoints: {static: ['127.0.0.1:8001']}, usage: {store: {redb: f}}}]";
        let mut planned = Planned::new(&format!("{FREE}{redb}"), 2).expect("free ports");
        introduce(&mut planned.companions, Some(&Lease::File("l".into())));
        let error = planned.replicas().expect_err("one file");
        assert!(error.to_string().contains("pools[0].usage.store"), "{error}");
    }

    #[test]
    fn etcd_is_a_program_of_the_path() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        for (place, mode) in [(&first, 0o644), (&second, 0o755)] {
            std::fs::create_dir(place).expect("made");
            std::fs::write(place.join("etcd"), "").expect("written");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(place.join("etcd"), mode).expect("changed");
        }
        let mut ports = Ports::default();
        let mut find = |places: &[&PathBuf]| {
            let path = std::env::join_paths(places).expect("a path");
            Etcd::find(Some(&path), folder.path().join("data"), &mut ports).expect("free ports")
        };
        assert_eq!(find(&[&first]), None, "not executable");
        let etcd = find(&[&first, &second]).expect("found");
        assert_eq!(etcd.binary, second.join("etcd"));
        assert_ne!(etcd.client, etcd.peer);
        let lease = Lease::Etcd(etcd.client).json();
        assert_eq!(lease["etcd"]["endpoints"][0], format!("http://{}", etcd.client));
    }
}
