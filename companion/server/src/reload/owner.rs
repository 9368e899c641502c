//! The task itself: what is in force, and the steps from a document to it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_config::{Config, Discovery, Document, Endpoint, Environment};
use penstock_control::Event;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Asked, Begin, Change, Flags, Handle, InForce, ORDERS, Order, Refused, changes, file};
use crate::driver::{Gone, Handle as Driver};
use crate::envoy_pools::EnvoyPools;
use crate::http::admin::Admin;
use crate::metrics::Metrics;
use crate::serve::{self, Birth};
use crate::store::{Found, Keeper};
use crate::{health, scrape};

/// What a document that came by HTTP is called in errors.
const BODY: &str = "body";

/// Starts the task, health checks and the reading of metrics.
///
/// # Errors
/// When there is no HTTP client for those.
pub async fn spawn(begin: Begin) -> Result<Handle, reqwest::Error> {
    let (orders, inbox) = mpsc::channel(ORDERS);
    let in_force = InForce {
        config: Arc::new(begin.document.config().clone()),
        source: begin.file.display().to_string().into(),
        document: Arc::new(begin.document),
        admin: Arc::new(begin.admin),
        since: Instant::now(),
        reloads: 0,
        failures: 0,
        last_error: None,
    };
    let (sender, receiver) = watch::channel(in_force);
    file::watch(begin.file.clone(), orders.clone(), || Order::Look);
    let mut owner = Owner {
        in_force: sender,
        found: BTreeMap::new(),
        file: begin.file,
        environment: begin.environment,
        seen: begin.seen,
        gone: false,
        first: begin.first,
        flags: begin.flags,
        birth: begin.birth,
        health: health::Checks::new(begin.driver.clone())?,
        readers: scrape::Readers::new(begin.driver.clone())?,
        driver: begin.driver,
        metrics: begin.metrics,
        keeper: begin.keeper,
        envoy: begin.envoy,
    };
    let config = receiver.borrow().config.clone();
    owner.have_followed(&config).await;
    tokio::spawn(owner.run(inbox));
    Ok(Handle {
        orders,
        in_force: receiver,
    })
}

/// The task's state.
struct Owner {
    in_force: watch::Sender<InForce>,
    /// By pool.
    found: BTreeMap<Arc<str>, Vec<Endpoint>>,
    file: PathBuf,
    /// Variables that override the file.
    environment: Environment,
    /// What the file held when it was last looked at.
    seen: Vec<u8>,
    /// It isn't there.
    gone: bool,
    /// What the file said when the companion started.
    first: Value,
    flags: Flags,
    birth: Birth,
    driver: Driver,
    metrics: Arc<Metrics>,
    keeper: Keeper,
    envoy: EnvoyPools,
    health: health::Checks,
    readers: scrape::Readers,
}

/// What a look at the file finds.
enum Look {
    /// What was there before.
    Same,
    Gone,
    Unreadable(io::Error),
    Read(Vec<u8>, Box<Result<Document, String>>),
}

impl Owner {
    async fn run(mut self, mut inbox: mpsc::Receiver<Order>) {
        while let Some(order) = inbox.recv().await {
            match order {
                Order::Look => self.look(false).await,
                Order::Reload => self.look(true).await,
                Order::Change(asked) => {
                    let Asked {
                        change,
                        only_if,
                        persist,
                        answer,
                    } = *asked;
                    let result = self.change(change, only_if, persist).await;
                    if let Err(why) = &result {
                        tracing::info!(%why, "a change of the configuration is refused");
                    }
                    // Who asked may have left.
                    let _ = answer.send(result);
                }
                Order::Found { pool, by, endpoints } => self.find(&pool, &by, endpoints).await,
                Order::End(reply) => {
                    // As above: then the stores end by themselves.
                    let _ = reply.send(self.keeper);
                    return;
                }
            }
        }
    }

