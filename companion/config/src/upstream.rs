//! How the gateway connects to a pool's model servers: TLS, HTTP/2 and credentials.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use siphasher::sip::SipHasher13;

use super::error::Error;

/// The most headers that the gateway sets on requests to one pool.
pub(crate) const HEADERS_MAX: usize = 16;
/// Bytes of a header's value. Servers accept 8 KiB and more for all headers together.
pub(crate) const VALUE_BYTES_MAX: usize = 4 << 10;

/// The request headers that carry a client's credential. With a credential of the gateway's own, none of the client's reaches a server.
pub const CREDENTIAL_HEADERS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

/// Shown in place of a header's value.
pub(crate) const MASK: &str = "***";

/// Where operating systems keep the certificates of the authorities that they trust, as one file.
const SYSTEM_AUTHORITIES: [&str; 6] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/ssl/cert.pem",
];

/// How the gateway connects to the model servers of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// `None`: plain text.
    pub tls: Option<UpstreamTls>,
    /// Servers are sent HTTP/2, not HTTP/1.1.
    pub http2: bool,
    /// Headers of every request that reaches a server, in the order of their names.
    pub headers: Vec<UpstreamHeader>,
}

impl Upstream {
    /// The requests have a credential of the gateway's own.
    #[must_use]
    pub fn has_credential(&self) -> bool {
        self.headers.iter().any(|header| header.file.is_some() || CREDENTIAL_HEADERS.contains(&&*header.name))
    }
}

/// TLS to model servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The file with the authorities' certificates; `None`: servers are not verified.
    pub authorities: Option<PathBuf>,
    /// The files of the gateway's own certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the certificate must have, and that the handshake names; `None`: the certificate has the server's address.
    pub server_name: Option<String>,
    /// A hash of the files' contents, so that a change of a file is a change of the configuration; 0 until
    /// [`Config::read_secrets`](super::Config::read_secrets).
    pub digest: u64,
}

impl UpstreamTls {
    /// TLS with the authorities of the operating system.
    ///
    /// # Errors
    /// When there is no file of them.
    pub(crate) fn of_system() -> Result<Self, String> {
        Ok(Self { authorities: Some(system_authorities()?), identity: None, server_name: None, digest: 0 })
    }

    /// The files, each with the word that its PEM blocks contain.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, &'static str)> {
        let authorities = self.authorities.iter().map(|file| (file.as_path(), "CERTIFICATE"));
        let identity = self.identity.iter();
        authorities.chain(
            identity
                .flat_map(|(cert, key)| [(cert.as_path(), "CERTIFICATE"), (key.as_path(), "PRIVATE KEY")]),
        )
    }

    /// Reads the files for their digest.
    ///
    /// # Errors
    /// When a file can't be read or has no PEM block of its kind.
    pub(crate) fn read(&mut self, key: &str) -> Result<(), Error> {
        let mut hasher = SipHasher13::new();
        for (file, kind) in self.files() {
            let failed = |message: String| Error::Value {
                origin: key.to_owned(),
                key: file.display().to_string(),
                message,
            };
            let bytes = std::fs::read(file).map_err(|error| failed(error.to_string()))?;
            let text = String::from_utf8_lossy(&bytes);
            let is_kind = |line: &str| line.starts_with("-----BEGIN ") && line.contains(kind);
            if !text.lines().any(is_kind) {
                return Err(failed(format!("the file has no {kind} in PEM form")));
            }
            bytes.hash(&mut hasher);
        }
        self.digest = hasher.finish();
        Ok(())
    }
}

/// The file with the authorities that the operating system trusts, which `SSL_CERT_FILE` overrides.
pub(crate) fn system_authorities() -> Result<PathBuf, String> {
    if let Some(file) = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty()) {
        let file = PathBuf::from(file);
        return if file.is_file() {
            Ok(file)
        } else {
            Err(format!("SSL_CERT_FILE names {}, which isn't a file", file.display()))
        };
    }
    let found = SYSTEM_AUTHORITIES.into_iter().map(Path::new).find(|file| file.is_file());
    found.map(Path::to_owned).ok_or_else(|| {
        format!(
            "this system has no file of authorities (looked for {}): set upstream.tls.ca, or SSL_CERT_FILE",
            SYSTEM_AUTHORITIES.join(", ")
        )
    })
}

/// A header that the gateway sets on requests to model servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamHeader {
    /// In lower case.
    pub name: String,
    /// The header's value; `None` until [`Config::read_secrets`](super::Config::read_secrets) has read it from `file`.
    pub value: Option<Secret>,
    /// The file with the value; `None`: the configuration has it.
    pub file: Option<PathBuf>,
}

