//! Envoy's pools and endpoints, kept up to date in the files of `--envoy DIR`.
//!
//! Envoy fails a request to an endpoint that it doesn't have. So the files contain a new endpoint, and Envoy has applied
//! them, before a request is granted to it; a removed endpoint stays in the files for a while after its last grant. One
//! task owns the files and this order. Of several companions only the leader writes: a standby may not have discovered all
//! endpoints, and doesn't know the changes that the leader got over HTTP. Where each pool has a leader of its own, that leader
//! writes the pool's endpoints, and the leader of the first pool the list of pools. Without a folder, Envoy has only the endpoints of its bootstrap, and the companion
//! logs a warning about later ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use penstock_config::{Config, Discovered};
use penstock_data_plane::settings;
use penstock_envoy::bootstrap::{Pool, Upstream};
use penstock_envoy::folder::{Folder, Versions};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::base::clock::sleep_until;
use crate::base::essential;
use crate::base::found::Found;
use crate::base::role::RoleReceiver;

/// How long a removed endpoint stays in the files, for grants that are on their way.
const ENDPOINT_LEAVES: Duration = Duration::from_secs(5);
/// How long a removed pool stays in the files: its running requests may be requeued.
const POOL_LEAVES: Duration = Duration::from_secs(60);
/// Wait after a write when Envoy's version can't be read; Envoy applies a file within some milliseconds.
const BLIND_WAIT: Duration = Duration::from_millis(200);
/// The longest wait for Envoy to apply a version.
const APPLY_MAX: Duration = Duration::from_secs(2);
/// Between two reads of Envoy's version.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Between a failed write and the next attempt.
const RETRY: Duration = Duration::from_secs(1);

/// Updates Envoy's pools and endpoints.
#[derive(Debug)]
pub(crate) struct EnvoyPools {
    writer: Option<mpsc::Sender<Admit>>,
    /// The endpoints in Envoy's bootstrap, and those that a warning has named. Empty with a folder.
    known: BTreeMap<String, BTreeSet<SocketAddr>>,
    /// The servers of pools with discovery that the folder had at the start.
    remembered: BTreeMap<String, Vec<SocketAddr>>,
    /// The pools for which discovery has found a list since the start.
    found: BTreeSet<String>,
}

struct Admit {
    pools: Vec<Pool>,
    /// The pools that have discovery, and for which it has found no list since the start.
    unfound: BTreeSet<String>,
    done: oneshot::Sender<()>,
}

