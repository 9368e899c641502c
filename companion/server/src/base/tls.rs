//! Mutual TLS on gRPC: reads and checks the files at the start.
//!
//! A peer that can send grants controls the work of the model servers, so both ends must show a certificate of the same
//! authority. The files are read once: new certificates need a new companion, as a rolling update starts it.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_config::{Picker, PickerTls, Tls};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
pub(crate) use tonic::transport::ServerTlsConfig;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server};

/// A peer that doesn't finish the handshake within this time is disconnected.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Why the certificates can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("{key}: {}: {source}", path.display())]
    Read {
        /// The configuration key.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file's content isn't of the expected kind.
    #[error("{key}: {}: the file contains no {kind} in PEM form", path.display())]
    Content {
        /// The configuration key.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The expected kind of content.
        kind: &'static str,
    },
    /// Each file is valid, but they don't belong together.
    #[error("tls: {}, {} and {} don't match: {why}", cert.display(), key.display(), client_ca.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The authority's file.
        client_ca: PathBuf,
        /// The TLS library's error.
        why: String,
    },
}

/// Reads the files. The server accepts only clients with a certificate of the configured authority.
///
/// # Errors
/// When a file can't be read, contains something else, or the key doesn't belong to the certificate.
pub(crate) fn server(tls: &Tls) -> Result<ServerTlsConfig, Error> {
    let (cert, key) = identity(tls)?;
    let client_ca = read("tls.client_ca", &tls.client_ca, "certificate", has_certificates)?;
    let config = ServerTlsConfig::new()
        .identity(Identity::from_pem(cert, key))
        .client_ca_root(Certificate::from_pem(client_ca))
        .timeout(HANDSHAKE);
    match Server::builder().tls_config(config.clone()) {
        Ok(_) => Ok(config),
        Err(error) => Err(mismatch(tls, &error)),
    }
}

/// The certificate of the endpoint picker; `None`: gateways connect in plain text.
///
/// # Errors
/// When a file can't be read, or contains something else.
pub(crate) fn picker(picker: &Picker) -> Result<Option<penstock_picker::Certificate>, Error> {
    match &picker.tls {
        PickerTls::Off => Ok(None),
        PickerTls::Auto => Ok(Some(penstock_picker::Certificate::SelfSigned)),
        PickerTls::Files { cert, key } => {
            let cert = read("picker.tls.cert", cert, "certificate", has_certificates)?;
            let key = read("picker.tls.key", key, "private key", is_key)?;
            Ok(Some(penstock_picker::Certificate::Pem { cert, key }))
        }
    }
}

/// Makes the server accept only clients with a certificate of the configured authority.
///
/// # Errors
/// When the certificates don't match, which [`server`] has checked.
pub(crate) fn apply(server: Server, config: ServerTlsConfig) -> Result<Server, tonic::transport::Error> {
    server.tls_config(config)
}

/// Makes a client show this companion's certificate, and accept only servers with a certificate of the authority that is configured for
/// clients, and that is valid for this name, or for the address if there is none.
///
/// # Errors
/// When a file can't be read, contains something else, or the files don't belong together.
pub(crate) fn apply_to_client(endpoint: Endpoint, tls: &Tls, name: Option<&str>) -> Result<Endpoint, Error> {
    let (cert, key) = identity(tls)?;
    let ca = read("tls.client_ca", &tls.client_ca, "certificate", has_certificates)?;
    let mut config = ClientTlsConfig::new()
        .identity(Identity::from_pem(cert, key))
        .ca_certificate(Certificate::from_pem(ca));
    if let Some(name) = name {
        config = config.domain_name(name);
    }
    endpoint.tls_config(config).map_err(|error| mismatch(tls, &error))
}

/// The certificate and its key.
fn identity(tls: &Tls) -> Result<(Vec<u8>, Vec<u8>), Error> {
    let cert = read("tls.cert", &tls.cert, "certificate", has_certificates)?;
    let key = read("tls.key", &tls.key, "private key", is_key)?;
    Ok((cert, key))
}

fn mismatch(tls: &Tls, error: &tonic::transport::Error) -> Error {
    Error::Pair {
        cert: tls.cert.clone(),
        key: tls.key.clone(),
        client_ca: tls.client_ca.clone(),
        why: error.source().map_or_else(|| error.to_string(), ToString::to_string),
    }
}

fn read(
    key: &'static str,
    path: &Path,
    kind: &'static str,
    is_kind: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, Error> {
    let pem = std::fs::read(path).map_err(|source| Error::Read { key, path: path.into(), source })?;
    if is_kind(&pem) { Ok(pem) } else { Err(Error::Content { key, path: path.into(), kind }) }
}

fn is_key(pem: &[u8]) -> bool {
    PrivateKeyDer::from_pem_slice(pem).is_ok()
}

/// At least one, and nothing that only begins like one.
fn has_certificates(pem: &[u8]) -> bool {
    let mut found = CertificateDer::pem_slice_iter(pem).peekable();
    found.peek().is_some() && found.all(|certificate| certificate.is_ok())
}
