//! What Envoy knows of pools and endpoints, kept true while both change: the files of `--envoy DIR`.
//!
//! Envoy skips an endpoint that it doesn't know, so who is new is written, and applied, before anything is granted to it;
//! and who goes is found for a while after the last grant. One task owns the files and that order. Without a folder
//! Envoy knows what its bootstrap said: what comes later is granted in vain, and warned of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use penstock_config::Config;
use penstock_data_plane::settings;
use penstock_envoy::bootstrap::Pool;
use penstock_envoy::folder::{Folder, Versions};
use penstock_envoy::limits;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// How long an endpoint is found after it has gone, for grants on their way.
const ENDPOINT_LEAVES: Duration = Duration::from_secs(5);
/// The same for a pool: what runs there may be sent to it again.
const POOL_LEAVES: Duration = Duration::from_secs(60);
/// Envoy takes a file within some milliseconds; this is waited where it can't be asked.
const PAUSE: Duration = Duration::from_millis(200);
/// It is asked no longer than this.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(5);
/// After files that couldn't be written.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// Keeps Envoy's pools true.
#[derive(Debug)]
pub struct EnvoyPools {
    writer: Option<mpsc::Sender<Admit>>,
    /// What Envoy knows without a folder, and what was warned of.
    known: BTreeMap<String, BTreeSet<SocketAddr>>,
    /// How long it lets a stream stand still, as far as is known here.
    stands_still: Duration,
}

struct Admit {
    pools: Vec<Pool>,
    done: oneshot::Sender<()>,
}

impl EnvoyPools {
    /// Writes what this configuration lists. `admin` is where Envoy is asked what it has applied, if it is known.
    ///
    /// # Errors
    /// When the folder can't be written.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(folder: Option<&Path>, admin: Option<SocketAddr>, config: &Config) -> std::io::Result<Self> {
        let pools = settings::pools(config);
        let stands_still = settings::stream_idle_timeout(config);
        let Some(folder) = folder else {
            let known = pools
                .into_iter()
                .map(|it| (it.name, it.endpoints.into_iter().collect()));
            return Ok(Self {
                writer: None,
                known: known.collect(),
                stands_still,
            });
        };
        let mut folder = Folder::open(folder)?;
        folder.write(&pools)?;
        let (orders, inbox) = mpsc::channel(1);
        let writer = Writer {
            folder,
            admin,
            pools,
            leaving: BTreeMap::new(),
            again: None,
        };
        tokio::spawn(writer.run(inbox));
        Ok(Self {
            writer: Some(orders),
            known: BTreeMap::new(),
            stands_still: stands_still.max(limits::STREAM_IDLE_RELOADED),
        })
    }

    /// Returns when Envoy knows all pools and endpoints of this configuration, or should by now; what is no longer in it
    /// is forgotten later.
    pub async fn admit(&mut self, config: &Config) {
        let needed = settings::stream_idle_timeout(config);
        if needed > self.stands_still {
            tracing::warn!(
                "Envoy ends streams that stand still for {:?}, and this configuration lets them wait for {needed:?}: \
                 render its bootstrap again and restart it",
                self.stands_still
            );
            self.stands_still = needed;
        }
        let pools = settings::pools(config);
        let Some(writer) = &self.writer else {
            self.warn(pools);
            return;
        };
        let (done, told) = oneshot::channel();
        // Nobody writes any more when the companion ends.
        if writer.send(Admit { pools, done }).await.is_ok() {
            let _ = told.await;
        }
    }

    fn warn(&mut self, pools: Vec<Pool>) {
        let mut new = Vec::new();
        for Pool { name, endpoints, .. } in pools {
            let known = self.known.get(&name);
            let unknown = |it: &SocketAddr| known.is_none_or(|known| !known.contains(it));
            let endpoints: Vec<_> = endpoints.into_iter().filter(unknown).collect();
            match (known, endpoints.as_slice()) {
                (None, _) => new.push(format!("pool {name}")),
                (Some(_), []) => {}
                (Some(_), some) => new.push(format!("{} of pool {name}", list(some))),
            }
            self.known.entry(name).or_default().extend(endpoints);
        }
        if !new.is_empty() {
            tracing::warn!(
                "Envoy doesn't know {}, and nothing can be sent there: render its bootstrap again and restart it, or \
                 start both with --envoy DIR (`penstock envoy-config --envoy DIR`, `penstock serve --envoy DIR`)",
                new.join(", ")
            );
        }
    }
}

/// The task that owns the files.
struct Writer {
    folder: Folder,
    admin: Option<SocketAddr>,
    /// As they are granted.
    pools: Vec<Pool>,
    /// Who isn't granted any more, by pool, and until when it is found; no address: the pool itself.
    leaving: BTreeMap<(String, Option<SocketAddr>), Instant>,
    /// The files couldn't be written.
    again: Option<Instant>,
}

