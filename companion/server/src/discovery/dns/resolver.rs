//! Resolves a name, and distinguishes a name without addresses from a lookup that failed.
//!
//! The rules are those of the C library: `/etc/hosts`, then `/etc/resolv.conf` with its search domains, its name servers in their order
//! and their timeouts. Both files are read for each lookup, because they may change. One rule differs: a name that exists without
//! addresses ends the search, as with musl, because a later search domain could answer every name by a wildcard.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use tracing::subscriber::NoSubscriber;

/// A lookup with all its queries that takes longer has failed.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The longest wait for one name server, whatever the system's configuration allows.
const TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// Attempts of all name servers, whatever the system's configuration allows.
const ATTEMPTS_MAX: usize = 5;
/// The system's files.
const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The name servers to ask.
#[derive(Clone, Debug)]
pub(super) enum NameServers {
    /// The system's, with its search domains and its file of hosts.
    System,
    /// Exactly these, for exactly the name.
    Listed(Vec<SocketAddr>),
    /// As the system's, with the contents of other files.
    #[cfg(test)]
    Files {
        /// In the form of `/etc/hosts`.
        hosts: String,
        /// In the form of `/etc/resolv.conf`.
        resolv_conf: String,
        /// The port of the name servers.
        port: u16,
    },
}

/// The answer of the name servers to a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// At least one address.
    Addresses(Vec<IpAddr>),
    /// The name doesn't exist, or has no address; a sentence with the cause.
    Nothing(String),
}

/// Looks up the addresses of a name. IPv6 addresses are looked up only if the name has no IPv4 address.
///
/// # Errors
/// The reason why no name server could be asked.
pub(super) async fn look_up(name: &str, name_servers: &NameServers) -> Result<Answer, String> {
    let lookup = async {
        match name_servers {
            NameServers::System => {
                let hosts = tokio::fs::read(HOSTS).await.unwrap_or_default();
                let resolv_conf = tokio::fs::read(RESOLV_CONF).await;
                let resolv_conf = resolv_conf.map_err(|why| format!("{RESOLV_CONF}: {why}"));
                look_up_as_system(name, &hosts, resolv_conf, None).await
            }
            NameServers::Listed(addresses) => {
                let mut resolver = Resolver::new(addresses.iter().copied(), &ResolverOpts::default())?;
                let mut name = parse(name)?;
                name.set_fqdn(true);
                resolver.search(&[name]).await
            }
            #[cfg(test)]
            NameServers::Files { hosts, resolv_conf, port } => {
                let resolv_conf = Ok(resolv_conf.clone().into_bytes());
                look_up_as_system(name, hosts.as_bytes(), resolv_conf, Some(*port)).await
            }
        }
    };
    match tokio::time::timeout(ANSWER_MAX, lookup).await {
        Ok(answer) => answer.map_err(|why| format!("{name} can't be resolved: {why}")),
        Err(_) => Err(format!("{name} was not resolved within {ANSWER_MAX:?}")),
    }
}

/// `port`: the name servers' port, unless it is that of DNS.
async fn look_up_as_system(
    name: &str,
    hosts: &[u8],
    resolv_conf: Result<Vec<u8>, String>,
    port: Option<u16>,
) -> Result<Answer, String> {
    let name = parse(name)?;
    let listed = listed_in(hosts, &name);
    if !listed.is_empty() {
        return Ok(Answer::Addresses(listed));
    }
    if name.is_localhost() {
        return Ok(Answer::Addresses(vec![Ipv4Addr::LOCALHOST.into()]));
    }
    let resolv_conf = resolv_conf?;
    let parsed = quietly(|| system_conf::parse_resolv_conf(resolv_conf));
    let (config, options) = parsed.map_err(|why| format!("{RESOLV_CONF}: {why}"))?;
    let (domain, mut search, servers) = config.into_parts();
    if search.is_empty() {
        search.extend(domain);
    }
    let default_port = ConnectionConfig::udp().port;
    let addresses = servers.iter().map(|server| SocketAddr::new(server.ip, port.unwrap_or(default_port)));
    Resolver::new(addresses, &options)?.search(&candidates(&name, &search, options.ndots)).await
}

/// The parsers log whatever they don't understand, at each lookup. The C library ignores it silently.
fn quietly<T>(parse: impl FnOnce() -> T) -> T {
    tracing::subscriber::with_default(NoSubscriber::new(), parse)
}

fn parse(name: &str) -> Result<Name, String> {
    Name::from_str_relaxed(name).map_err(|why| why.to_string())
}

/// The addresses of a name in a file of hosts.
fn listed_in(hosts: &[u8], name: &Name) -> Vec<IpAddr> {
    let mut known = Hosts::default();
    // Only reading from a file can fail.
    let _ = quietly(|| known.read_hosts_conf(hosts));
    let of_type = |kind| {
        let found = known.lookup_static_host(&Query::query(name.clone(), kind));
        let records = found.iter().flat_map(|lookup| lookup.answers());
        records.filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>()
    };
    [of_type(RecordType::A), of_type(RecordType::AAAA)].concat()
}

