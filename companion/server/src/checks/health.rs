//! Health checks: one task for each endpoint, which notifies the driver when the endpoint becomes healthy or unhealthy.
//!
//! A response of 2xx is healthy, and one success is enough. A server without the path (404, 405, 501) is alive: it counts
//! as healthy, and the log has one warning. A check without an answer doesn't count while bytes of answers come from the server: it is busy.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Limited};
use hyper::StatusCode;
use penstock_config::{Config, Health};
use penstock_control::{Event, PoolEvent};
use tokio::time::MissedTickBehavior;

use crate::base::check_failures::{Check, CheckFailures};
use crate::base::essential;
use crate::checks::endpoint_tasks::{self, EndpointTasks};
use crate::checks::server_client::{Route, ServerClient};
use crate::decisions::driver::Handle;
use crate::metrics::Metrics;

/// A response that takes longer is a failure.
const TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// Bytes of an answer that are read.
const BODY_MAX: usize = 64 << 10;

/// The running health checks.
#[derive(Debug)]
pub(crate) struct Checks {
    driver: Handle,
    failures: CheckFailures,
    metrics: Arc<Metrics>,
    tasks: EndpointTasks<(Health, Route)>,
}

impl Checks {
    /// No checks yet.
    pub(crate) fn new(driver: Handle, failures: CheckFailures, metrics: Arc<Metrics>) -> Self {
        Self { driver, failures, metrics, tasks: EndpointTasks::default() }
    }

    /// Checks exactly the endpoints whose pools have health checks. An endpoint that is no longer checked is ready.
    pub(crate) async fn follow(&mut self, config: &Config) {
        let (driver, failures) = (&self.driver, &self.failures);
        let metrics = &self.metrics;
        failures.retain(|pool, address| {
            let mut pools = config.pools.iter().filter(|known| known.name == pool);
            pools.any(|pool| pool.endpoints.iter().any(|endpoint| endpoint.address.to_string() == address))
        });
        let stopped = self.tasks.follow(
            config,
            |pool| Some((pool.health.clone()?, Route::of_requests(&pool.upstream))),
            |pool, address, (health, route), _| {
                let check =
                    watch(route, pool, address, health, driver.clone(), (failures.clone(), metrics.clone()));
                essential::spawn("health checks", check)
            },
        );
        let event = |(pool, address)| Event::Pool(pool, PoolEvent::EndpointReady { address, ready: true });
        endpoint_tasks::notify_stopped(driver, stopped, event).await;
    }
}

async fn watch(
    route: Route,
    pool: Arc<str>,
    address: String,
    health: Health,
    driver: Handle,
    (failures, metrics): (CheckFailures, Arc<Metrics>),
) {
    let Ok(socket) = address.parse() else { return };
    let mut client = ServerClient::new(socket, route);
    let url = client.url(&health.path);
    let mut ticks = tokio::time::interval(health.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut state = State::default();
    let mut last_check = Instant::now();
    loop {
        ticks.tick().await;
        let since = last_check;
        last_check = Instant::now();
        let limit = health.interval.min(TIMEOUT_MAX);
        let answer = tokio::time::timeout(limit, status(&mut client, &health.path)).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")));
        let verdict = match &answer {
            Ok(status) if status.is_success() => Verdict::Healthy,
            Ok(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED) => {
                Verdict::NoSuchPath
            }
            Err(_) if metrics.liveness.is_alive_since(&address, since) => Verdict::Busy,
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
        let why = match &answer {
            _ if verdict != Verdict::Failed => None,
            Ok(status) => Some(status.to_string()),
            Err(why) => Some(why.clone()),
        };
        failures.set(&pool, &address, Check::Health, why.as_deref());
        let Some(ready) = state.update(verdict, health.unhealthy_after) else {
            continue;
        };
        if ready {
            tracing::info!(pool = %pool, endpoint = address, "endpoint ready");
        } else {
            let why = why.unwrap_or_default();
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

/// The status of the answer, once it was read.
async fn status(client: &mut ServerClient, path: &str) -> Result<StatusCode, String> {
    let response = client.get(path, &[]).await?;
    let status = response.status();
    // The connection is used again only after the whole answer. A longer one costs a connection.
    let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
    drop(body);
    Ok(status)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Healthy,
    NoSuchPath,
    /// No answer, and bytes of answers to requests have come since the last check.
    Busy,
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
            // A server that sends answers lives, though it is too busy for the check.
            Verdict::Busy => {
                self.failures = 0;
                return None;
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
    fn a_busy_server_stays_as_it_is() {
        let mut state = State::default();
        assert_eq!(state.update(Verdict::Healthy, 2), Some(true));
        for _ in 0..5 {
            assert_eq!(state.update(Verdict::Failed, 2), None);
            assert_eq!(state.update(Verdict::Busy, 2), None);
        }
        assert_eq!(state.update(Verdict::Failed, 2), None);
        assert_eq!(state.update(Verdict::Failed, 2), Some(false));
        assert_eq!(state.update(Verdict::Busy, 2), None, "it was silent before");
    }

    #[test]
    fn the_first_failure_makes_unready_at_once() {
        assert_eq!(State::default().update(Verdict::Failed, 3), Some(false));
    }
}
