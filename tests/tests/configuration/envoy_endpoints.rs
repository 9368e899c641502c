//! `penstock envoy-endpoints` beside an Envoy whose companion runs elsewhere: a found endpoint reaches this Envoy, and the last known
//! endpoints stay when they can't be found.

use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_tests::envoy::Envoy;
use penstock_tests::pages::Pages;
use penstock_tests::process::Process;
use penstock_tests::{Answer, ClientRequest, Companion, Upstream, binary, run, until};
use tokio::process::Command;

const SERVICE: Duration = Duration::from_millis(5);

/// The endpoints of an Envoy, kept up to date by a process.
struct Endpoints {
    process: Process,
    pages: Pages,
}

impl Endpoints {
    async fn start(config: &Path, envoy: &Path, socket: &Path) -> Self {
        let mut command = Command::new(binary::penstock());
        command.arg("envoy-endpoints").arg("--config").arg(config);
        command.arg("--envoy").arg(envoy);
        command.arg("--http").arg(format!("unix:{}", socket.display()));
        command.current_dir(binary::workspace());
        let endpoints =
            Self { process: Process::start("endpoints", command).await, pages: Pages::behind(socket) };
        endpoints.answers("/livez", 200, "ok").await;
        endpoints
    }

    /// Waits until a page has this status and contains this text.
    async fn answers(&self, page: &str, status: u16, text: &str) {
        until(&format!("{page} is {status}, {text}"), || async {
            let answer = self.pages.get(page).await?;
            if answer.status == status && answer.text().contains(text) {
                Ok(())
            } else {
                Err(format!("{}\n{}", answer.text(), self.process.tail()))
            }
        })
        .await;
    }
}

/// Replaces the list of endpoints atomically.
fn list(file: &Path, servers: &[&Upstream]) {
    let new = file.with_extension("new");
    let lines = servers.iter().map(|server| format!("- {}\n", server.address()));
    std::fs::write(&new, lines.collect::<String>()).expect("written");
    std::fs::rename(&new, file).expect("renamed");
}

/// The companion, the folder that it doesn't know, and the file that both processes read.
struct World {
    companion: Companion,
    servers: Vec<Upstream>,
    file: PathBuf,
    envoy: PathBuf,
    socket: PathBuf,
    client: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let servers = Upstream::several(2, SERVICE, 1).await;
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let file = path("servers.yaml");
        list(&file, &[&servers[0]]);
        // By credit a filter stays at the endpoint where it has places, as long as they suffice.
        let pool =
            format!("- name: a\n  endpoints: {{file: '{}'}}\n  queue: {{credits: off}}\n", file.display());
        Self {
            companion: Companion::start("", &[pool]).await,
            servers,
            file,
            envoy: path("envoy"),
            socket: path("http"),
            client: reqwest::Client::new(),
            _folder: folder,
        }
    }

    async fn endpoints(&self) -> Endpoints {
        Endpoints::start(self.companion.config(), &self.envoy, &self.socket).await
    }

    /// Sends requests until this server has served one.
    async fn serves(&self, envoy: &Envoy, server: usize) {
        until(&format!("server {server} serves"), || async {
            let before = self.servers[server].total();
            let request = ClientRequest::chat("m", "hello");
            let sent = self.client.post(envoy.url(request.path())).json(&request.body());
            let response = sent.send().await.map_err(|why| why.to_string())?;
            let answer = Answer::read(response).await.map_err(|why| why.to_string())?;
            assert_eq!(answer.status, 200, "{}", answer.text());
            match self.servers[server].total() > before {
                true => Ok(()),
                false => Err("another one did".to_owned()),
            }
        })
        .await;
    }
}

#[test]
fn an_envoy_without_a_companion_beside_it_follows_discovery() {
    run(async {
        let world = World::start().await;
        let endpoints = world.endpoints().await;
        endpoints.answers("/readyz", 200, "ready").await;
        endpoints.answers("/metrics", 200, "penstock_discovery_up{pool=\"a\"} 1").await;
        let envoy = Envoy::watching(&world.companion, "edge", &world.envoy).await;
        world.serves(&envoy, 0).await;
        list(&world.file, &[&world.servers[1]]);
        world.serves(&envoy, 1).await;
        list(&world.file, &[&world.servers[0], &world.servers[1]]);
        world.serves(&envoy, 0).await;
    });
}

#[test]
fn endpoints_that_were_known_stay_while_discovery_fails() {
    run(async {
        let world = World::start().await;
        let mut endpoints = world.endpoints().await;
        endpoints.answers("/readyz", 200, "ready").await;
        let envoy = Envoy::watching(&world.companion, "edge", &world.envoy).await;
        world.serves(&envoy, 0).await;
        std::fs::remove_file(&world.file).expect("removed");
        endpoints.answers("/metrics", 200, "penstock_discovery_up{pool=\"a\"} 0").await;
        endpoints.answers("/readyz", 200, "ready").await;
        endpoints.process.signal(libc::SIGTERM);
        let ended = endpoints.process.exit().await;
        assert_eq!(ended.code(), Some(0), "{}", endpoints.process.tail());
        let endpoints = world.endpoints().await;
        endpoints.answers("/readyz", 503, "the discovery of pool `a` has found no list yet").await;
        world.serves(&envoy, 0).await;
    });
}

#[test]
fn a_changed_configuration_is_followed_and_a_wrong_one_is_not() {
    run(async {
        let world = World::start().await;
        let endpoints = world.endpoints().await;
        endpoints.answers("/readyz", 200, "ready").await;
        let config = world.companion.config();
        let text = std::fs::read_to_string(config).expect("it is there");
        std::fs::write(config, "pools: [").expect("written");
        endpoints.answers("/metrics", 200, "penstock_config_reload_failures_total 1").await;
        let server = world.servers[1].address();
        let more = format!("- name: b\n  models: [b]\n  endpoints: {{static: ['{server}']}}\n");
        std::fs::write(config, format!("{text}{more}")).expect("written");
        until("the folder has the new pool", || async {
            let file = world.envoy.join("endpoints-b.json");
            let endpoints = std::fs::read_to_string(file).map_err(|why| why.to_string())?;
            match endpoints.contains(&server.port().to_string()) {
                true => Ok(()),
                false => Err(endpoints),
            }
        })
        .await;
    });
}