impl EnvoyPools {
    /// Writes the pools of this configuration, unless this companion is a standby. `admin` is Envoy's admin interface, if its
    /// address is known.
    ///
    /// # Errors
    /// When the folder can't be written.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn open(
        folder: Option<&Path>,
        admin: Option<SocketAddr>,
        config: &Config,
        role: RoleReceiver,
    ) -> std::io::Result<Self> {
        let mut pools = settings::pools(config);
        let Some(folder) = folder else {
            note_discovery_elsewhere(config);
            let known = pools.into_iter().map(|pool| (pool.name, pool.endpoints.into_iter().collect()));
            return Ok(Self {
                writer: None,
                known: known.collect(),
                remembered: BTreeMap::new(),
                found: BTreeSet::new(),
            });
        };
        let folder = Folder::open(folder)?;
        let remembered = settings::remembered(config, &folder);
        settings::add_remembered(&mut pools, &remembered);
        let (sender, inbox) = mpsc::channel(1);
        let mut writer = FolderWriter {
            folder,
            role,
            admin,
            pools,
            unfound: remembered.keys().cloned().collect(),
            leaving: BTreeMap::new(),
            removed: BTreeMap::new(),
            retry_at: None,
        };
        writer.write_own_part()?;
        essential::spawn("Envoy's pool files", writer.run(inbox));
        Ok(Self { writer: Some(sender), known: BTreeMap::new(), remembered, found: BTreeSet::new() })
    }

    /// The servers of pools with discovery that the folder had at the start.
    #[must_use]
    pub(crate) fn remembered(&self, config: &Config) -> Vec<Found> {
        let found = config.pools.iter().filter_map(|pool| {
            let servers = self.remembered.get(&pool.name).filter(|servers| !servers.is_empty())?;
            let endpoints = servers.iter().map(|server| pool.endpoint_defaults.endpoint(*server));
            Some(Found {
                pool: pool.name.as_str().into(),
                discovery: pool.discovery.clone()?,
                discovered: Discovered { endpoints: endpoints.collect(), ..Discovered::default() },
            })
        });
        found.collect()
    }

    /// Discovery has found lists of these pools.
    pub(crate) fn note_found<'a>(&mut self, pools: impl Iterator<Item = &'a str>) {
        self.found.extend(pools.map(str::to_owned));
    }

    /// Returns when Envoy has all pools and endpoints of this configuration, or should have them by now. Removed ones
    /// are deleted later.
    pub(crate) async fn admit(&mut self, config: &Config) {
        let pools = settings::pools(config);
        let Some(writer) = &self.writer else {
            self.warn_about_new(config);
            return;
        };
        let (done, written) = oneshot::channel();
        // Sending fails when the companion is shutting down.
        let pools_unfound = (config.pools.iter())
            .filter(|pool| pool.discovery.is_some() && !self.found.contains(&pool.name))
            .map(|pool| pool.name.clone());
        let admit = Admit { pools, unfound: pools_unfound.collect(), done };
        if writer.send(admit).await.is_ok() {
            let _ = written.await;
        }
    }

    /// Without a folder, Envoy has the pools and the configured endpoints of its bootstrap, and must discover other endpoints
    /// by itself.
    fn warn_about_new(&mut self, config: &Config) {
        let mut new = Vec::new();
        for pool in &config.pools {
            let name = &pool.name;
            let known = self.known.get(name);
            let is_unknown = |address: &SocketAddr| known.is_none_or(|known| !known.contains(address));
            let configured = pool.endpoints.iter().filter(|_| pool.discovery.is_none());
            let endpoints: Vec<_> =
                (configured.map(|endpoint| endpoint.address)).filter(is_unknown).collect();
            match (known, endpoints.as_slice()) {
                (None, _) => new.push(format!("pool {name}")),
                (Some(_), []) => {}
                (Some(_), some) => new.push(format!("{} of pool {name}", list(some))),
            }
            self.known.entry(name.clone()).or_default().extend(endpoints);
        }
        if !new.is_empty() {
            tracing::warn!(
                "Envoy does not have {}, so requests to it will fail: regenerate Envoy's bootstrap and restart Envoy, or \
                 start both with --envoy DIR (`penstock envoy-config --envoy DIR`, `penstock serve --envoy DIR`)",
                new.join(", ")
            );
        }
    }
}

/// Logs which pools' endpoints Envoy must discover by itself, because this companion writes no folder.
fn note_discovery_elsewhere(config: &Config) {
    let pools = config.pools.iter().filter(|pool| pool.discovery.is_some());
    let names: Vec<&str> = pools.map(|pool| pool.name.as_str()).collect();
    if !names.is_empty() {
        tracing::info!(
            pools = names.join(", "),
            "this companion doesn't pass discovered endpoints to Envoy: each Envoy needs `penstock envoy-endpoints`, a gateway \
             that discovers the same endpoints, or a folder that both use (--envoy DIR)"
        );
    }
}

/// The task that owns the files.
struct FolderWriter {
    folder: Folder,
    role: RoleReceiver,
    admin: Option<SocketAddr>,
    /// The pools and endpoints that requests are granted to.
    pools: Vec<Pool>,
    /// Pools without a list; see [`Admit`]. Their files keep the servers that they have.
    unfound: BTreeSet<String>,
    /// Removed endpoints by pool, and until when they stay in the files. Without an address: a removed pool.
    leaving: BTreeMap<(String, Option<SocketAddr>), Instant>,
    /// The way to the servers of removed pools.
    removed: BTreeMap<String, Upstream>,
    /// When to repeat a failed write.
    retry_at: Option<Instant>,
}

impl FolderWriter {
    async fn run(mut self, mut inbox: mpsc::Receiver<Admit>) {
        loop {
            let next = self.leaving.values().copied().chain(self.retry_at).min();
            tokio::select! {
                message = inbox.recv() => {
                    let Some(Admit { pools, unfound, done }) = message else { return };
                    self.unfound = unfound;
                    let has_new = self.replace(Instant::now(), pools);
                    let written = self.write();
                    if let (true, Some(versions)) = (has_new, written) {
                        wait_until_applied(self.admin, &versions).await;
                    }
                    // Sending fails when the caller no longer waits.
                    let _ = done.send(());
                }
                () = sleep_until(next) => {
                    self.delete_expired(Instant::now());
                    self.write();
                }
                () = changed(&mut self.role) => {
                    self.folder.forget_written();
                    self.write();
                }
            }
        }
    }

