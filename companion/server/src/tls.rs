//! Mutual TLS on gRPC: the files, read and checked at the start.
//!
//! Whoever holds grants decides what model servers work on, so both ends show a certificate of the same authority.
//! The files are read once: a new certificate needs a new companion, which is what rolling updates bring.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_config::Tls;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
pub use tonic::transport::ServerTlsConfig;
use tonic::transport::{Certificate, Identity, Server};

/// A peer that takes longer to show its certificate is hung up on.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Certificates that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file can't be read.
    #[error("{key}: {}: {source}", path.display())]
    Read {
        /// Where the configuration names it.
        key: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{key}: {}: this holds no {what} in PEM form", path.display())]
    Content {
        /// Where the configuration names it.
        key: &'static str,
        /// Which.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// Each is well by itself.
    #[error("tls: {}, {} and {} don't fit together: {why}", cert.display(), key.display(), client_ca.display())]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// The authority.
        client_ca: PathBuf,
        /// As the library says.
        why: String,
    },
}

/// Reads the files; with the result, only clients with a certificate of that authority are let in.
///
/// # Errors
/// When a file is missing, holds something else, or the key isn't the certificate's.
pub fn server(tls: &Tls) -> Result<ServerTlsConfig, Error> {
    let certificate = "certificate";
    let cert = read("tls.cert", &tls.cert, certificate, has_certificates)?;
    let key = read("tls.key", &tls.key, "private key", |pem| {
        PrivateKeyDer::from_pem_slice(pem).is_ok()
    })?;
    let client_ca = read("tls.client_ca", &tls.client_ca, certificate, has_certificates)?;
    let config = ServerTlsConfig::new()
        .identity(Identity::from_pem(cert, key))
        .client_ca_root(Certificate::from_pem(client_ca))
        .timeout(HANDSHAKE);
    match Server::builder().tls_config(config.clone()) {
        Ok(_) => Ok(config),
        Err(error) => Err(Error::Pair {
            cert: tls.cert.clone(),
            key: tls.key.clone(),
            client_ca: tls.client_ca.clone(),
            why: error
                .source()
                .map_or_else(|| error.to_string(), ToString::to_string),
        }),
    }
}

/// Has a server let in only clients with a certificate of that authority.
///
/// # Errors
/// When the certificates don't fit together, which [`server`] has checked.
pub fn apply(server: Server, config: ServerTlsConfig) -> Result<Server, tonic::transport::Error> {
    server.tls_config(config)
}

fn read(
    key: &'static str,
    path: &Path,
    what: &'static str,
    holds: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, Error> {
    let pem = std::fs::read(path).map_err(|source| Error::Read {
        key,
        path: path.into(),
        source,
    })?;
    if holds(&pem) {
        Ok(pem)
    } else {
        Err(Error::Content {
            key,
            path: path.into(),
            what,
        })
    }
}

/// At least one, and nothing that only begins like one.
fn has_certificates(pem: &[u8]) -> bool {
    let mut found = CertificateDer::pem_slice_iter(pem).peekable();
    found.peek().is_some() && found.all(|it| it.is_ok())
}
