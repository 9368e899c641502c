//! TLS to model servers, as Envoy does it for requests.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use penstock_config::UpstreamTls;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// Connects to one server.
pub(super) struct Connector {
    connector: tokio_rustls::TlsConnector,
    name: ServerName<'static>,
}

impl Connector {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence about the file or the name that can't be used.
    pub(super) fn new(tls: &UpstreamTls, address: IpAddr, http2: bool) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match &tls.authorities {
            Some(file) => {
                let mut roots = RootCertStore::empty();
                // A file of many authorities may have some that this library doesn't know.
                roots.add_parsable_certificates(certificates(file)?);
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                    .build()
                    .map_err(|error| format!("{}: {error}", file.display()))?
            }
            None => Arc::new(AnyCertificate(provider.clone())),
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &tls.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let private = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| format!("{}: {error}", key.display()))?;
                builder
                    .with_client_auth_cert(certificates(cert)?, private)
                    .map_err(|error| format!("{}, {}: {error}", cert.display(), key.display()))?
            }
        };
        config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let name = match &tls.server_name {
            Some(name) => ServerName::try_from(name.clone())
                .map_err(|_| format!("upstream.tls.server_name: `{name}` isn't a name"))?,
            None => ServerName::IpAddress(address.into()),
        };
        Ok(Self { connector: Arc::new(config).into(), name })
    }

    /// The handshake.
    ///
    /// # Errors
    /// The library's error.
    pub(super) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        self.connector.connect(self.name.clone(), stream).await.map_err(|error| error.to_string())
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |error: rustls_pki_types::pem::Error| format!("{}: {error}", file.display());
    CertificateDer::pem_file_iter(file).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

/// Accepts every certificate, for `insecure: true`.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
