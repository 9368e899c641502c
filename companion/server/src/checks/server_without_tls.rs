//! Stands in for TLS to model servers in a build without it. The configuration refuses `upstream.tls` then.

use std::net::IpAddr;

use penstock_config::UpstreamTls;
use tokio::net::TcpStream;

/// Never made.
pub(super) enum Connector {}

impl Connector {
    /// # Errors
    /// Always.
    pub(super) fn new(_: &UpstreamTls, _: IpAddr, _: bool) -> Result<Self, String> {
        Err("this binary was built without tls".into())
    }

    /// Not called.
    #[expect(clippy::unused_async, reason = "the interface of the build with TLS")]
    pub(super) async fn connect(&self, _: TcpStream) -> Result<TcpStream, String> {
        match *self {}
    }
}
