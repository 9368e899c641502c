//! Tasks that follow the endpoints: one for each endpoint, as long as its pool wants it in the same way.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_config::{Config, Pool};
use penstock_control::Event;
use tokio::task::{AbortHandle, JoinHandle};

use crate::driver::Handle;

/// An endpoint: its pool and its address.
type Key = (Arc<str>, String);

/// Tells the driver what becomes of those that have nothing any more, as long as somebody listens.
pub(crate) async fn tell(driver: &Handle, free: Vec<Key>, event: impl Fn(Key) -> Event) {
    for key in free {
        if driver.tell(event(key)).await.is_err() {
            return;
        }
    }
}

/// What runs, by endpoint, and how it was wanted.
#[derive(Debug)]
pub(crate) struct Tasks<S>(BTreeMap<Key, (S, AbortHandle)>);

impl<S> Default for Tasks<S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<S: Clone + PartialEq> Tasks<S> {
    /// Ends what isn't wanted any more, or in another way, and starts what isn't there: with its pool, its address, how it
    /// is wanted, and which one of how many of its pool it is. Returns the endpoints that are still there and have
    /// nothing any more.
    pub(crate) fn follow(
        &mut self,
        config: &Config,
        wanted: impl Fn(&Pool) -> Option<S>,
        start: impl Fn(Arc<str>, String, S, (u32, u32)) -> JoinHandle<()>,
    ) -> Vec<Key> {
        let mut before = std::mem::take(&mut self.0);
        let mut free = Vec::new();
        for pool in &config.pools {
            let (name, how) = (Arc::<str>::from(&*pool.name), wanted(pool));
            let count = u32::try_from(pool.endpoints.len()).unwrap_or(u32::MAX);
            for (at, endpoint) in (0..).zip(&pool.endpoints) {
                let key = (name.clone(), endpoint.address.to_string());
                let running = before.remove(&key);
                let Some(how) = &how else {
                    if let Some((_, task)) = running {
                        task.abort();
                        free.push(key);
                    }
                    continue;
                };
                let task = match running {
                    Some((as_before, task)) if as_before == *how => task,
                    other => {
                        if let Some((_, task)) = other {
                            task.abort();
                        }
                        start(key.0.clone(), key.1.clone(), how.clone(), (at, count)).abort_handle()
                    }
                };
                self.0.insert(key, (how.clone(), task));
            }
        }
        for (_, task) in before.into_values() {
            task.abort();
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use penstock_config::Health;

    use super::*;

    fn config(pools: &[(&str, &[u16], &str)]) -> Config {
        let pools = pools.iter().map(|(name, ports, health)| {
            let servers = ports
                .iter()
                .map(|it| format!("'127.0.0.1:{it}'"))
                .collect::<Vec<_>>();
            let servers = servers.join(", ");
            format!("- {{name: {name}, endpoints: {{static: [{servers}]}}, health: {{path: {health}}}}}\n")
        });
        let text = format!("pools:\n{}", pools.collect::<String>());
        Config::parse(&text, "f.yaml").expect("valid")
    }

    #[tokio::test]
    async fn only_what_is_wanted_in_the_same_way_goes_on() {
        let mut tasks = Tasks::<Health>::default();
        let started = Mutex::new(Vec::new());
        let mut follow = |pools: &[(&str, &[u16], &str)]| {
            let free = tasks.follow(
                &config(pools),
                |pool| pool.health.clone(),
                |pool, address, health, at| {
                    let what = format!("{pool} {address} {} {at:?}", health.path);
                    started.lock().expect("no panic").push(what);
                    tokio::spawn(std::future::pending())
                },
            );
            let free: Vec<_> = free
                .into_iter()
                .map(|(pool, address)| format!("{pool} {address}"))
                .collect();
            (std::mem::take(&mut *started.lock().expect("no panic")), free)
        };
        let none = Vec::<String>::new();
        let (new, free) = follow(&[("a", &[1, 2], "/h"), ("b", &[1], "/h")]);
        let all = [
            "a 127.0.0.1:1 /h (0, 2)",
            "a 127.0.0.1:2 /h (1, 2)",
            "b 127.0.0.1:1 /h (0, 1)",
        ];
        assert_eq!(new, all);
        assert_eq!(free, none);
        // One goes, one comes, one stays; b is asked in another way.
        let (new, free) = follow(&[("a", &[2, 3], "/h"), ("b", &[1], "/i")]);
        assert_eq!(new, ["a 127.0.0.1:3 /h (1, 2)", "b 127.0.0.1:1 /i (0, 1)"]);
        assert_eq!(free, none);
        let (new, free) = follow(&[("a", &[2, 4], "null")]);
        assert_eq!(new, none);
        assert_eq!(free, ["a 127.0.0.1:2"], "it was asked before, and is still there");
    }
}
