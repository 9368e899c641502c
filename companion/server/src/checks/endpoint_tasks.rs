//! One task for each endpoint that needs one, updated when the configuration changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_config::{Config, Pool};
use penstock_control::Event;
use tokio::task::{AbortHandle, JoinHandle};

use crate::decisions::driver::Handle;

/// An endpoint: the name of its pool, and its address.
type Key = (Arc<str>, String);

/// An endpoint's place among its pool's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Counts from 0.
    pub(crate) index: u32,
    /// How many endpoints the pool has.
    pub(crate) count: u32,
}

/// Sends an event for each endpoint that no longer has a task, until the driver has ended.
pub(crate) async fn notify_stopped(driver: &Handle, stopped: Vec<Key>, event: impl Fn(Key) -> Event) {
    for key in stopped {
        if driver.send(event(key)).await.is_err() {
            return;
        }
    }
}

/// The running tasks by endpoint, each with the settings it was started with.
#[derive(Debug)]
pub(crate) struct EndpointTasks<S>(BTreeMap<Key, (S, AbortHandle)>);

impl<S> Default for EndpointTasks<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Clone + PartialEq> EndpointTasks<S> {
    /// Starts, restarts and stops tasks, so that each endpoint of a pool for which `settings` returns some has a task with
    /// these settings. `start` gets the pool's name, the address, the settings and the place. Returns the endpoints that
    /// are still configured but no longer have a task.
    pub(crate) fn follow(
        &mut self,
        config: &Config,
        settings: impl Fn(&Pool) -> Option<S>,
        start: impl Fn(Arc<str>, String, S, Place) -> JoinHandle<()>,
    ) -> Vec<Key> {
        let mut before = std::mem::take(&mut self.0);
        let mut stopped = Vec::new();
        for pool in &config.pools {
            let (name, settings) = (Arc::<str>::from(&*pool.name), settings(pool));
            let count = u32::try_from(pool.endpoints.len()).unwrap_or(u32::MAX);
            for (index, endpoint) in (0..).zip(&pool.endpoints) {
                let key = (name.clone(), endpoint.address.to_string());
                let running = before.remove(&key);
                let Some(settings) = &settings else {
                    if let Some((_, task)) = running {
                        task.abort();
                        stopped.push(key);
                    }
                    continue;
                };
                let task = match running {
                    Some((unchanged, task)) if unchanged == *settings => task,
                    other => {
                        if let Some((_, task)) = other {
                            task.abort();
                        }
                        let place = Place { index, count };
                        start(key.0.clone(), key.1.clone(), settings.clone(), place).abort_handle()
                    }
                };
                self.0.insert(key, (settings.clone(), task));
            }
        }
        for (_, task) in before.into_values() {
            task.abort();
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use penstock_config::Health;

    use super::*;

    fn config(pools: &[(&str, &[u16], &str)]) -> Config {
        let pools = pools.iter().map(|(name, ports, health)| {
            let servers = ports.iter().map(|port| format!("'127.0.0.1:{port}'")).collect::<Vec<_>>();
            let servers = servers.join(", ");
            format!("- {{name: {name}, endpoints: {{static: [{servers}]}}, health: {{path: {health}}}}}\n")
        });
        let text = format!("pools:\n{}", pools.collect::<String>());
        Config::parse(&text, "f.yaml").expect("valid")
    }

    #[tokio::test]
    async fn only_tasks_with_unchanged_settings_keep_running() {
        let mut tasks = EndpointTasks::<Health>::default();
        let started = Mutex::new(Vec::new());
        let mut follow = |pools: &[(&str, &[u16], &str)]| {
            let stopped = tasks.follow(
                &config(pools),
                |pool| pool.health.clone(),
                |pool, address, health, Place { index, count }| {
                    let task = format!("{pool} {address} {} {index} of {count}", health.path);
                    started.lock().expect("no panic").push(task);
                    tokio::spawn(std::future::pending())
                },
            );
            let stopped: Vec<_> =
                stopped.into_iter().map(|(pool, address)| format!("{pool} {address}")).collect();
            (std::mem::take(&mut *started.lock().expect("no panic")), stopped)
        };
        let none = Vec::<String>::new();
        let (new, stopped) = follow(&[("a", &[1, 2], "/h"), ("b", &[1], "/h")]);
        let all = ["a 127.0.0.1:1 /h 0 of 2", "a 127.0.0.1:2 /h 1 of 2", "b 127.0.0.1:1 /h 0 of 1"];
        assert_eq!(new, all);
        assert_eq!(stopped, none);
        // One endpoint goes, one comes, one stays; the settings of b change.
        let (new, stopped) = follow(&[("a", &[2, 3], "/h"), ("b", &[1], "/i")]);
        assert_eq!(new, ["a 127.0.0.1:3 /h 1 of 2", "b 127.0.0.1:1 /i 0 of 1"]);
        assert_eq!(stopped, none);
        let (new, stopped) = follow(&[("a", &[2, 4], "null")]);
        assert_eq!(new, none);
        assert_eq!(stopped, ["a 127.0.0.1:2"], "its task ended, and it is still configured");
    }
}
