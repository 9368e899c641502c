//! The certificate that Envoy shows to clients, in a file of its own that names the certificate's files.
//!
//! Envoy reads a certificate again only if it comes from such a file (SDS) and not from the bootstrap. The file itself doesn't change.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The name of the certificate in its file and in the listener.
pub(crate) const NAME: &str = "penstock-gateway";

/// A certificate: paths of PEM files, as Envoy sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, followed by its intermediate certificates.
    pub cert: PathBuf,
    /// The private key of the certificate.
    pub key: PathBuf,
}

impl Certificate {
    /// Writes the file from which Envoy learns of the certificate, `file`, atomically.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let new = file.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&new, self.document().to_string())?;
        std::fs::rename(&new, file)
    }

    fn document(&self) -> Value {
        let folder = self.cert.parent().unwrap_or(Path::new("/"));
        json!({ "resources": [{
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            "name": NAME,
            "tls_certificate": {
                "certificate_chain": { "filename": self.cert },
                "private_key": { "filename": self.key },
                // A file that is renamed into the folder, as Kubernetes and tools for certificates replace files.
                "watched_directory": { "path": folder },
            },
        }] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_names_the_folder_in_which_files_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("certificate.json");
        let certificate = Certificate { cert: "/tls/tls.crt".into(), key: "/tls/tls.key".into() };
        certificate.write(&file).expect("written");
        let text = std::fs::read_to_string(&file).expect("there");
        let document: Value = serde_json::from_str(&text).expect("JSON");
        let secret = &document["resources"][0];
        assert_eq!(secret["name"], NAME);
        let files = json!({
            "certificate_chain": { "filename": "/tls/tls.crt" },
            "private_key": { "filename": "/tls/tls.key" },
            "watched_directory": { "path": "/tls" },
        });
        assert_eq!(secret["tls_certificate"], files);
        let names = std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(names, 1, "no temporary file is left");
    }
}
