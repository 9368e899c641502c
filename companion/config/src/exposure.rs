//! What must not be reached from other machines unless something protects it there.
//!
//! On loopback and on unix sockets the system says who comes in. Elsewhere the gateway needs somebody to have decided
//! whose claims count, and gRPC, which hands out grants, needs certificates on both ends. The HTTP side may be reached:
//! it shows nothing private, and changes nothing without the admin token.

use super::{Address, Config, Exposed};

impl Config {
    /// The gateway's clients are on this machine, or somebody said whose claims count.
    pub(super) fn gateway_is_protected(&self, trust_is_given: bool) -> Result<(), Exposed> {
        if trust_is_given || self.listen.gateway.ip().is_loopback() {
            return Ok(());
        }
        Err(Exposed {
            key: "listen.gateway",
            message: format!(
                "`{}` isn't a loopback address: say whose claims count, with identity.trust: all, none, or a list \
                 of networks like [10.0.0.0/8]",
                self.listen.gateway
            ),
        })
    }

    /// gRPC is reached from this machine alone, or with a certificate.
    pub(super) fn grpc_is_protected(&self) -> Result<(), Exposed> {
        self.may_serve_grpc_at(&self.listen.grpc)
    }

    /// The same if gRPC were served there, as a flag may say.
    ///
    /// # Errors
    /// When nothing would protect it.
    pub fn may_serve_grpc_at(&self, address: &Address) -> Result<(), Exposed> {
        match address {
            Address::Tcp(address) if !address.ip().is_loopback() && self.tls.is_none() => Err(Exposed {
                key: "listen.grpc",
                message: format!(
                    "`{address}` isn't a loopback address: this needs tls: {{cert, key, client_ca}}; without it, a \
                     loopback address or unix:/path"
                ),
            }),
            Address::Tcp(_) | Address::Unix(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    fn parse(head: &str) -> Result<Config, String> {
        let text = format!("{head}\npools: [{{name: a, endpoints: {{static: ['127.0.0.1:8001']}}}}]");
        Config::parse(&text, "f.yaml").map_err(|why| why.to_string())
    }

    #[test]
    fn a_gateway_for_others_needs_a_word_on_trust() {
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
    fn grpc_for_others_needs_certificates() {
        let listen = "listen: {grpc: '0.0.0.0:9190'}";
        let message = parse(listen).expect_err("open");
        assert!(
            message.starts_with("f.yaml:1: listen.grpc: ") && message.contains("client_ca"),
            "{message}"
        );
        let config = parse(&format!("{listen}\ntls: {{cert: a, key: b, client_ca: c}}"));
        assert_eq!(config.expect("valid").grpc_is_protected(), Ok(()));
        parse("listen: {grpc: 'unix:/run/p.sock', http: '0.0.0.0:9191'}").expect("the system protects it");
        let half = parse("tls: {cert: a, key: b}").expect_err("half a key");
        assert!(half.contains("client_ca"), "{half}");
    }

    #[test]
    fn nothing_protects_envoys_admin_interface() {
        let message = parse("listen: {envoy_admin: '0.0.0.0:9901'}\nidentity: {trust: none}");
        assert!(message.expect_err("open").contains("loopback"));
    }
}
