//! Asks every endpoint whether it is well, and tells the driver when the answer changes.
//!
//! One task an endpoint. An answer of 2xx is healthy, and one success is enough; a server without that path (404,
//! 405, 501) is alive, and taken for healthy with one line in the log.

use std::sync::Arc;
use std::time::Duration;

use penstock_config::{Config, Health};
use penstock_control::Event;
use penstock_errors::cause;
use reqwest::{Client, StatusCode};
use tokio::time::MissedTickBehavior;

use crate::driver::Handle;
use crate::tasks::{self, Tasks};

/// An answer that takes longer is a failure.
const TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// The checks that run.
#[derive(Debug)]
pub struct Checks {
    client: Client,
    driver: Handle,
    tasks: Tasks<Health>,
}

impl Checks {
    /// None yet.
    ///
    /// # Errors
    /// When the HTTP client can't be made.
    pub fn new(driver: Handle) -> Result<Self, reqwest::Error> {
        Ok(Self {
            client: Client::builder().no_proxy().build()?,
            driver,
            tasks: Tasks::default(),
        })
    }

    /// Checks every endpoint whose pool wants that from now on, and no other. One that isn't checked any more is ready.
    pub async fn follow(&mut self, config: &Config) {
        let (client, driver) = (&self.client, &self.driver);
        let free = self.tasks.follow(
            config,
            |pool| pool.health.clone(),
            |pool, address, health, _| {
                tokio::spawn(watch(client.clone(), pool, address, health, driver.clone()))
            },
        );
        let event = |(pool, address)| Event::EndpointReady {
            pool,
            address,
            ready: true,
        };
        tasks::tell(driver, free, event).await;
    }
}

async fn watch(client: Client, pool: Arc<str>, address: String, health: Health, driver: Handle) {
    let url = format!("http://{address}{}", health.path);
    let mut ticks = tokio::time::interval(health.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = State::default();
    loop {
        ticks.tick().await;
        let asked = client.get(&url).timeout(health.interval.min(TIMEOUT_MAX));
        let answer = asked.send().await.map(|answer| answer.status());
        let verdict = match &answer {
            Ok(status) if status.is_success() => Verdict::Healthy,
            Ok(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED) => {
                Verdict::NoSuchPath
            }
            Ok(_) | Err(_) => Verdict::Failed,
        };
        if verdict == Verdict::NoSuchPath && state.ready != Some(true) {
            tracing::warn!(
                endpoint = address,
                path = health.path,
                "no such path: taken for healthy while it answers; set health.path"
            );
        }
        let Some(ready) = state.take(verdict, health.unhealthy_after) else {
            continue;
        };
        if ready {
            tracing::info!(endpoint = address, "ready");
        } else {
            let why = answer.map_or_else(|error| cause::root(&error), |status| status.to_string());
            tracing::warn!(
                endpoint = address,
                why,
                "not ready: its health check fails ({url})"
            );
        }
        let event = Event::EndpointReady {
            pool: pool.clone(),
            address: address.clone(),
            ready,
        };
        if driver.tell(event).await.is_err() {
            return;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Healthy,
    NoSuchPath,
    Failed,
}

/// What is known of an endpoint.
#[derive(Debug, Default)]
struct State {
    /// `None`: nothing was said yet.
    ready: Option<bool>,
    failures: u64,
}

impl State {
    /// Takes an answer; `Some`: it changed whether the endpoint is ready. The first failure counts at once.
    fn take(&mut self, verdict: Verdict, unhealthy_after: u64) -> Option<bool> {
        let ready = match verdict {
            Verdict::Healthy | Verdict::NoSuchPath => {
                self.failures = 0;
                true
            }
            Verdict::Failed => {
                self.failures += 1;
                self.ready == Some(true) && self.failures < unhealthy_after
            }
        };
        if self.ready == Some(ready) {
            return None;
        }
        self.ready = Some(ready);
        Some(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_take_it_out_and_one_success_brings_it_back() {
        let mut state = State::default();
        assert_eq!(state.take(Verdict::Healthy, 3), Some(true));
        assert_eq!(state.take(Verdict::Failed, 3), None);
        assert_eq!(state.take(Verdict::Failed, 3), None);
        assert_eq!(state.take(Verdict::Healthy, 3), None);
        for _ in 0..2 {
            assert_eq!(state.take(Verdict::Failed, 3), None);
        }
        assert_eq!(state.take(Verdict::Failed, 3), Some(false));
        assert_eq!(state.take(Verdict::Failed, 3), None);
        assert_eq!(state.take(Verdict::NoSuchPath, 3), Some(true));
    }

    #[test]
    fn the_first_failure_counts_at_once() {
        assert_eq!(State::default().take(Verdict::Failed, 3), Some(false));
    }
}
