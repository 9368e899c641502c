//! Stands in for mutual TLS in a binary without the feature `tls`, which refuses such a configuration.

use penstock_config::Tls;
use tonic::transport::Server;

/// A configuration of TLS; there is none.
#[derive(Clone, Debug)]
pub enum ServerTlsConfig {}

/// TLS is configured.
#[derive(Debug, thiserror::Error)]
#[error("tls: this binary was built without tls; build it with `--features tls`")]
pub struct Error;

/// Always fails.
///
/// # Errors
/// Always.
pub const fn server(_tls: &Tls) -> Result<ServerTlsConfig, Error> {
    Err(Error)
}

/// Can't be called: there is no configuration.
///
/// # Errors
/// None.
pub fn apply(_server: Server, config: ServerTlsConfig) -> Result<Server, tonic::transport::Error> {
    match config {}
}
