//! Health checks: one task for each endpoint, which notifies the driver when the endpoint becomes healthy or unhealthy.
//!
//! A response of 2xx is healthy, and one success is enough. A server without the path (404, 405, 501) is alive: it counts
//! as healthy, and the log has one warning.

use std::sync::Arc;
use std::time::Duration;

use penstock_config::{Config, Health};
use penstock_control::{Event, PoolEvent};
use penstock_errors::root_cause;
use reqwest::{Client, StatusCode};
use tokio::time::MissedTickBehavior;

use crate::base::essential;
use crate::checks::endpoint_tasks::{self, EndpointTasks};
use crate::decisions::driver::Handle;

/// A response that takes longer is a failure.
const TIMEOUT_MAX: Duration = Duration::from_secs(2);

/// The running health checks.
#[derive(Debug)]
pub(crate) struct Checks {
    client: Client,
    driver: Handle,
    tasks: EndpointTasks<Health>,
}

impl Checks {
    /// No checks yet.
    ///
    /// # Errors
    /// When the HTTP client can't be made.
    pub(crate) fn new(driver: Handle) -> Result<Self, reqwest::Error> {
        Ok(Self { client: Client::builder().no_proxy().build()?, driver, tasks: EndpointTasks::default() })
    }

    /// Checks exactly the endpoints whose pools have health checks. An endpoint that is no longer checked is ready.
    pub(crate) async fn follow(&mut self, config: &Config) {
        let (client, driver) = (&self.client, &self.driver);
        let stopped = self.tasks.follow(
            config,
            |pool| pool.health.clone(),
            |pool, address, health, _| {
                let check = watch(client.clone(), pool, address, health, driver.clone());
                essential::spawn("health checks", check)
            },
        );
        let event = |(pool, address)| Event::Pool(pool, PoolEvent::EndpointReady { address, ready: true });
        endpoint_tasks::notify_stopped(driver, stopped, event).await;
    }
}

async fn watch(client: Client, pool: Arc<str>, address: String, health: Health, driver: Handle) {
    let url = format!("http://{address}{}", health.path);
    let mut ticks = tokio::time::interval(health.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = State::default();
    loop {
        ticks.tick().await;
        let request = client.get(&url).timeout(health.interval.min(TIMEOUT_MAX));
        let answer = request.send().await.map(|response| response.status());
        let verdict = match &answer {
            Ok(status) if status.is_success() => Verdict::Healthy,
            Ok(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED) => {
                Verdict::NoSuchPath
            }
            Ok(_) | Err(_) => Verdict::Failed,
        };
        if verdict == Verdict::NoSuchPath && state.ready != Some(true) {
            tracing::warn!(
                pool = %pool,
                endpoint = address,
                path = health.path,
                "health check: the server has no such path, so it counts as healthy while it answers; set health.path"
            );
        }
        let Some(ready) = state.update(verdict, health.unhealthy_after) else {
            continue;
        };
        if ready {
            tracing::info!(pool = %pool, endpoint = address, "endpoint ready");
        } else {
            let why = answer.map_or_else(|error| root_cause(&error), |status| status.to_string());
            tracing::warn!(
                pool = %pool,
                endpoint = address,
                why,
                "endpoint not ready: its health check failed ({url}); check the server, or health.path"
            );
        }
        let event = Event::Pool(pool.clone(), PoolEvent::EndpointReady { address: address.clone(), ready });
        if driver.send(event).await.is_err() {
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

/// The health of an endpoint.
#[derive(Debug, Default)]
struct State {
    /// `None`: not checked yet.
    ready: Option<bool>,
    failures: u64,
}

impl State {
    /// Applies a verdict. Returns the new readiness if it changed. Before the first success, one failure is enough.
    fn update(&mut self, verdict: Verdict, unhealthy_after: u64) -> Option<bool> {
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
    fn consecutive_failures_make_unready_and_one_success_makes_ready() {
        let mut state = State::default();
        assert_eq!(state.update(Verdict::Healthy, 3), Some(true));
        assert_eq!(state.update(Verdict::Failed, 3), None);
        assert_eq!(state.update(Verdict::Failed, 3), None);
        assert_eq!(state.update(Verdict::Healthy, 3), None);
        for _ in 0..2 {
            assert_eq!(state.update(Verdict::Failed, 3), None);
        }
        assert_eq!(state.update(Verdict::Failed, 3), Some(false));
        assert_eq!(state.update(Verdict::Failed, 3), None);
        assert_eq!(state.update(Verdict::NoSuchPath, 3), Some(true));
    }

    #[test]
    fn the_first_failure_makes_unready_at_once() {
        assert_eq!(State::default().update(Verdict::Failed, 3), Some(false));
    }
}
