//! What may change while Envoy runs: pools and their servers, in files of a folder that Envoy watches.
//!
//! One file names the pools ([`CLUSTERS`], Envoy's CDS) and one a pool names its servers (EDS). Each is replaced as a
//! whole, by a rename in the folder, which is what Envoy waits for; a pool's servers are there before the pool is, so
//! that Envoy never waits for them.
//!
//! Why so, as it was measured with Envoy 1.40 (two workers, 32 clients, some ninety changes in eight seconds):
//! - Neither a changed cluster nor changed servers harm a request that runs, that is paused, or that enters again by
//!   the internal listener: none of some ten thousand was lost, no connection was closed with a request on it. A server
//!   that is taken out, or a whole pool, ends what runs there normally.
//! - A cluster that changes gives up all its connections: 36 new ones a change. Changed servers of the same cluster keep
//!   those of the servers that stay: eight new ones in all. Hence a file for each pool's servers.
//! - A list finds a new server as soon as the change is applied, 1 to 4 ms after the rename. Until then Envoy skips it,
//!   so it has to be here before it is granted; and one that goes stays here for as long as a grant may be on its way
//!   ([`Pool::leaving`]).
//! - Listeners and routes aren't here: a paused stream holds to the routes of the moment when it came, and a changed
//!   listener starts the filter anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::bootstrap::{self, Pool};

/// The file that names the pools.
pub const CLUSTERS: &str = "clusters.json";

/// The folder of one gateway's Envoys. Nobody else may write there.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// By name.
    written: BTreeMap<String, String>,
}

/// What Envoy says it has applied when it has: its `version_text` of the pools, and of each pool's servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Of [`CLUSTERS`].
    pub clusters: String,
    /// Of each pool, by its name.
    pub endpoints: Vec<(String, String)>,
}

impl Folder {
    /// The folder at this path; it is made if it isn't there.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        std::fs::create_dir_all(&path)?;
        Ok(Self {
            path,
            written: BTreeMap::new(),
        })
    }

    /// Where it is, from the root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes these the pools. A file that says so already is left alone.
    ///
    /// # Errors
    /// When a file can't be written; those before it are.
    pub fn write(&mut self, pools: &[Pool]) -> io::Result<Versions> {
        let mut clusters = Vec::with_capacity(pools.len());
        let mut endpoints = Vec::with_capacity(pools.len());
        let mut files = vec![CLUSTERS.to_owned()];
        for pool in pools {
            let file = endpoints_file(&pool.name);
            clusters.push(bootstrap::watched_cluster(pool, &self.path.join(&file)));
            let (version, text) = response(
                "endpoint.v3.ClusterLoadAssignment",
                vec![bootstrap::endpoints(pool)],
            );
            self.put(&file, text)?;
            endpoints.push((pool.name.clone(), version));
            files.push(file);
        }
        let (version, text) = response("cluster.v3.Cluster", clusters);
        self.put(CLUSTERS, text)?;
        self.written.retain(|file, _| {
            let stays = files.contains(file);
            if !stays {
                // Nothing names it any more: it may as well stay.
                let _ = std::fs::remove_file(self.path.join(file));
            }
            stays
        });
        Ok(Versions {
            clusters: version,
            endpoints,
        })
    }

    fn put(&mut self, file: &str, text: String) -> io::Result<()> {
        if self.written.get(file) == Some(&text) {
            return Ok(());
        }
        // A companion that takes over writes while the one before ends.
        let new = self.path.join(format!("{file}.{}.new", std::process::id()));
        std::fs::write(&new, &text)?;
        std::fs::rename(&new, self.path.join(file))?;
        self.written.insert(file.to_owned(), text);
        Ok(())
    }
}

/// Where Envoy reads a resource, and goes on reading.
pub(crate) fn source(file: &Path) -> Value {
    json!({
        "resource_api_version": "V3",
        "path_config_source": { "path": file },
    })
}

