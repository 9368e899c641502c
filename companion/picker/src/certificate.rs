//! The picker's certificate.

/// What the picker shows to gateways. They don't verify it by default.
#[derive(Clone)]
pub enum Certificate {
    /// One that is made at the start, and signed by itself.
    SelfSigned,
    /// This one, with its key, in PEM form.
    Pem {
        /// The certificate, followed by its intermediate certificates.
        cert: Vec<u8>,
        /// The private key.
        key: Vec<u8>,
    },
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No certificate can be made.
    #[cfg(feature = "tls")]
    #[error("picker.tls: no certificate can be made: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// The certificate can't be used.
    #[error("picker.tls: {0}")]
    Unusable(String),
}

/// Has a server show the certificate.
///
/// # Errors
/// When there is none, or key and certificate don't belong together.
#[cfg(feature = "tls")]
pub(crate) fn tls(certificate: &Certificate) -> Result<tonic::transport::ServerTlsConfig, Error> {
    use std::error::Error as _;

    use tonic::transport::{Identity, Server, ServerTlsConfig};

    let identity = match certificate {
        Certificate::Pem { cert, key } => Identity::from_pem(cert, key),
        Certificate::SelfSigned => {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
            Identity::from_pem(made.cert.pem(), made.signing_key.serialize_pem())
        }
    };
    let config = ServerTlsConfig::new().identity(identity);
    match Server::builder().tls_config(config.clone()) {
        Ok(_) => Ok(config),
        Err(error) => {
            // Its own text says nothing.
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            Err(Error::Unusable(why))
        }
    }
}

impl core::fmt::Debug for Certificate {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("Certificate")
    }
}
