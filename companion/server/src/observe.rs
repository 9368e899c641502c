//! What the driver saw, as counters and log lines: a request is one line at debug, and a kind of refusal is at most
//! one line a second at warn. Prompts, bodies and private identities are in neither.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_control::{Labels, Observation, Status};
use penstock_data_plane::policy::band_name;
use penstock_engine::{Instant, Outcome};
use penstock_wire::names::code;

use crate::metrics::{Ended, Metrics, NO_POOL, OTHER, Table};
use crate::store;
use crate::trace::{self, Tracer};

/// A kind of refusal is logged once in this time, with the count of those that weren't.
const WARN_EVERY: Duration = Duration::from_secs(1);
/// The codes that a filter may say it answered with by itself.
const CODES: [&str; 16] = [
    code::TOO_MANY_FLOWS,
    code::QUEUE_FULL,
    code::FLOW_CAPACITY,
    code::NOT_QUEUED,
    code::QUEUE_TIMEOUT,
    code::DEADLINE_EXCEEDED,
    code::CANCELLED,
    code::NO_ENDPOINTS,
    code::MODEL_NOT_FOUND,
    code::INVALID_REQUEST,
    code::REQUEST_TOO_LARGE,
    code::UPSTREAM_UNAVAILABLE,
    code::UPSTREAM_RESET,
    code::SHUTTING_DOWN,
    code::GATEWAY_UNAVAILABLE,
    code::INTERNAL,
];

/// Moves the metrics and writes the log. Owned by the driver: nothing here is shared.
#[derive(Debug)]
pub struct Observer {
    metrics: Arc<Metrics>,
    table: Table,
    warned: HashMap<(Arc<str>, &'static str), (Instant, u64)>,
    kept: store::Writers,
    tracer: Option<Tracer>,
}

impl Observer {
    /// With at most `values_max` values of a label that clients choose.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, values_max: usize) -> Self {
        metrics.limit(values_max);
        Self {
            table: Table::new(metrics.clone()),
            metrics,
            warned: HashMap::new(),
            kept: store::Writers::default(),
            tracer: None,
        }
    }

    /// The same that keeps what is learned.
    #[must_use]
    pub fn keeping(self, kept: store::Writers) -> Self {
        Self { kept, ..self }
    }

