//! Writes the configuration that may change while Envoy runs: the pools and their servers, in files of a folder that Envoy
//! watches.
//!
//! One file lists the pools (Envoy's CDS), and one file for each pool lists its servers (EDS). Each file is replaced as a
//! whole by a rename in the folder, which is the event that Envoy waits for. A pool's servers are written before the pool
//! is, so that Envoy never waits for them.
//!
//! The reasons, measured with Envoy 1.40 (two workers, 32 clients, about ninety changes in eight seconds):
//! - Neither a changed cluster nor changed servers harm a request that runs, waits, or is requeued over the internal
//!   listener: of about ten thousand requests none was lost, and no connection was closed with a request on it. The requests
//!   of a removed server or pool end normally.
//! - A changed cluster closes all its connections: 36 new ones for each change. Changed servers of the same cluster keep the
//!   connections to the remaining servers: eight new ones in total. So each pool's servers have a separate file.
//! - An endpoint list can name a new server 1 to 4 ms after the rename, once Envoy has applied the change. Until then Envoy
//!   skips the server. So a server must be written before it is granted, and a removed one stays for as long as a grant may
//!   name it ([`Pool::leaving`]).
//! - Listeners and routes don't change: a waiting stream keeps the routes of its arrival, and a changed listener restarts
//!   the filter.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bootstrap::{self, Pool};
use crate::config_source::CLUSTERS_FILE;

/// The folder of watched files of one gateway. Of several companions only the leader writes there; where each pool has a leader
/// of its own, each of them writes its part.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The text of each written file, by file name.
    written: BTreeMap<String, String>,
}

/// The versions of the written files. Envoy reports them as `version_text` once it has applied the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The version of the list of pools; `None` if it wasn't written.
    pub clusters: Option<String>,
    /// The version of each written pool's servers, by the pool's name.
    pub endpoints: Vec<(String, String)>,
}

impl Folder {
    /// Opens the folder at this path, and creates it if it doesn't exist.
    ///
    /// # Errors
    /// The folder can't be created.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        std::fs::create_dir_all(&path)?;
        Ok(Self { path, written: BTreeMap::new() })
    }

    /// The absolute path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The servers that the file of a pool lists, as a companion before this process has written it; none without a valid file.
    #[must_use]
    pub fn servers(&self, pool: &str) -> Vec<SocketAddr> {
        let text = std::fs::read_to_string(self.path.join(endpoints_file(pool))).unwrap_or_default();
        let document: Value = serde_json::from_str(&text).unwrap_or_default();
        let hosts = document["resources"][0]["endpoints"][0]["lb_endpoints"].as_array();
        hosts.into_iter().flatten().filter_map(bootstrap::server_address).collect()
    }

    /// Makes the next write replace every file, because another process may have written since.
    pub fn forget_written(&mut self) {
        self.written.clear();
    }

    /// Writes the files for these pools. Files that don't change aren't written.
    ///
    /// # Errors
    /// A file can't be written. The files before it are written.
    pub fn write(&mut self, pools: &[Pool]) -> io::Result<Versions> {
        self.write_part(pools, true, |_| true)
    }

    /// Writes a part of the files for these pools: the list of pools if `lists`, and the servers of each pool whose name `leads`
    /// accepts. With the list, servers whose file another process hasn't written yet are written, too: Envoy refuses a pool
    /// without one.
    ///
    /// # Errors
    /// A file can't be written. The files before it are written.
    pub fn write_part(
        &mut self,
        pools: &[Pool],
        lists: bool,
        leads: impl Fn(&str) -> bool,
    ) -> io::Result<Versions> {
        let mut clusters = Vec::with_capacity(pools.len());
        let mut endpoints = Vec::with_capacity(pools.len());
        let mut files = vec![CLUSTERS_FILE.to_owned()];
        for pool in pools {
            let file = endpoints_file(&pool.name);
            clusters.push(bootstrap::watched_cluster(pool, &self.path.join(&file)));
            if leads(&pool.name) || (lists && !self.path.join(&file).exists()) {
                let (version, text) =
                    response("endpoint.v3.ClusterLoadAssignment", vec![bootstrap::endpoints(pool)]);
                self.replace(&file, text, false)?;
                endpoints.push((pool.name.clone(), version));
            }
            files.push(file);
        }
        let clusters = if lists {
            let (version, text) = response("cluster.v3.Cluster", clusters);
            let has_credentials = pools.iter().any(|pool| !pool.upstream.headers.is_empty());
            self.replace(CLUSTERS_FILE, text, has_credentials)?;
            Some(version)
        } else {
            None
        };
        self.written.retain(|file, _| {
            let is_current = files.contains(file);
            if !is_current {
                // Envoy no longer reads the file, so it is harmless if the removal fails.
                let _ = std::fs::remove_file(self.path.join(file));
            }
            is_current
        });
        Ok(Versions { clusters, endpoints })
    }

    fn replace(&mut self, file: &str, text: String, is_private: bool) -> io::Result<()> {
        if self.written.get(file) == Some(&text) {
            return Ok(());
        }
        // A companion and its successor may write at the same time, so the temporary name has the process id.
        let new = self.path.join(format!("{file}.{}.new", std::process::id()));
        write(&new, &text, is_private)?;
        std::fs::rename(&new, self.path.join(file))?;
        self.written.insert(file.to_owned(), text);
        Ok(())
    }
}

