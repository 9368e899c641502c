//! Replaces mutual TLS in a binary without the feature `tls`, which rejects such a configuration.

use penstock_config::{Picker, PickerTls, Tls};
use tonic::transport::{Endpoint, Server};

/// Never constructed: [`server`] fails.
#[derive(Clone, Debug)]
pub(crate) enum ServerTlsConfig {}

/// TLS is configured, and this binary lacks it.
#[derive(Debug, thiserror::Error)]
#[error("tls: this binary was built without tls; build it with `--features tls`")]
pub struct Error;

/// Always fails.
///
/// # Errors
/// Always.
pub(crate) const fn server(_tls: &Tls) -> Result<ServerTlsConfig, Error> {
    Err(Error)
}

/// Always fails.
///
/// # Errors
/// Always.
pub(crate) fn apply_to_client(
    _endpoint: Endpoint,
    _tls: &Tls,
    _name: Option<&str>,
) -> Result<Endpoint, Error> {
    Err(Error)
}

/// The endpoint picker's certificate, which a configuration without TLS doesn't have.
///
/// # Errors
/// When the configuration has one.
pub(crate) fn picker(picker: &Picker) -> Result<Option<penstock_picker::Certificate>, Error> {
    if picker.tls == PickerTls::Off { Ok(None) } else { Err(Error) }
}

/// Can't be called, because no configuration can be constructed.
///
/// # Errors
/// None.
pub(crate) fn apply(_server: Server, config: ServerTlsConfig) -> Result<Server, tonic::transport::Error> {
    match config {}
}
