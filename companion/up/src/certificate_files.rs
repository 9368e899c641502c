//! Checks the files of `listen.tls` before Envoy reads them: Envoy would start, log a warning, and refuse every connection.

use std::io;
use std::path::{Path, PathBuf};

use penstock_envoy::certificate::Certificate;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Why the certificate for clients can't be used.
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
}

/// Checks that both files can be read, and contain a certificate and a private key.
///
/// # Errors
/// One doesn't.
pub(crate) fn check(certificate: &Certificate) -> Result<(), Error> {
    check_file("listen.tls.cert", &certificate.cert, "certificate", |pem| {
        CertificateDer::from_pem_slice(pem).is_ok()
    })?;
    check_file("listen.tls.key", &certificate.key, "private key", |pem| {
        PrivateKeyDer::from_pem_slice(pem).is_ok()
    })
}

fn check_file(
    key: &'static str,
    path: &Path,
    kind: &'static str,
    is_kind: impl Fn(&[u8]) -> bool,
) -> Result<(), Error> {
    let pem = std::fs::read(path).map_err(|source| Error::Read { key, path: path.into(), source })?;
    if is_kind(&pem) { Ok(()) } else { Err(Error::Content { key, path: path.into(), kind }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_exchanged_files_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let certificate = Certificate { cert: path("cert"), key: path("key") };
        let error = || check(&certificate).expect_err("wrong").to_string();
        assert!(error().starts_with("listen.tls.cert: "), "{}", error());
        std::fs::write(path("cert"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .expect("written");
        std::fs::write(path("key"), std::fs::read(path("cert")).expect("read")).expect("written");
        assert!(error().ends_with("contains no private key in PEM form"), "{}", error());
        std::fs::write(path("key"), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
            .expect("written");
        check(&certificate).expect("both are there");
    }
}