    /// The same that hands over a span of every request.
    #[must_use]
    pub fn traced(self, tracer: Option<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// Another limit and other stores; what is shown already stays.
    pub fn hold_to(&mut self, values_max: usize, kept: store::Writers) {
        self.metrics.limit(values_max);
        self.kept = kept;
    }

    /// `messages` were decided on in `elapsed`.
    pub fn decided(&self, elapsed: Duration, messages: usize) {
        #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
        self.metrics
            .decision
            .observe(elapsed.as_secs_f64() / messages.max(1) as f64);
    }

    /// Lets go of what is gone, before somebody looks at the metrics beside this status.
    pub fn tidy(&mut self, now: Instant, status: &Status) {
        self.table.tidy(now, status);
        let is_pool = |name: &str| name == NO_POOL || status.pools.iter().any(|pool| &*pool.name == name);
        self.warned.retain(|(pool, _), _| is_pool(pool));
    }

    /// Takes one observation, made at `now`.
    pub fn observe(&mut self, now: Instant, observation: Observation) {
        match observation {
            Observation::SessionOpened {
                conn,
                node,
                waiting,
                running,
            } => {
                self.metrics.resyncs.inc();
                tracing::info!(
                    conn = conn.0,
                    node,
                    "session opened: its filter has {waiting} waiting and {running} running"
                );
            }
            Observation::SessionClosed { conn, why } => {
                tracing::info!(conn = conn.0, why, "session ended");
            }
            Observation::SessionOrphaned {
                conn,
                waiting,
                running,
            } => {
                let grace = penstock_wire::limits::SESSION_GRACE;
                tracing::warn!(
                    conn = conn.0,
                    "session lost: {waiting} waiting and {running} running keep their places for {grace:?}"
                );
            }
            Observation::EndpointDown { pool, endpoint } => {
                tracing::warn!(pool = %pool, endpoint, "marked down: requests failed there");
            }
            Observation::EndpointBack { pool, endpoint } => {
                tracing::info!(pool = %pool, endpoint, "no longer marked down: it is tried again");
            }
            Observation::Arrived(labels) => self.table.of(now, &labels).arrived(),
            Observation::BadDeadline(labels) => self.push_error(now, &labels, code::BAD_DEADLINE),
            Observation::PriorityLowered(labels) => {
                let of = self.table.of(now, &labels).labels();
                self.metrics.priority_lowered.with_label_values(&of).inc();
            }
            Observation::Requeued(labels) => {
                let of = self.table.of(now, &labels).labels();
                self.metrics.requeues.with_label_values(&of).inc();
                tracing::debug!(
                    pool = %labels.pool,
                    request_id = labels.request_id,
                    "no server took it: it waits again"
                );
            }
            Observation::Decided {
                labels,
                outcome,
                code,
                waited,
                endpoint,
            } => {
                self.outcome(now, &labels, outcome, code, waited, &endpoint);
            }
            Observation::Refused {
                labels,
                outcome,
                code,
            } => self.refused(now, &labels, &outcome, &code),
            Observation::Learned { pool, variant, kept } => self.kept.learned(&pool, variant, kept),
            Observation::Used { pool, used } => self.kept.used(&pool, used),
            Observation::Misrouted { labels, endpoint } => {
                self.metrics.misrouted.with_label_values(&[&labels.pool]).inc();
                tracing::warn!(pool = %labels.pool, request_id = labels.request_id, endpoint, "went to another endpoint than was granted");
            }
            Observation::Dropped {
                labels,
                outcome,
                code,
                waited,
            } => {
                // For how long it ran nobody saw.
                self.span(|| trace::Ended {
                    granted: true,
                    code,
                    ..trace::Ended::new(labels.clone(), outcome, waited, waited)
                });
                tracing::debug!(pool = %labels.pool, request_id = labels.request_id, code, "ended without a server");
            }
            Observation::Completed {
                labels,
                outcome,
                waited,
                endpoint,
                status,
                ttft,
                itl,
                duration,
                prompt_tokens,
                output_tokens,
            } => {
                let ended = Ended {
                    status,
                    duration,
                    ttft,
                    itl,
                    input_tokens: prompt_tokens.unwrap_or(0),
                    output_tokens: output_tokens.unwrap_or(0),
                };
                self.table.ended(now, &labels, &endpoint, &ended);
                self.span(|| trace::Ended {
                    granted: true,
                    first_byte: ttft,
                    endpoint: (*endpoint).into(),
                    status,
                    input_tokens: prompt_tokens,
                    output_tokens,
                    ..trace::Ended::new(labels.clone(), outcome, waited, duration)
                });
                tracing::debug!(
                    pool = %labels.pool,
                    request_id = labels.request_id,
                    endpoint = &*endpoint,
                    status,
                    duration_ms = millis(duration),
                    ttft_ms = ttft.map(millis),
                    prompt_tokens,
                    output_tokens,
                    "ended"
                );
            }
        }
    }

    fn outcome(
        &mut self,
        now: Instant,
        labels: &Arc<Labels>,
        outcome: Outcome,
        code: &'static str,
        waited: Duration,
        to: &str,
    ) {
        if !matches!(outcome, Outcome::Bypassed | Outcome::Leased | Outcome::Dispatched) {
            self.span(|| trace::Ended {
                code,
                ..trace::Ended::new(labels.clone(), outcome, waited, waited)
            });
        }
        let series = self.table.of(now, labels);
        series.decided(outcome, labels.band, Some(waited));
        let of = series.labels();
        let band = band_name(labels.band);
        match outcome {
            Outcome::ExpiredTtl => self.metrics.expired.with_label_values(&of).inc(),
            Outcome::Cancelled => self.metrics.cancelled.with_label_values(&of).inc(),
            Outcome::Leased => self.metrics.lease_admissions.with_label_values(&of).inc(),
            Outcome::Displaced => {
                self.metrics
                    .preemptions
                    .with_label_values(&[of[0], of[1], of[2], band])
                    .inc();
            }
            Outcome::Bypassed
            | Outcome::Dispatched
            | Outcome::RejectedTooManyFlows
            | Outcome::RejectedQueueFull
            | Outcome::RejectedFlowCapacity
            | Outcome::RejectedClassCapacity
            | Outcome::RejectedPolicy
            | Outcome::RejectedUnmeetable
            | Outcome::RejectedInvalid
            | Outcome::DeadlineExceeded
            | Outcome::NoEndpoints
            | Outcome::ShuttingDown
            | Outcome::GatewayUnavailable
            | Outcome::Internal => {}
        }
        let flow = if labels.private { OTHER } else { &labels.flow };
        tracing::debug!(
            pool = %labels.pool,
            request_id = labels.request_id,
            flow,
            band,
            outcome = outcome.as_str(),
            waited_ms = millis(waited),
            endpoint = to,
            "decided"
        );
        if !code.is_empty() && outcome != Outcome::Cancelled {
            self.push_error(now, labels, code);
            self.warn(now, &labels.pool, code, flow);
        }
    }

    fn refused(&mut self, now: Instant, labels: &Labels, outcome: &str, code: &str) {
        let known = Outcome::ALL.into_iter().find(|known| known.as_str() == outcome);
        let outcome = known.unwrap_or(Outcome::Internal);
        let code = CODES.into_iter().find(|known| *known == code);
        let code = code.unwrap_or(code::INTERNAL);
        self.table.of(now, labels).decided(outcome, labels.band, None);
        self.push_error(now, labels, code);
        let outcome = outcome.as_str();
        tracing::debug!(pool = %labels.pool, request_id = labels.request_id, outcome, code, "refused by the filter");
    }

    fn span(&self, ended: impl FnOnce() -> trace::Ended) {
        if let Some(tracer) = &self.tracer {
            tracer.ended(ended());
        }
    }

    fn push_error(&mut self, now: Instant, labels: &Labels, code: &str) {
        let of = self.table.of(now, labels).labels();
        self.metrics
            .push_errors
            .with_label_values(&[of[0], of[1], of[2], code])
            .inc();
    }

    /// One line a kind and second, with the number of those it stands for.
    fn warn(&mut self, now: Instant, pool: &Arc<str>, code: &'static str, flow: &str) {
        let (last, silent) = self.warned.entry((pool.clone(), code)).or_insert((now, 0));
        if *silent == 0 || now.since(*last) >= WARN_EVERY {
            tracing::warn!(pool = %pool, code, flow, suppressed = silent.saturating_sub(1), "request refused");
            (*last, *silent) = (now, 1);
        } else {
            *silent += 1;
        }
    }
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use penstock_control::Status;
    use penstock_engine::input::Band;

    use super::*;

    fn labels() -> Arc<Labels> {
        Arc::new(Labels {
            pool: "chat".into(),
            model: "m".into(),
            target_model: "m".into(),
            class: Box::default(),
            traceparent: Box::default(),
            flow: "acme".into(),
            private: false,
            band: Band::Default,
            request_id: "r".into(),
        })
    }

    fn page(metrics: &Metrics) -> String {
        let status = Status {
            sessions: Vec::new(),
            pools: Vec::new(),
            started: true,
            gathered: true,
            draining: false,
            handed_over: false,
            envoys: 0,
            requests: 0,
        };
        String::from_utf8(metrics.render(&status).expect("text")).expect("text")
    }

    #[test]
    fn what_went_wrong_is_counted_under_its_name() {
        let metrics = Arc::new(Metrics::new().expect("distinct"));
        let mut observer = Observer::new(metrics.clone(), 10);
        observer.observe(Instant::ZERO, Observation::Requeued(labels()));
        observer.observe(Instant::ZERO, Observation::Requeued(labels()));
        observer.observe(Instant::ZERO, Observation::PriorityLowered(labels()));
        observer.observe(
            Instant::ZERO,
            Observation::Misrouted {
                labels: labels(),
                endpoint: "127.0.0.1:1".into(),
            },
        );
        observer.observe(
            Instant::ZERO,
            Observation::SessionOpened {
                conn: penstock_control::ConnId(1),
                node: "n".into(),
                waiting: 0,
                running: 0,
            },
        );
        let page = page(&metrics);
        let of = r#"{model="m",pool="chat",target_model="m"}"#;
        for line in [
            format!("penstock_requeues_total{of} 2"),
            format!("penstock_priority_lowered_total{of} 1"),
            r#"penstock_misrouted_total{pool="chat"} 1"#.to_owned(),
            "penstock_resyncs_total 1".to_owned(),
            "penstock_unacked_events 0".to_owned(),
            "penstock_sessions 0".to_owned(),
        ] {
            assert!(page.lines().any(|it| it == line), "{line} isn't in\n{page}");
        }
        for name in ["requeues_total", "priority_lowered_total", "unacked_events"] {
            let help = format!("# HELP penstock_{name} ");
            assert!(page.contains(&help), "{name} has no help in\n{page}");
        }
    }
}