/// A text that appears in no error, log line or page.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// A secret with this text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text. Never show or log it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(MASK)
    }
}

/// Reads a header's value from a file. White space around it doesn't count.
///
/// # Errors
/// When the file can't be read or isn't one line of printable ASCII.
pub fn read_secret(path: &Path, key: &str) -> Result<Secret, Error> {
    let failed =
        |message: String| Error::Value { origin: key.to_owned(), key: path.display().to_string(), message };
    let length = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if length > 2 * VALUE_BYTES_MAX as u64 {
        return Err(failed(format!("the file has more than {} bytes", 2 * VALUE_BYTES_MAX)));
    }
    let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let text = std::str::from_utf8(&bytes).unwrap_or("\u{fffd}").trim();
    check_value(text).map_err(|why| failed(format!("the file's content {why}")))?;
    Ok(Secret::new(text))
}

/// Checks a header's value; the error doesn't show it.
pub(crate) fn check_value(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("is empty".into());
    }
    if text.len() > VALUE_BYTES_MAX {
        return Err(format!("has more than {VALUE_BYTES_MAX} bytes"));
    }
    if text.trim() != text || !text.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
        return Err("must be one line of printable ASCII without spaces at its ends".into());
    }
    Ok(())
}

/// The values in the `upstream.headers` of a pool of a document.
fn values(pool: &mut Value) -> impl Iterator<Item = (String, &mut Value)> {
    let headers = pool.get_mut("upstream").and_then(|upstream| upstream.get_mut("headers"));
    let headers = headers.and_then(Value::as_object_mut).into_iter().flatten();
    headers.filter_map(|(name, header)| {
        let value = header.get_mut("value").filter(|value| value.is_string())?;
        Some((name.to_ascii_lowercase(), value))
    })
}

fn pools(document: &mut Value) -> impl Iterator<Item = &mut Value> {
    document.get_mut("pools").and_then(Value::as_array_mut).into_iter().flatten()
}

/// Replaces the value of every header of a document by [`MASK`].
pub(super) fn mask(document: &mut Value) {
    for (_, value) in pools(document).flat_map(values) {
        *value = MASK.into();
    }
}

/// Replaces each [`MASK`] by the value that the header has in the pool of the same name in `known`, if that pool has the same endpoints and the same `tls`:
/// a value must not be sent to another server. Returns whether there was one to replace.
pub(super) fn unmask(document: &mut Value, known: &Value) -> bool {
    let mut known = known.clone();
    let mut found = false;
    for pool in pools(document) {
        let has_same = |other: &Value| {
            let tls = |pool: &Value| pool.pointer("/upstream/tls").cloned().unwrap_or_default();
            other.get("name") == pool.get("name")
                && other.get("endpoints") == pool.get("endpoints")
                && tls(other) == tls(pool)
        };
        let Some(namesake) = pools(&mut known).find(|other| has_same(other)) else {
            continue;
        };
        let before: BTreeMap<String, Value> =
            values(namesake).map(|(name, value)| (name, value.clone())).collect();
        for (name, value) in values(pool).filter(|(_, value)| **value == MASK) {
            if let Some(before) = before.get(&name) {
                value.clone_from(before);
                found = true;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_masked_value_stays_for_the_same_pool_and_servers_only() {
        let document = |name: &str, server: &str, value: &str| {
            json!({"pools": [{"name": name, "endpoints": {"static": [server]}, "upstream": {
                "tls": null, "headers": {"Authorization": {"value": value, "file": null}, "x-a": {"value": null, "file": "f"}},
            }}]})
        };
        let known = document("a", "127.0.0.1:1", "hunter2");
        let mut shown = known.clone();
        mask(&mut shown);
        assert_eq!(shown, document("a", "127.0.0.1:1", "***"));
        assert!(unmask(&mut shown, &known));
        assert_eq!(shown, known);
        for (name, server) in [("b", "127.0.0.1:1"), ("a", "127.0.0.1:2")] {
            let mut other = document(name, server, "***");
            assert!(!unmask(&mut other, &known), "a value isn't sent elsewhere");
            assert_eq!(other, document(name, server, "***"));
        }
    }

    #[test]
    fn a_secret_is_read_without_its_line_end_and_never_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        std::fs::write(&file, "Bearer hunter2\n").expect("written");
        let secret = read_secret(&file, "k").expect("read");
        assert_eq!(secret.reveal(), "Bearer hunter2");
        assert_eq!(format!("{secret:?}"), "***");
        for wrong in ["", "\n", "a\nhunter2", "hunter2\u{e9}"] {
            std::fs::write(&file, wrong).expect("written");
            let message = read_secret(&file, "k").expect_err("no value").to_string();
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert!(read_secret(&folder.path().join("none"), "k").is_err());
    }
}