    /// Looks at the file, if need be although it is the same as before.
    async fn look(&mut self, told: bool) {
        let (path, environment) = (self.file.clone(), self.environment.clone());
        let before = (!told).then(|| self.seen.clone());
        let looked = tokio::task::spawn_blocking(move || match std::fs::read(&path) {
            Ok(bytes) if before.is_some_and(|it| it == bytes) => Look::Same,
            Ok(bytes) => Look::Read(
                bytes,
                Box::new(Document::read(&path, &environment).map_err(|it| it.to_string())),
            ),
            Err(error) if !told && error.kind() == io::ErrorKind::NotFound => Look::Gone,
            Err(error) => Look::Unreadable(error),
        });
        // It fails when the runtime ends.
        let Ok(looked) = looked.await else { return };
        let was_gone = std::mem::replace(&mut self.gone, matches!(looked, Look::Gone));
        let document = match looked {
            Look::Same => return,
            Look::Gone if was_gone => return,
            Look::Gone => {
                tracing::warn!(
                    file = %self.file.display(),
                    "the configuration file is gone: what it said stays in force"
                );
                return;
            }
            Look::Unreadable(error) => Err(format!("{}: {error}", self.file.display())),
            Look::Read(bytes, document) => {
                self.seen = bytes;
                *document
            }
        };
        let source = self.file.display().to_string();
        let done = match document {
            Ok(document) => self.replace(document, &source, false).await,
            Err(why) => Err(Refused::Invalid(why)),
        };
        match done {
            Ok(()) => self.in_force.send_modify(|it| it.last_error = None),
            Err(Refused::Ending) => {}
            Err(why) => {
                let (file, why) = (self.file.display().to_string(), why.to_string());
                self.failed(&if why.starts_with(&file) {
                    why
                } else {
                    format!("{file}: {why}")
                });
            }
        }
    }

    /// The file can't come into force. What is wrong with it is said once.
    fn failed(&self, why: &str) {
        self.metrics.reload_failures.inc();
        if self.in_force.borrow().last_error.as_deref() != Some(why) {
            tracing::error!("the configuration isn't reloaded, the one before stays in force: {why}");
        }
        self.in_force.send_modify(|it| {
            it.failures += 1;
            it.last_error = Some(why.into());
        });
    }

    async fn change(
        &mut self,
        change: Change,
        only_if: Option<Vec<String>>,
        persist: bool,
    ) -> Result<InForce, Refused> {
        let now = self.in_force.borrow().document.clone();
        if only_if.is_some_and(|any| any.iter().all(|it| it != now.digest())) {
            return Err(Refused::Stale(now.digest().to_owned()));
        }
        let (document, source) = match change {
            Change::Put(text) => (changes::put(&now, &text, BODY), "PUT /config"),
            Change::Patch(patch) => (now.patched(&patch), "PATCH /config"),
        };
        let document = document.map_err(|it| Refused::Invalid(it.to_string()))?;
        self.replace(document, source, persist).await?;
        Ok(self.in_force.borrow().clone())
    }

    /// Puts a document in force, and in the file before that if `persist` says so; or nothing happens.
    async fn replace(&mut self, document: Document, source: &str, persist: bool) -> Result<(), Refused> {
        let now = self.in_force.borrow().clone();
        changes::are_possible(document.json(), now.document.json(), &self.first).map_err(Refused::Invalid)?;
        let document = self
            .flags
            .over(document)
            .map_err(|it| Refused::Invalid(it.to_string()))?;
        let config = self.with_found(&document);
        let admin = Admin::new(&config.admin).map_err(|it| Refused::Invalid(it.to_string()))?;
        let kept = self.open_stores(&config).await?;
        let mut source: Arc<str> = source.into();
        if persist {
            source = self.file.display().to_string().into();
            self.persist(&document).await?;
        }
        if document.digest() == now.document.digest() {
            self.in_force.send_modify(|it| {
                it.admin = Arc::new(admin);
                it.source = source.clone();
            });
            tracing::info!(source = &*source, "the configuration is as it was");
            return Ok(());
        }
        changes::log(&source, now.document.json(), document.json());
        changes::warn(&now.config, &config);
        self.found.retain(|pool, _| {
            config
                .pools
                .iter()
                .any(|it| *it.name == **pool && it.discovery.is_some())
        });
        // Who isn't known there can't be granted.
        self.envoy.admit(&config).await;
        self.tell(&config, kept).await?;
        let config = Arc::new(config);
        self.in_force.send_modify(|it| {
            it.document = Arc::new(document);
            it.config = config.clone();
            it.admin = Arc::new(admin);
            it.source = source;
            it.since = Instant::now();
            it.reloads += 1;
        });
        self.have_followed(&config).await;
        // They end by themselves.
        let _ = self.keeper.let_go();
        Ok(())
    }

