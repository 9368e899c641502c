//! Endpoints from DNS: all addresses of a name, as headless Kubernetes services and most registries publish them.
//!
//! A name server's answer that the name has no address means that the pool has no endpoint. Only if no name server could be asked, the
//! last endpoints stay: the addresses of servers that have gone may belong to other servers by now. A name server that lags behind may
//! deny a name that its replicas know, so an empty answer counts when the next ones confirm it. The name is resolved every `refresh`,
//! whatever its TTL.

mod resolver;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use penstock_config::{Endpoint, EndpointDefaults};

use self::resolver::{Answer, NameServers};
use super::Report;

/// The answers in a row without an address after which a pool with endpoints has none.
const CONFIRMED_BY: u32 = 3;
/// The pause before an empty answer is confirmed, unless `refresh` is shorter.
const CONFIRMATION_PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failure, unless `refresh` is shorter: a companion may start before its name server.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// Resolves the name periodically. `listed`: the name servers; empty: those of the system.
pub(super) async fn run(report: Report, name: String, port: u16, refresh: Duration, listed: Vec<SocketAddr>) {
    let name_servers = if listed.is_empty() { NameServers::System } else { NameServers::Listed(listed) };
    follow(report, &name, port, refresh, &name_servers).await;
}

async fn follow(mut report: Report, name: &str, port: u16, refresh: Duration, name_servers: &NameServers) {
    let mut empty_answers = 0;
    loop {
        let mut pause = refresh;
        match resolver::look_up(name, name_servers).await {
            Ok(Answer::Addresses(addresses)) => {
                empty_answers = 0;
                report.send_endpoints(endpoints(&addresses, port, &report.settings.defaults)).await;
            }
            Ok(Answer::Nothing(why)) => {
                empty_answers += 1;
                if empty_answers >= CONFIRMED_BY || report.is_known_empty() {
                    report.send_nothing(&why).await;
                } else {
                    pause = refresh.min(CONFIRMATION_PAUSE);
                }
            }
            Err(why) => {
                report.failed(&why);
                pause = refresh.min(FAILURE_PAUSE);
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Sorted, because resolvers shuffle addresses. If the name has IPv4 addresses, its IPv6 addresses are dropped:
/// otherwise a server with both would be two endpoints.
fn endpoints(addresses: &[IpAddr], port: u16, defaults: &EndpointDefaults) -> Vec<Endpoint> {
    let mut all = addresses.to_vec();
    if all.iter().any(IpAddr::is_ipv4) {
        all.retain(IpAddr::is_ipv4);
    }
    all.sort_unstable();
    all.into_iter().map(|address| defaults.endpoint(SocketAddr::new(address, port))).collect()
}