    /// Replaces the pools that requests are granted to. Returns whether any pool or endpoint is new.
    fn replace(&mut self, now: Instant, pools: Vec<Pool>) -> bool {
        let has_new = pools.iter().any(|pool| {
            let before = self.pools.iter().find(|before| before.name == pool.name);
            before.is_none_or(|before| {
                before.upstream != pool.upstream
                    || pool.endpoints.iter().any(|address| !before.endpoints.contains(address))
            })
        });
        for before in &self.pools {
            let after = pools.iter().find(|pool| pool.name == before.name);
            if after.is_none() {
                self.leaving.insert((before.name.clone(), None), now + POOL_LEAVES);
                self.removed.insert(before.name.clone(), before.upstream.clone());
            }
            let (remaining, stay) = match after {
                Some(pool) => (pool.endpoints.as_slice(), ENDPOINT_LEAVES),
                None => (&[][..], POOL_LEAVES),
            };
            for address in before.endpoints.iter().filter(|address| !remaining.contains(address)) {
                self.leaving.insert((before.name.clone(), Some(*address)), now + stay);
            }
        }
        self.pools = pools;
        for pool in &self.pools {
            self.leaving.remove(&(pool.name.clone(), None));
            for address in &pool.endpoints {
                self.leaving.remove(&(pool.name.clone(), Some(*address)));
            }
        }
        has_new
    }

    /// Forgets removed endpoints that have stayed long enough.
    fn delete_expired(&mut self, now: Instant) {
        self.leaving.retain(|_, until| *until > now);
        let leaving = &self.leaving;
        self.removed.retain(|pool, _| leaving.contains_key(&(pool.clone(), None)));
    }

    /// The contents of the files: granted endpoints, then removed ones.
    fn file_pools(&self) -> Vec<Pool> {
        let mut all = self.pools.clone();
        for pool in all.iter_mut().filter(|pool| self.unfound.contains(&pool.name)) {
            let mut servers = self.folder.servers(&pool.name);
            servers.retain(|server| !pool.endpoints.contains(server));
            pool.endpoints.extend(servers);
        }
        for (name, address) in self.leaving.keys() {
            let pool = match all.iter_mut().find(|pool| pool.name == *name) {
                Some(pool) => pool,
                None => {
                    let upstream = self.removed.get(name).cloned().unwrap_or_default();
                    all.push(Pool {
                        name: name.clone(),
                        endpoints: Vec::new(),
                        leaving: Vec::new(),
                        upstream,
                    });
                    all.last_mut().expect("invariant: it was pushed")
                }
            };
            pool.leaving.extend(address);
        }
        all
    }

    /// Writes the files whose contents this companion decides as a leader. `None`: there are none.
    fn write_own_part(&mut self) -> std::io::Result<Option<Versions>> {
        let roles = self.role.as_ref().map(|roles| roles.borrow().clone());
        let leads = |pool: &str| roles.as_ref().is_none_or(|roles| roles.of(pool).is_leader());
        let first = self.pools.first().map_or("", |pool| &pool.name);
        let lists = leads(first);
        let pools = self.file_pools();
        if !lists && !pools.iter().any(|pool| leads(&pool.name)) {
            return Ok(None);
        }
        self.folder.write_part(&pools, lists, leads).map(Some)
    }

    /// Writes the files, which are small, without a thread for blocking work. `None`: this companion is a standby, or the files
    /// can't be written.
    fn write(&mut self) -> Option<Versions> {
        match self.write_own_part() {
            Ok(None) => {
                self.retry_at = None;
                None
            }
            Ok(Some(versions)) => {
                if self.retry_at.take().is_some() {
                    tracing::info!("Envoy's pool files can be written again");
                }
                Some(versions)
            }
            Err(why) => {
                let retry_at = self.retry_at.replace(Instant::now() + RETRY);
                if retry_at.is_none() {
                    let folder = self.folder.path().display();
                    tracing::error!(
                        "Envoy's pool files can't be written: {folder}: {why}; Envoy does not get new endpoints; the \
                         companion retries every {RETRY:?}"
                    );
                }
                None
            }
        }
    }
}

/// Returns when the role of this companion has changed.
async fn changed(role: &mut RoleReceiver) {
    let change = async { role.as_mut()?.changed().await.ok() };
    // Without `replicas` the role never changes, and neither does it during shutdown.
    if change.await.is_none() {
        std::future::pending().await
    }
}

/// The first addresses, and the number of the rest.
fn list(addresses: &[SocketAddr]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = addresses.iter().take(SHOWN).map(ToString::to_string).collect();
    match addresses.len().saturating_sub(SHOWN) {
        0 => shown.join(" "),
        more => format!("{} and {more} more", shown.join(" ")),
    }
}