    /// What discovery found, beside what is listed.
    fn with_found(&self, document: &Document) -> Config {
        let mut config = document.config().clone();
        for pool in config.pools.iter_mut().filter(|it| it.discovery.is_some()) {
            let listed = pool.endpoints.len();
            for endpoint in self.found.get(&*pool.name).into_iter().flatten() {
                let seen = pool
                    .endpoints
                    .iter()
                    .take(listed)
                    .any(|it| it.address == endpoint.address);
                if !seen {
                    pool.endpoints.push(endpoint.clone());
                }
            }
        }
        config
    }

    /// Has the control and the log's owner hold to it.
    async fn tell(&self, config: &Config, mut kept: Found) -> Result<(), Gone> {
        let mut settings = serve::settings(config, &self.birth);
        for pool in &mut settings.pools {
            pool.kept = kept.models.remove(&pool.name).unwrap_or_default();
        }
        self.driver
            .observe_as(config.metric_flows, self.keeper.writers())
            .await?;
        self.driver.tell(Event::Settings(Box::new(settings))).await?;
        kept.tell(&self.driver).await
    }

    async fn have_followed(&mut self, config: &Config) {
        self.metrics.follow(config);
        self.health.follow(config).await;
        self.readers.follow(config).await;
    }

    async fn find(&mut self, pool: &Arc<str>, by: &Discovery, endpoints: Vec<Endpoint>) {
        let now = self.in_force.borrow().clone();
        let asked = now.config.pools.iter().find(|it| *it.name == **pool);
        if asked.is_none_or(|it| it.discovery.as_ref() != Some(by)) {
            return;
        }
        self.found.insert(pool.clone(), endpoints);
        let config = Arc::new(self.with_found(&now.document));
        self.envoy.admit(&config).await;
        // Not of this pool's endpoints alone: filters that go on without a companion are told of them by the policy.
        if self.tell(&config, Found::default()).await.is_err() {
            return;
        }
        self.in_force.send_modify(|it| it.config = config.clone());
        self.have_followed(&config).await;
    }

    /// Opens what the document names and isn't open; what they keep of each pool.
    async fn open_stores(&mut self, config: &Config) -> Result<Found, Refused> {
        if self.keeper.is_of(config) {
            return Ok(Found::default());
        }
        let opened = self.keeper.open(config).await;
        opened.map_err(|it| Refused::Invalid(it.to_string()))
    }

    /// Writes the document to the file, where flags don't count.
    async fn persist(&mut self, document: &Document) -> Result<(), Refused> {
        let unwritable = |why| Refused::Unwritable {
            path: self.file.clone(),
            why,
        };
        let text =
            changes::without_flags(document, &self.first).map_err(|why| unwritable(io::Error::other(why)))?;
        let (path, bytes) = (self.file.clone(), text.clone().into_bytes());
        let written = tokio::task::spawn_blocking(move || file::replace(&path, &bytes));
        let written = written.await.map_err(|_| Refused::Ending)?;
        written.map_err(unwritable)?;
        self.seen = text.into_bytes();
        self.in_force.send_modify(|it| it.last_error = None);
        Ok(())
    }
}