impl Writer {
    async fn run(mut self, mut inbox: mpsc::Receiver<Admit>) {
        loop {
            let due = async {
                match self.leaving.values().copied().chain(self.again).min() {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                order = inbox.recv() => {
                    let Some(Admit { pools, done }) = order else { return };
                    let new = self.take(Instant::now(), pools);
                    let written = self.write();
                    if let (true, Some(versions)) = (new, written) {
                        applied(self.admin, &versions).await;
                    }
                    // Who asked may have left.
                    let _ = done.send(());
                }
                () = due => {
                    self.forget(Instant::now());
                    self.write();
                }
            }
        }
    }

    /// These are granted from now on; whether any of them is new to Envoy.
    fn take(&mut self, now: Instant, pools: Vec<Pool>) -> bool {
        let new = pools.iter().any(|pool| {
            let before = self.pools.iter().find(|it| it.name == pool.name);
            before.is_none_or(|it| pool.endpoints.iter().any(|at| !it.endpoints.contains(at)))
        });
        for old in &self.pools {
            let stays = pools.iter().find(|it| it.name == old.name);
            if stays.is_none() {
                self.leaving.insert((old.name.clone(), None), now + POOL_LEAVES);
            }
            let (stays, until) = match stays {
                Some(pool) => (pool.endpoints.as_slice(), ENDPOINT_LEAVES),
                None => (&[][..], POOL_LEAVES),
            };
            for at in old.endpoints.iter().filter(|at| !stays.contains(at)) {
                self.leaving.insert((old.name.clone(), Some(*at)), now + until);
            }
        }
        self.pools = pools;
        for pool in &self.pools {
            self.leaving.remove(&(pool.name.clone(), None));
            for at in &pool.endpoints {
                self.leaving.remove(&(pool.name.clone(), Some(*at)));
            }
        }
        new
    }

    /// Who left long enough ago isn't found any more.
    fn forget(&mut self, now: Instant) {
        self.leaving.retain(|_, until| *until > now);
    }

    /// As Envoy is to know them: what is granted, then what leaves.
    fn all(&self) -> Vec<Pool> {
        let mut all = self.pools.clone();
        for (name, at) in self.leaving.keys() {
            let pool = match all.iter_mut().find(|it| it.name == *name) {
                Some(pool) => pool,
                None => {
                    all.push(Pool {
                        name: name.clone(),
                        endpoints: Vec::new(),
                        leaving: Vec::new(),
                    });
                    all.last_mut().expect("invariant: it was pushed")
                }
            };
            pool.leaving.extend(at);
        }
        all
    }

    /// Some small files, written at once.
    fn write(&mut self) -> Option<Versions> {
        match self.folder.write(&self.all()) {
            Ok(versions) => {
                if self.again.take().is_some() {
                    tracing::info!("Envoy's files are written again");
                }
                Some(versions)
            }
            Err(why) => {
                let again = self.again.replace(Instant::now() + WRITE_AGAIN);
                if again.is_none() {
                    let folder = self.folder.path().display();
                    tracing::error!(
                        "Envoy doesn't learn of pools and endpoints: {folder} can't be written: {why}"
                    );
                }
                None
            }
        }
    }
}

/// Some of many.
fn list(addresses: &[SocketAddr]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<_> = addresses.iter().take(SHOWN).map(ToString::to_string).collect();
    match addresses.len().saturating_sub(SHOWN) {
        0 => shown.join(" "),
        more => format!("{} and {more} more", shown.join(" ")),
    }
}

/// Returns when Envoy says that it has applied these, or doesn't answer, or for too long.
async fn applied(admin: Option<SocketAddr>, versions: &Versions) {
    let asked = async {
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(PATIENCE)
            .build()
            .ok()?;
        let url = format!("http://{}/stats?filter=version_text%24", admin?);
        loop {
            let page = client.get(&url).send().await.ok()?.text().await.ok()?;
            if says(&page, versions) {
                return Some(());
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Some(())) => {}
        // It isn't there, or not to be asked: then it reads the files when it starts, or has them by now.
        Ok(None) => tokio::time::sleep(PAUSE).await,
        Err(_) => tracing::warn!("Envoy hasn't applied its pools and endpoints within {PATIENCE:?}"),
    }
}

fn says(page: &str, versions: &Versions) -> bool {
    let lines: BTreeMap<&str, &str> = page
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name, value.trim().trim_matches('"')))
        .collect();
    let is = |name: &str, version: &str| lines.get(name) == Some(&version);
    is("cluster_manager.cds.version_text", &versions.clusters)
        && versions
            .endpoints
            .iter()
            .all(|(pool, version)| is(&format!("cluster.{pool}.version_text"), version))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, ports: &[u16]) -> Pool {
        Pool {
            name: name.into(),
            endpoints: ports
                .iter()
                .map(|it| SocketAddr::from(([127, 0, 0, 1], *it)))
                .collect(),
            leaving: vec![],
        }
    }

    fn writer(folder: &Path) -> Writer {
        Writer {
            folder: Folder::open(folder).expect("made"),
            admin: None,
            pools: vec![pool("a", &[1, 2]), pool("b", &[3])],
            leaving: BTreeMap::new(),
            again: None,
        }
    }

    fn ports(pools: &[Pool]) -> Vec<(String, Vec<u16>, Vec<u16>)> {
        let of = |all: &[SocketAddr]| all.iter().map(SocketAddr::port).collect();
        pools
            .iter()
            .map(|it| (it.name.clone(), of(&it.endpoints), of(&it.leaving)))
            .collect()
    }

    #[test]
    fn who_goes_is_found_for_a_while_and_who_comes_back_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(folder.path());
        let now = Instant::now();
        assert!(writer.take(now, vec![pool("a", &[2, 4])]), "4 is new");
        assert_eq!(
            ports(&writer.all()),
            [("a".into(), vec![2, 4], vec![1]), ("b".into(), vec![], vec![3])]
        );
        assert!(!writer.take(now, vec![pool("a", &[2])]));
        assert_eq!(
            ports(&writer.all()),
            [("a".into(), vec![2], vec![1, 4]), ("b".into(), vec![], vec![3])]
        );
        assert!(writer.take(now, vec![pool("b", &[3]), pool("a", &[2, 1])]));
        assert_eq!(
            ports(&writer.all()),
            [("b".into(), vec![3], vec![]), ("a".into(), vec![2, 1], vec![4])]
        );
    }

    #[tokio::test]
    async fn who_left_is_forgotten_in_the_end_a_pool_later_than_a_server() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(folder.path());
        let now = Instant::now();
        writer.take(now, vec![pool("a", &[2])]);
        writer.write().expect("written");
        let file = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        let known = |port: u16| {
            let of = format!("\"port_value\":{port}");
            file("endpoints-a.json").contains(&of) || file("endpoints-b.json").contains(&of)
        };
        assert_eq!([1, 2, 3].map(known), [true; 3]);
        for (later, expected) in [
            (ENDPOINT_LEAVES, [false, true, true]),
            (POOL_LEAVES, [false, true, false]),
        ] {
            writer.forget(now + later);
            writer.write().expect("written");
            assert_eq!([1, 2, 3].map(known), expected);
        }
        assert!(!file("clusters.json").contains("endpoints-b.json"));
    }

    #[tokio::test]
    async fn a_configuration_is_admitted_when_the_files_say_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = |pools: &str| Config::parse(&format!("pools: [{pools}]"), "f.yaml").expect("valid");
        let before = config("{name: a, endpoints: {static: ['127.0.0.1:1']}}");
        let mut pools = EnvoyPools::open(Some(folder.path()), None, &before).expect("written");
        let after = config("{name: a, endpoints: {static: ['127.0.0.1:2']}}");
        pools.admit(&after).await;
        let text = std::fs::read_to_string(folder.path().join("endpoints-a.json")).expect("there");
        assert!(text.contains("\"port_value\":2"), "{text}");
    }

    #[test]
    fn envoy_has_applied_what_it_says_it_has() {
        let versions = Versions {
            clusters: "c1".into(),
            endpoints: vec![("a".into(), "e1".into())],
        };
        let cds = "cluster_manager.cds.version_text: \"c1\"\n";
        let old = format!("cluster.a.version_text: \"e0\"\n{cds}");
        let new = format!("cluster.a.version_text: \"e1\"\n{cds}");
        assert!(!says(cds, &versions) && !says(&old, &versions) && !says("", &versions));
        assert!(says(&new, &versions));
    }

    #[tokio::test]
    async fn without_a_folder_what_is_new_is_warned_of_once() {
        let config = |pools: &str| Config::parse(&format!("pools: [{pools}]"), "f.yaml").expect("valid");
        let before = config("{name: a, models: [a], endpoints: {static: ['127.0.0.1:1']}}");
        let mut pools = EnvoyPools::open(None, None, &before).expect("nothing to write");
        let after = config(
            "{name: a, models: [a], endpoints: {static: ['127.0.0.1:1', '127.0.0.1:2']}}, \
             {name: b, models: [b], endpoints: {static: ['127.0.0.1:3']}}",
        );
        pools.admit(&after).await;
        let known: Vec<_> = pools
            .known
            .iter()
            .map(|(pool, all)| (pool.as_str(), all.len()))
            .collect();
        assert_eq!(known, [("a", 2), ("b", 1)]);
    }
}
