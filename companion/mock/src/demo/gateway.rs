//! The demo's gateway: `up` with the demo's configuration.

use std::io;

use penstock_up as up;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::Instant;

use super::takeover::{COMPANIONS, Kill};
use super::{Args, tenants};
use crate::mock_server::Running;

/// How long requests wait for a leader with `--kill-leader`: much longer than a takeover takes, because a busy machine must
/// not lose a request.
const HOLD: &str = "20s";

/// Why the gateway can't run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration can't be written.
    #[error("can't write the demo's configuration to the temporary directory: {0}")]
    Directory(#[from] io::Error),
    /// The gateway didn't start.
    #[error(transparent)]
    Up(#[from] up::Error),
}

/// A running gateway.
pub(super) struct Gateway {
    gateway: up::Gateway,
    events: broadcast::Receiver<up::Event>,
    /// Contains the configuration. Dropping it deletes the directory.
    _directory: TempDir,
}

/// Starts the gateway and returns when it serves requests.
pub(super) async fn start(
    servers: &[Running],
    args: &Args,
    environment: up::Environment,
) -> Result<Gateway, Error> {
    let directory = tempfile::Builder::new().prefix("penstock-demo-").tempdir()?;
    let file = directory.path().join("penstock.yaml");
    std::fs::write(&file, config(servers, args.kill_leader))?;
    let options = up::Options {
        config: Some(file),
        environment,
        port: Some(args.port),
        admin_port: Some(args.admin_port),
        // The demo provokes refused requests. Logging them would disturb the table.
        flags: vec!["--log".to_owned(), "error".to_owned()],
        companions: if args.kill_leader { COMPANIONS } else { 1 },
        ..up::Options::default()
    };
    let mut gateway = up::Gateway::start(options).await?;
    gateway.wait_ready().await?;
    let events = gateway.events();
    Ok(Gateway { gateway, events, _directory: directory })
}

impl Gateway {
    /// The addresses, in the format of `up`.
    pub(super) fn addresses(&self) -> up::Addresses {
        self.gateway.addresses()
    }

    /// Whether the companion was restarted since the last call.
    pub(super) fn companion_restarted(&mut self) -> bool {
        std::iter::from_fn(|| match self.events.try_recv() {
            Ok(event) => Some(event),
            // So many processes exited that the oldest events are lost: continue with the next one.
            Err(TryRecvError::Lagged(_)) => self.events.try_recv().ok(),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        })
        .any(|event| matches!(event, up::Event::Died { part: up::Part::Companion(_), .. }))
    }

    /// Where the leader's lease is kept.
    pub(super) fn lease(&self) -> String {
        let lease = self.gateway.lease();
        lease.unwrap_or_else(|| "the store that the environment names".to_owned())
    }

    /// Kills a companion, whose number counts from 1, and returns when the process is dead.
    pub(super) async fn kill(&self, companion: usize) -> Kill {
        let mut events = self.gateway.events();
        let requested = Instant::now();
        self.gateway.kill_companion(companion);
        loop {
            match events.recv().await {
                Ok(up::Event::Died { part, .. }) if part == up::Part::Companion(companion) => break,
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                // The gateway keeps a sender, so the channel stays open.
                Err(RecvError::Closed) => break,
            }
        }
        Kill { companion, requested, dead: Instant::now() }
    }

    pub(super) async fn shutdown(mut self) {
        self.gateway.shutdown().await;
    }
}

/// The gateway's configuration, as JSON, which is valid YAML.
fn config(servers: &[Running], kill_leader: bool) -> String {
    let any = "127.0.0.1:0";
    let addresses: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    let weights: serde_json::Map<String, serde_json::Value> =
        tenants::TENANTS.iter().map(|tenant| (tenant.name.to_owned(), json!(tenant.weight))).collect();
    let mut config = json!({
        "listen": {"gateway": any, "envoy_admin": any, "grpc": any, "http": any},
        "pools": [{
            "name": tenants::MODEL,
            "endpoints": {"static": addresses},
            "queue": {"flow_capacity": tenants::FLOW_CAPACITY},
            "arbitration": {"flows": {"weights": weights}},
        }],
    });
    if kill_leader {
        config["pools"][0]["companion_down"] = json!({ "hold": HOLD });
    }
    config.to_string()
}

#[cfg(test)]
mod tests {
    use penstock_config::Config;

    use super::*;
    use crate::mock_server::{Settings, start};

    #[tokio::test]
    async fn configuration_is_valid() {
        let servers = vec![start(Settings::default()).await.unwrap()];
        for kill_leader in [false, true] {
            let config = Config::parse(&config(&servers, kill_leader), "demo").unwrap();
            let pool = &config.pools[0];
            assert_eq!(pool.endpoints[0].address, servers[0].address());
            assert_eq!(pool.policy.flows.weights.get("light"), Some(&3.0));
            assert_eq!(pool.policy.weights.output, super::super::tally::OUTPUT_WEIGHT);
        }
    }
}