/// The names to ask for, in order: a name with fewer dots than `ndots` is first tried in the search domains.
fn candidates(name: &Name, search: &[Name], ndots: usize) -> Vec<Name> {
    let mut absolute = name.clone();
    absolute.set_fqdn(true);
    if name.is_fqdn() {
        return vec![absolute];
    }
    let mut names: Vec<Name> = Vec::with_capacity(search.len() + 1);
    let dots = usize::from(name.num_labels()).saturating_sub(1);
    let is_absolute_first = dots >= ndots;
    if is_absolute_first {
        names.push(absolute.clone());
    }
    for domain in search {
        // A name that would be too long can't exist.
        let Ok(mut candidate) = name.clone().append_domain(domain) else { continue };
        candidate.set_fqdn(true);
        if !names.contains(&candidate) {
            names.push(candidate);
        }
    }
    if !names.contains(&absolute) {
        names.push(absolute);
    }
    names
}

/// The result of a query that was answered.
enum Found {
    Addresses(Vec<IpAddr>),
    /// The name exists, without such addresses.
    NoData,
    /// The name doesn't exist.
    NoName,
}

/// Why a query failed.
enum Failed {
    /// A name server answered that it can't answer.
    Refused(String),
    /// No name server answered.
    Unanswered(String),
}

/// Name servers in the order in which they are asked, and how.
struct Resolver {
    servers: Vec<(SocketAddr, TokioResolver)>,
    attempts: usize,
    /// The server that answered last in this lookup; it is asked first, so that a dead one delays one query.
    first: usize,
}

impl Resolver {
    fn new(addresses: impl Iterator<Item = SocketAddr>, options: &ResolverOpts) -> Result<Self, String> {
        let mut of_one = options.clone();
        of_one.timeout = options.timeout.min(TIMEOUT_MAX);
        // One query, of one server, whose answer isn't kept.
        of_one.attempts = 0;
        of_one.cache_size = 0;
        of_one.use_hosts_file = ResolveHosts::Never;
        let servers = addresses.map(|address| {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
                connection.port = address.port();
                connection
            });
            let server = NameServerConfig::new(address.ip(), true, connections.to_vec());
            let config = ResolverConfig::from_name_servers(vec![server]);
            let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
            let resolver = builder.with_options(of_one.clone()).build().map_err(|why| why.to_string())?;
            Ok((address, resolver))
        });
        let servers = servers.collect::<Result<_, String>>()?;
        Ok(Self { servers, attempts: options.attempts.clamp(1, ATTEMPTS_MAX), first: 0 })
    }

    /// Asks for one name after the other, until one has addresses or exists without.
    async fn search(&mut self, names: &[Name]) -> Result<Answer, String> {
        let mut refused = None;
        for name in names {
            match self.addresses(name).await {
                Ok(Found::Addresses(addresses)) => return Ok(Answer::Addresses(addresses)),
                Ok(Found::NoData) => return Ok(Answer::Nothing(format!("{name} exists without an address"))),
                Ok(Found::NoName) => {}
                // A broken search domain doesn't hide the names of the others.
                Err(Failed::Refused(why)) => refused = refused.or(Some(why)),
                Err(Failed::Unanswered(why)) => return Err(why),
            }
        }
        let name = names.last().map(ToString::to_string).unwrap_or_default();
        refused.map_or_else(|| Ok(Answer::Nothing(format!("{name} doesn't exist (NXDOMAIN)"))), Err)
    }

    async fn addresses(&mut self, name: &Name) -> Result<Found, Failed> {
        let four = self.ask(name, RecordType::A).await?;
        if let Found::Addresses(_) = four {
            return Ok(four);
        }
        Ok(match (four, self.ask(name, RecordType::AAAA).await?) {
            (_, Found::Addresses(addresses)) => Found::Addresses(addresses),
            (Found::NoName, Found::NoName) => Found::NoName,
            _ => Found::NoData,
        })
    }

    /// Asks the name servers in turn, until one answers.
    async fn ask(&mut self, name: &Name, kind: RecordType) -> Result<Found, Failed> {
        let mut failed = Failed::Unanswered("no name server is known".into());
        let count = self.servers.len();
        for _ in 0..self.attempts {
            for index in (self.first..count).chain(0..self.first) {
                let Some((address, server)) = self.servers.get(index) else { continue };
                let why = match server.lookup(name.clone(), kind).await {
                    Ok(lookup) => {
                        let records = lookup.answers().iter();
                        let found: Vec<IpAddr> = records.filter_map(|record| record.data.ip_addr()).collect();
                        self.first = index;
                        return Ok(if found.is_empty() { Found::NoData } else { Found::Addresses(found) });
                    }
                    Err(why) => why,
                };
                if let Some(found) = denied(&why) {
                    self.first = index;
                    return Ok(found);
                }
                let sentence = format!("name server {address}: {}", shown(&why));
                failed = match why {
                    NetError::Dns(_) => Failed::Refused(sentence),
                    _ => Failed::Unanswered(sentence),
                };
            }
        }
        Err(failed)
    }
}

/// The denial in an error; `None`: the query failed. A server that only refers to others has not answered.
fn denied(why: &NetError) -> Option<Found> {
    let NetError::Dns(DnsError::NoRecordsFound(NoRecords { response_code, ns, soa, .. })) = why else {
        return None;
    };
    match response_code {
        ResponseCode::NXDomain => Some(Found::NoName),
        ResponseCode::NoError if ns.is_none() || soa.is_some() => Some(Found::NoData),
        _ => None,
    }
}

fn shown(why: &NetError) -> String {
    match why {
        NetError::Dns(DnsError::ResponseCode(code)) => code.to_string(),
        NetError::Dns(DnsError::NoRecordsFound(_)) => "it refers to other name servers".into(),
        NetError::Io(why) => why.to_string(),
        other => other.to_string(),
    }
}