/// Returns when Envoy has applied these versions, after [`APPLY_MAX`] at the latest.
async fn wait_until_applied(admin: Option<SocketAddr>, versions: &Versions) {
    let polling = async {
        let client = reqwest::Client::builder().no_proxy().timeout(APPLY_MAX).build().ok()?;
        let url = format!("http://{}/stats?filter=version_text%24", admin?);
        loop {
            let page = client.get(&url).send().await.ok()?.text().await.ok()?;
            if has_applied(&page, versions) {
                return Some(());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(APPLY_MAX, polling).await {
        Ok(Some(())) => {}
        // Envoy isn't running, so it reads the files when it starts, or its admin interface isn't known.
        Ok(None) => tokio::time::sleep(BLIND_WAIT).await,
        Err(_) => tracing::warn!("Envoy has not applied the new pools and endpoints within {APPLY_MAX:?}"),
    }
}

/// Whether a page of Envoy's statistics shows these versions.
fn has_applied(page: &str, versions: &Versions) -> bool {
    let lines: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name, value.trim().trim_matches('"')))
        .collect();
    let is = |name: &str, version: &str| lines.get(name) == Some(&version);
    (versions.clusters.as_ref()).is_none_or(|version| is("cluster_manager.cds.version_text", version))
        && versions
            .endpoints
            .iter()
            .all(|(pool, version)| is(&format!("cluster.{pool}.version_text"), version))
}

#[cfg(test)]
mod tests {
    use penstock_election::{Role, RoleStatus};
    use tokio::sync::watch;

    use super::*;
    use crate::base::role::Roles;

    fn pool(name: &str, ports: &[u16]) -> Pool {
        Pool {
            name: name.into(),
            endpoints: ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect(),
            leaving: vec![],
            upstream: Upstream::default(),
        }
    }

    fn writer(folder: &Path) -> FolderWriter {
        FolderWriter {
            folder: Folder::open(folder).expect("made"),
            role: None,
            admin: None,
            pools: vec![pool("a", &[1, 2]), pool("b", &[3])],
            unfound: BTreeSet::new(),
            leaving: BTreeMap::new(),
            removed: BTreeMap::new(),
            retry_at: None,
        }
    }

    fn ports(pools: &[Pool]) -> Vec<(String, Vec<u16>, Vec<u16>)> {
        let ports = |all: &[SocketAddr]| all.iter().map(SocketAddr::port).collect();
        pools.iter().map(|pool| (pool.name.clone(), ports(&pool.endpoints), ports(&pool.leaving))).collect()
    }

    #[test]
    fn removed_endpoints_stay_for_a_while_and_returning_ones_are_granted_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(folder.path());
        let now = Instant::now();
        assert!(writer.replace(now, vec![pool("a", &[2, 4])]), "4 is new");
        assert_eq!(
            ports(&writer.file_pools()),
            [("a".into(), vec![2, 4], vec![1]), ("b".into(), vec![], vec![3])]
        );
        assert!(!writer.replace(now, vec![pool("a", &[2])]));
        assert_eq!(
            ports(&writer.file_pools()),
            [("a".into(), vec![2], vec![1, 4]), ("b".into(), vec![], vec![3])]
        );
        assert!(writer.replace(now, vec![pool("b", &[3]), pool("a", &[2, 1])]));
        assert_eq!(
            ports(&writer.file_pools()),
            [("b".into(), vec![3], vec![]), ("a".into(), vec![2, 1], vec![4])]
        );
    }

    #[tokio::test]
    async fn removed_endpoints_are_deleted_before_removed_pools() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(folder.path());
        let now = Instant::now();
        writer.replace(now, vec![pool("a", &[2])]);
        writer.write().expect("written");
        let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        let is_in_files = |port: u16| {
            let text = format!("\"port_value\":{port}");
            file("endpoints-a.json").contains(&text) || file("endpoints-b.json").contains(&text)
        };
        assert_eq!([1, 2, 3].map(is_in_files), [true; 3]);
        for (later, expected) in [(ENDPOINT_LEAVES, [false, true, true]), (POOL_LEAVES, [false, true, false])]
        {
            writer.delete_expired(now + later);
            writer.write().expect("written");
            assert_eq!([1, 2, 3].map(is_in_files), expected);
        }
        assert!(!file("clusters.json").contains("endpoints-b.json"));
    }

    #[tokio::test]
    async fn a_list_that_was_never_found_takes_no_server_away() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = |endpoints: &str| {
            let text = format!("pools: [{{name: a, endpoints: {{{endpoints}}}}}]");
            Config::parse(&text, "f.yaml").expect("valid")
        };
        let files = || std::fs::read_to_string(folder.path().join("endpoints-a.json")).unwrap_or_default();
        let (role, roles) = watch::channel(Roles::Gateway(RoleStatus::default()));
        let discovering = config("file: list.yaml");
        let standby = EnvoyPools::open(Some(folder.path()), None, &discovering, Some(roles));
        let mut standby = standby.expect("a folder");
        // The leader has found a server, and ends.
        let leader = config("static: ['127.0.0.1:1']");
        EnvoyPools::open(Some(folder.path()), None, &leader, None).expect("the leader");
        role.send_replace(Roles::Gateway(RoleStatus { role: Role::Leader, ..RoleStatus::default() }));
        standby.admit(&discovering).await;
        assert!(files().contains("\"port_value\":1"), "{}", files());
        standby.note_found(["a"].into_iter());
        standby.admit(&discovering).await;
        let text = files();
        assert!(!text.contains("\"port_value\":1"), "an empty list was found: {text}");
    }

    #[tokio::test]
    async fn admit_returns_after_the_files_are_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = |pools: &str| Config::parse(&format!("pools: [{pools}]"), "f.yaml").expect("valid");
        let before = config("{name: a, endpoints: {static: ['127.0.0.1:1']}}");
        let mut pools = EnvoyPools::open(Some(folder.path()), None, &before, None).expect("written");
        let after = config("{name: a, endpoints: {static: ['127.0.0.1:2']}}");
        pools.admit(&after).await;
        let text = std::fs::read_to_string(folder.path().join("endpoints-a.json")).expect("there");
        assert!(text.contains("\"port_value\":2"), "{text}");
    }

    #[tokio::test]
    async fn only_the_leader_of_several_companions_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = |port: u16| {
            let text = format!("pools: [{{name: a, endpoints: {{static: ['127.0.0.1:{port}']}}}}]");
            Config::parse(&text, "f.yaml").expect("valid")
        };
        let files = || std::fs::read_to_string(folder.path().join("endpoints-a.json")).unwrap_or_default();
        let of_role = |role| Roles::Gateway(RoleStatus { role, ..RoleStatus::default() });
        let (role, roles) = watch::channel(of_role(Role::Standby));
        let mut standby =
            EnvoyPools::open(Some(folder.path()), None, &config(2), Some(roles)).expect("a folder");
        standby.admit(&config(3)).await;
        assert_eq!(files(), "", "a standby writes nothing");
        EnvoyPools::open(Some(folder.path()), None, &config(1), None).expect("the present leader");
        assert!(files().contains("\"port_value\":1"), "{}", files());

        role.send_replace(of_role(Role::Leader));
        // The change of the role is handled before or with the next command.
        standby.admit(&config(3)).await;
        let text = files();
        assert!(text.contains("\"port_value\":3") && !text.contains("\"port_value\":1"), "{text}");
        role.send_replace(of_role(Role::Standby));
        standby.admit(&config(4)).await;
        assert_eq!(files(), text, "a standby again");
    }

    #[test]
    fn versions_are_applied_when_the_statistics_show_them() {
        let versions = Versions { clusters: Some("c1".into()), endpoints: vec![("a".into(), "e1".into())] };
        let cds = "cluster_manager.cds.version_text: \"c1\"\n";
        let old = format!("cluster.a.version_text: \"e0\"\n{cds}");
        let new = format!("cluster.a.version_text: \"e1\"\n{cds}");
        assert!(!has_applied(cds, &versions) && !has_applied(&old, &versions) && !has_applied("", &versions));
        assert!(has_applied(&new, &versions));
    }

    #[tokio::test]
    async fn without_a_folder_new_endpoints_are_warned_about_once() {
        let config = |pools: &str| Config::parse(&format!("pools: [{pools}]"), "f.yaml").expect("valid");
        let before = config("{name: a, models: [a], endpoints: {static: ['127.0.0.1:1']}}");
        let mut pools = EnvoyPools::open(None, None, &before, None).expect("nothing to write");
        let after = config(
            "{name: a, models: [a], endpoints: {static: ['127.0.0.1:1', '127.0.0.1:2']}}, \
             {name: b, models: [b], endpoints: {static: ['127.0.0.1:3']}}",
        );
        pools.admit(&after).await;
        let known: Vec<_> = pools.known.iter().map(|(pool, all)| (pool.as_str(), all.len())).collect();
        assert_eq!(known, [("a", 2), ("b", 1)]);
    }
}
