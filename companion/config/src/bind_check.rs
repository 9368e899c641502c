//! Refuses addresses that other machines reach while nothing protects them.
//!
//! On loopback and on unix sockets the operating system limits access. On any other address:
//!
//! - the gateway needs `identity.trust`, so that the operator has decided which clients are trusted;
//! - gRPC, which hands out grants, needs certificates on both ends;
//! - HTTP needs nothing: it shows nothing private, and changes nothing without the admin token.

use super::{Address, Companions, Config};
use crate::error::Violation;

/// An address that would be reachable without protection: the key, the reason, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {message}")]
pub struct BindError {
    pub(super) key: &'static str,
    pub(super) message: String,
}

impl Config {
    /// Checks that `listen.gateway` is a loopback address, or that the document has `identity.trust`.
    pub(super) fn check_gateway_address(&self, trust_is_given: bool) -> Result<(), BindError> {
        if trust_is_given || self.listen.gateway.ip().is_loopback() {
            return Ok(());
        }
        Err(BindError {
            key: "listen.gateway",
            message: format!(
                "`{}` isn't a loopback address; set identity.trust to name the trusted clients: all, none, or a list of \
                 networks like [10.0.0.0/8]",
                self.listen.gateway
            ),
        })
    }

    /// Checks that gRPC may be served on `address`, which is `listen.grpc` or a flag that replaces it.
    ///
    /// # Errors
    /// When other machines reach the address and `tls` is missing.
    pub fn check_grpc_address(&self, address: &Address) -> Result<(), BindError> {
        match address {
            Address::Tcp(address) if !address.ip().is_loopback() && self.tls.is_none() => Err(BindError {
                key: "listen.grpc",
                message: format!(
                    "`{address}` isn't a loopback address, so it needs tls: {{cert, key, client_ca}}; without tls, write a \
                     loopback address or unix:/path"
                ),
            }),
            Address::Tcp(_) | Address::Unix(_) => Ok(()),
        }
    }
}

impl Config {
    /// A pool keeps waiting streams alive.
    #[must_use]
    pub fn keeps_alive(&self) -> bool {
        self.pools.iter().any(|pool| pool.keep_alive.is_some())
    }

    /// Checks that the companions are on Envoy's machine if they keep streams alive.
    pub(super) fn check_keep_alive(&self) -> Result<(), Violation> {
        let Some(index) = self.pools.iter().position(|pool| pool.keep_alive.is_some()) else {
            return Ok(());
        };
        let replicas = self.replicas.as_ref().map(|replicas| &replicas.companions);
        let elsewhere = match (replicas, &self.listen.grpc) {
            (Some(Companions::Dns { name, .. }), _) => {
                Some(format!("replicas.companions has the name `{name}`"))
            }
            (Some(Companions::List(list)), _) => {
                let found = list.iter().find(|address| !address.ip().is_loopback());
                found.map(|address| format!("replicas.companions has `{address}`"))
            }
            (None, Address::Tcp(address)) if !address.ip().is_loopback() => {
                Some(format!("listen.grpc is `{address}`"))
            }
            (None, Address::Tcp(_) | Address::Unix(_)) => None,
        };
        elsewhere.map_or(Ok(()), |elsewhere| {
            Err(Violation::new(
                format!("pools[{index}].queue.keep_alive"),
                format!(
                    "companions send such streams back to an Envoy on their own machine, at a loopback address, and {elsewhere}; \
                     leave the key out"
                ),
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn parse(head: &str) -> Result<Config, String> {
        let text = format!("{head}\npools: [{{name: a, endpoints: {{static: ['127.0.0.1:8001']}}}}]");
        Config::parse(&text, "f.yaml").map_err(|error| error.to_string())
    }

    #[test]
    fn streams_are_kept_alive_on_one_machine_alone() {
        let parse = |head: &str| {
            let pool = "{name: a, queue: {keep_alive: 5s}, endpoints: {static: ['127.0.0.1:8001']}}";
            let config = Config::parse(&format!("{head}\npools: [{pool}]"), "f.yaml");
            config.map(drop).map_err(|error| error.to_string())
        };
        let tls = "tls: {cert: a, key: b, client_ca: c}\n";
        for head in ["", "listen: {grpc: 'unix:/run/p.sock'}", "listen: {grpc: '[::1]:9190'}"] {
            parse(head).expect(head);
        }
        let elsewhere = [
            "listen: {grpc: '0.0.0.0:9190'}",
            "replicas: {companions: ['127.0.0.1:9190', '10.0.0.6:9190'], lease: {file: l}}",
            "replicas: {companions: {dns: {name: c.models, port: 9190}}, advertise: '10.0.0.5:9190', lease: {file: l}}",
        ];
        for head in elsewhere {
            let message = parse(&format!("{tls}{head}")).expect_err(head);
            assert!(
                message.contains("pools[0].queue.keep_alive") && message.contains("own machine"),
                "{message}"
            );
        }
    }

    #[test]
    fn a_gateway_off_loopback_needs_trust() {
        for gateway in ["0.0.0.0:80", "192.0.2.1:80", "[::]:80"] {
            let listen = format!("# one\nlisten: {{gateway: '{gateway}'}}");
            let message = parse(&listen).expect_err(gateway);
            assert!(
                message.starts_with("f.yaml:2: listen.gateway: ") && message.contains("identity.trust"),
                "{message}"
            );
            for trust in ["all", "none", "[10.0.0.0/8]"] {
                parse(&format!("{listen}\nidentity: {{trust: {trust}}}")).expect(trust);
            }
        }
        parse("listen: {gateway: '[::1]:80'}").expect("loopback");
    }

    #[test]
    fn grpc_off_loopback_needs_certificates() {
        let listen = "listen: {grpc: '0.0.0.0:9190'}";
        let message = parse(listen).expect_err("open");
        assert!(message.starts_with("f.yaml:1: listen.grpc: ") && message.contains("client_ca"), "{message}");
        let config = parse(&format!("{listen}\ntls: {{cert: a, key: b, client_ca: c}}"));
        let config = config.expect("valid");
        assert_eq!(config.check_grpc_address(&config.listen.grpc), Ok(()));
        parse("listen: {grpc: 'unix:/run/p.sock', http: '0.0.0.0:9191'}").expect("the system protects it");
        let half = parse("tls: {cert: a, key: b}").expect_err("half a key");
        assert!(half.contains("client_ca"), "{half}");
    }

    #[test]
    fn envoys_admin_interface_stays_on_loopback() {
        let message = parse("listen: {envoy_admin: '0.0.0.0:9901'}\nidentity: {trust: none}");
        assert!(message.expect_err("open").contains("loopback"));
    }
}
