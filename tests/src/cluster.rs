//! The API server of `KUBECONFIG`, a cluster for tests, with an account for companions.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binary;

/// The namespace of the pages, and their account.
pub const NAMESPACE: &str = "models";
const ACCOUNT: &str = "penstock";

/// A cluster for tests, prepared for companions.
pub struct Cluster {
    folder: TempDir,
    /// The API server's URL.
    pub server: String,
    authority: String,
    token: String,
}

/// Runs kubectl with this input, and returns its output.
///
/// # Panics
/// If kubectl fails.
pub fn kubectl(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("kubectl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("kubectl is installed");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("kubectl reads");
    drop(stdin);
    let output = child.wait_with_output().expect("kubectl ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "kubectl {arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// The Role and the RoleBinding of a page in docs.
fn documented_role(page: &str) -> String {
    let page = std::fs::read_to_string(binary::workspace().join("docs").join(page)).expect("a page");
    let blocks = page.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let documents = blocks.flat_map(|block| block.split("---\n"));
    let rbac: Vec<&str> =
        documents.filter(|document| document.contains("rbac.authorization.k8s.io")).collect();
    assert!(rbac.len() >= 2, "a Role and a RoleBinding: {rbac:?}");
    rbac.join("---\n")
}

impl Cluster {
    /// Makes the namespace and the account, with the permissions that this page of docs shows.
    ///
    /// # Panics
    /// Without `KUBECONFIG` or kubectl, or if the API server refuses.
    #[must_use]
    pub fn prepare(page: &str) -> Self {
        assert!(
            std::env::var_os("KUBECONFIG").is_some(),
            "set KUBECONFIG to a cluster for tests: this test writes into its namespace `{NAMESPACE}`"
        );
        let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}},
        ]});
        kubectl(&["apply", "-f", "-"], &objects.to_string());
        kubectl(&["apply", "-f", "-"], &documented_role(page));
        let token = kubectl(&["create", "token", ACCOUNT, "-n", NAMESPACE], "");
        let view = kubectl(&["config", "view", "--raw", "--minify", "--flatten", "-o", "json"], "");
        let view: Value = serde_json::from_str(&view).expect("JSON");
        let cluster = &view["clusters"][0]["cluster"];
        let text = |key: &str| cluster[key].as_str().unwrap_or_default().to_owned();
        Self {
            folder: tempfile::tempdir().expect("a temporary folder"),
            server: text("server"),
            authority: text("certificate-authority-data"),
            token: token.trim().to_owned(),
        }
    }

    /// A kubeconfig of the companions' account that reaches the API server at `server`.
    ///
    /// # Panics
    /// If the file can't be written.
    #[must_use]
    pub fn kubeconfig(&self, name: &str, server: &str) -> PathBuf {
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": self.authority}}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
            "current-context": "x",
        });
        let path = self.folder.path().join(name);
        std::fs::write(&path, config.to_string()).expect("written");
        path
    }

    /// The API server's address.
    ///
    /// # Panics
    /// If it isn't an IP address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let authority = self.server.trim_start_matches("https://").trim_end_matches('/');
        authority.parse().expect("an IP address and a port")
    }
}
