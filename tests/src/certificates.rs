//! Certificates for mutual TLS.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A certificate authority, and a certificate that it issued, as files.
pub struct Certificates {
    /// The certificate, valid for this machine.
    pub cert: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The authority.
    pub ca: PathBuf,
}

impl Certificates {
    /// Files in this folder, whose names begin with `name`.
    ///
    /// # Panics
    /// If a file can't be written.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A certificate with its authority's name would look self-signed.
        let named = format!("authority of {name}");
        authority.distinguished_name.push(DnType::CommonName, named);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key"))
            .expect("an authority");
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let cert = CertificateParams::new(names).expect("parameters");
        let cert = cert.signed_by(&key, &authority).expect("a certificate");
        let write = |kind: &str, text: String| {
            let path = folder.join(format!("{name}-{kind}.pem"));
            std::fs::write(&path, text).expect("write a file");
            path
        };
        Self {
            cert: write("cert", cert.pem()),
            key: write("key", key.serialize_pem()),
            ca: write("ca", authority.pem()),
        }
    }

    /// The key `tls` of a configuration.
    #[must_use]
    pub fn configured(&self) -> String {
        format!(
            "tls: {{cert: '{}', key: '{}', client_ca: '{}'}}\n",
            self.cert.display(),
            self.key.display(),
            self.ca.display()
        )
    }
}