/// Writes a file. If it is private, other users can't read it.
fn write(path: &Path, text: &str, is_private: bool) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mode = if is_private { 0o640 } else { 0o644 };
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())
}

/// The file name for a pool, whose name may have any characters.
fn endpoints_file(pool: &str) -> String {
    let mut file = "endpoints-".to_owned();
    for byte in pool.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => file.push(char::from(byte)),
            // Writing to a String can't fail.
            _ => drop(write!(file, "%{byte:02x}")),
        }
    }
    file.push_str(".json");
    file
}

/// The version and the text of a file with these resources. The version changes exactly if the resources do.
fn response(kind: &str, resources: Vec<Value>) -> (String, String) {
    let resources: Vec<Value> = resources
        .into_iter()
        .map(|mut resource| {
            resource["@type"] = format!("type.googleapis.com/envoy.config.{kind}").into();
            resource
        })
        .collect();
    let resources = Value::from(resources);
    let mut hasher = DefaultHasher::new();
    resources.to_string().hash(&mut hasher);
    let version = format!("{:016x}", hasher.finish());
    let text = json!({ "version_info": version, "resources": resources }).to_string();
    (version, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Upstream;

    fn pool(name: &str, endpoints: &[&str], leaving: &[&str]) -> Pool {
        let addresses = |list: &[&str]| list.iter().map(|address| address.parse().expect("valid")).collect();
        Pool {
            name: name.into(),
            endpoints: addresses(endpoints),
            leaving: addresses(leaving),
            upstream: Upstream::default(),
        }
    }

    fn files(folder: &Folder) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("readable").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    fn read(folder: &Folder, file: &str) -> Value {
        let text = std::fs::read_to_string(folder.path().join(file)).expect("written");
        serde_json::from_str(&text).expect("JSON")
    }

    #[test]
    fn each_pool_has_a_file_for_any_name_until_it_is_removed() {
        let parent = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::open(&parent.path().join("a/b")).expect("made");
        let names = ["chat", "../x", "a b", "über"];
        let pools = names.map(|name| pool(name, &["127.0.0.1:1"], &[]));
        folder.write(&pools).expect("written");
        let expected = [
            "clusters.json",
            "endpoints-%c3%bcber.json",
            "endpoints-..%2fx.json",
            "endpoints-a%20b.json",
            "endpoints-chat.json",
        ];
        assert_eq!(files(&folder), expected);
        let clusters = read(&folder, CLUSTERS_FILE);
        for (cluster, name) in clusters["resources"].as_array().expect("a list").iter().zip(names) {
            assert_eq!(cluster["name"], name);
            let path = &cluster["eds_cluster_config"]["eds_config"]["path_config_source"]["path"];
            let text = std::fs::read_to_string(path.as_str().expect("a path")).expect("there");
            assert!(text.contains(&format!("\"cluster_name\":\"{name}\"")), "{text}");
        }
        folder.write(&pools[..1]).expect("written");
        assert_eq!(files(&folder), ["clusters.json", "endpoints-chat.json"]);
    }

    #[test]
    fn the_servers_of_a_written_file_can_be_read_again() {
        let parent = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::open(parent.path()).expect("made");
        assert!(folder.servers("a").is_empty(), "there is no file");
        let a = pool("a", &["127.0.0.1:1", "[::1]:2"], &["127.0.0.1:3"]);
        folder.write(std::slice::from_ref(&a)).expect("written");
        let other = Folder::open(parent.path()).expect("there");
        assert_eq!(other.servers("a"), a.endpoints, "without those that leave");
        std::fs::write(parent.path().join("endpoints-a.json"), "{").expect("written");
        assert!(other.servers("a").is_empty());
    }

    #[test]
    fn each_leader_writes_its_part() {
        let parent = tempfile::tempdir().expect("a folder");
        let (mut one, mut other) =
            (Folder::open(parent.path()).expect("made"), Folder::open(parent.path()).expect("there"));
        let pools = |port: u16| ["a", "b"].map(|name| pool(name, &[&format!("127.0.0.1:{port}")], &[]));
        let versions = one.write_part(&pools(1), true, |name| name == "a").expect("written");
        assert!(versions.clusters.is_some());
        assert_eq!(versions.endpoints.len(), 2, "b had no file");
        let versions = other.write_part(&pools(2), false, |name| name == "b").expect("written");
        assert_eq!(versions.clusters, None);
        let versions = one.write_part(&pools(3), true, |name| name == "a").expect("written");
        assert_eq!(versions.endpoints.len(), 1);
        let shows = |file: &str, port: u16| {
            let text = read(&one, file).to_string();
            text.contains(&format!("\"port_value\":{port}"))
        };
        assert!(shows("endpoints-a.json", 3) && shows("endpoints-b.json", 2));
    }

    #[test]
    fn version_changes_exactly_if_its_file_changes() {
        let parent = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::open(parent.path()).expect("there");
        let b = pool("b", &[], &[]);
        let before = folder.write(&[pool("a", &["127.0.0.1:1"], &[]), b.clone()]).expect("written");
        let after =
            folder.write(&[pool("a", &["127.0.0.1:2"], &["127.0.0.1:1"]), b.clone()]).expect("written");
        assert_eq!(before.clusters, after.clusters, "no cluster is rebuilt");
        assert_ne!(before.endpoints[0], after.endpoints[0]);
        assert_eq!(before.endpoints[1], after.endpoints[1]);
        assert_eq!(read(&folder, CLUSTERS_FILE)["version_info"], json!(after.clusters));
        assert_eq!(read(&folder, "endpoints-a.json")["version_info"], after.endpoints[0].1);
        let fewer = folder.write(&[b]).expect("written");
        assert_ne!(fewer.clusters, after.clusters);
    }

    #[test]
    fn leaving_server_is_found_by_a_list_and_not_chosen() {
        let parent = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::open(parent.path()).expect("there");
        folder.write(&[pool("a", &["127.0.0.1:2"], &["127.0.0.1:1"])]).expect("written");
        let file = read(&folder, "endpoints-a.json");
        let hosts = file["resources"][0]["endpoints"][0]["lb_endpoints"].as_array().expect("a list");
        let ports: Vec<_> = hosts
            .iter()
            .map(|host| {
                let port = &host["endpoint"]["address"]["socket_address"]["port_value"];
                let keys = &host["metadata"]["filter_metadata"]["envoy.lb"];
                (port.as_u64(), keys["penstock-server"] == "true")
            })
            .collect();
        assert_eq!(ports, [(Some(2), true), (Some(1), false), (None, false)]);
    }

    #[test]
    fn unchanged_files_are_not_written_again() {
        let parent = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::open(parent.path()).expect("there");
        let pools = [pool("a", &["127.0.0.1:1"], &[])];
        folder.write(&pools).expect("written");
        for file in files(&folder) {
            std::fs::remove_file(folder.path().join(file)).expect("removed");
        }
        folder.write(&pools).expect("nothing to do");
        assert!(files(&folder).is_empty());
    }
}