/// A file's name for any name of a pool.
fn endpoints_file(pool: &str) -> String {
    let mut file = "endpoints-".to_owned();
    for byte in pool.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => file.push(char::from(byte)),
            // Writing to a string can't fail.
            _ => drop(write!(file, "%{byte:02x}")),
        }
    }
    file.push_str(".json");
    file
}

/// A file's text: resources of one kind, under a version that changes when they do.
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

    fn pool(name: &str, endpoints: &[&str], leaving: &[&str]) -> Pool {
        let all = |of: &[&str]| of.iter().map(|it| it.parse().expect("valid")).collect();
        Pool {
            name: name.into(),
            endpoints: all(endpoints),
            leaving: all(leaving),
        }
    }

    fn files(folder: &Folder) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .expect("a folder")
            .map(|it| it.expect("readable").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    fn read(folder: &Folder, file: &str) -> Value {
        let text = std::fs::read_to_string(folder.path().join(file)).expect("written");
        serde_json::from_str(&text).expect("JSON")
    }

    #[test]
    fn a_pool_has_a_file_whatever_it_is_called_and_the_file_goes_with_it() {
        let parent = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::open(&parent.path().join("a/b")).expect("made");
        let names = ["chat", "../x", "a b", "über"];
        let pools = names.map(|it| pool(it, &["127.0.0.1:1"], &[]));
        folder.write(&pools).expect("written");
        let expected = [
            "clusters.json",
            "endpoints-%c3%bcber.json",
            "endpoints-..%2fx.json",
            "endpoints-a%20b.json",
            "endpoints-chat.json",
        ];
        assert_eq!(files(&folder), expected);
        let clusters = read(&folder, CLUSTERS);
        for (cluster, name) in clusters["resources"]
            .as_array()
            .expect("a list")
            .iter()
            .zip(names)
        {
            assert_eq!(cluster["name"], name);
            let path = &cluster["eds_cluster_config"]["eds_config"]["path_config_source"]["path"];
            let text = std::fs::read_to_string(path.as_str().expect("a path")).expect("there");
            assert!(text.contains(&format!("\"cluster_name\":\"{name}\"")), "{text}");
        }
        folder.write(&pools[..1]).expect("written");
        assert_eq!(files(&folder), ["clusters.json", "endpoints-chat.json"]);
    }

    #[test]
    fn versions_change_with_what_they_are_of_and_only_then() {
        let parent = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::open(parent.path()).expect("there");
        let b = pool("b", &[], &[]);
        let before = folder
            .write(&[pool("a", &["127.0.0.1:1"], &[]), b.clone()])
            .expect("written");
        let after = folder
            .write(&[pool("a", &["127.0.0.1:2"], &["127.0.0.1:1"]), b.clone()])
            .expect("written");
        assert_eq!(before.clusters, after.clusters, "no cluster is rebuilt");
        assert_ne!(before.endpoints[0], after.endpoints[0]);
        assert_eq!(before.endpoints[1], after.endpoints[1]);
        assert_eq!(read(&folder, CLUSTERS)["version_info"], after.clusters);
        assert_eq!(
            read(&folder, "endpoints-a.json")["version_info"],
            after.endpoints[0].1
        );
        let fewer = folder.write(&[b]).expect("written");
        assert_ne!(fewer.clusters, after.clusters);
    }

    #[test]
    fn who_leaves_is_found_by_a_list_and_not_picked() {
        let parent = tempfile::tempdir().expect("a folder");
        let mut folder = Folder::open(parent.path()).expect("there");
        folder
            .write(&[pool("a", &["127.0.0.1:2"], &["127.0.0.1:1"])])
            .expect("written");
        let file = read(&folder, "endpoints-a.json");
        let hosts = file["resources"][0]["endpoints"][0]["lb_endpoints"]
            .as_array()
            .expect("a list");
        let of: Vec<_> = hosts
            .iter()
            .map(|it| {
                let port = &it["endpoint"]["address"]["socket_address"]["port_value"];
                (port.as_u64(), it["metadata"].is_object())
            })
            .collect();
        assert_eq!(of, [(Some(2), true), (Some(1), false), (None, false)]);
    }

    #[test]
    fn what_says_so_already_isnt_written_again() {
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
