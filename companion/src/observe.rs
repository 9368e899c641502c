//! What the driver saw, as counters and log lines: a request is one line at debug, and a kind of refusal is at most
//! one line a second at warn. Prompts, bodies and private identities are in neither.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_control::{Labels, Observation};
use penstock_engine::Outcome;
use penstock_wire::names::code;

use crate::metrics::{Metrics, OTHER};
use crate::policy::band_name;
use crate::store;

/// A kind of refusal is logged once in this time, with the count of those that weren't.
const WARN_EVERY: Duration = Duration::from_secs(1);

/// Moves the metrics and writes the log. Owned by the driver: nothing here is shared.
#[derive(Debug)]
pub struct Observer {
    metrics: Arc<Metrics>,
    models: Limited,
    endpoints: Limited,
    warned: HashMap<(Arc<str>, &'static str), (Instant, u64)>,
    kept: store::Writers,
}

/// The values of a label that a client chooses, up to a limit.
#[derive(Debug)]
struct Limited {
    seen: HashSet<Box<str>>,
    most: usize,
}

impl Limited {
    fn new(most: usize) -> Self {
        Self {
            seen: HashSet::new(),
            most,
        }
    }

    fn value<'a>(&mut self, of: &'a str) -> &'a str {
        if self.seen.contains(of) {
            return of;
        }
        if self.seen.len() >= self.most {
            return OTHER;
        }
        self.seen.insert(of.into());
        of
    }
}

impl Observer {
    /// With at most `values_max` values of a label that clients choose.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, values_max: usize) -> Self {
        Self {
            metrics,
            models: Limited::new(values_max),
            endpoints: Limited::new(values_max),
            warned: HashMap::new(),
            kept: store::Writers::default(),
        }
    }

    /// The same that keeps what is learned.
    #[must_use]
    pub fn keeping(self, kept: store::Writers) -> Self {
        Self { kept, ..self }
    }

    /// Another limit and other stores; what is shown already stays.
    pub fn hold_to(&mut self, values_max: usize, kept: store::Writers) {
        self.models.most = values_max;
        self.endpoints.most = values_max;
        self.kept = kept;
    }

    /// `messages` were decided on in `elapsed`.
    pub fn decided(&self, elapsed: Duration, messages: usize) {
        let none: [&str; 0] = [];
        #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
        self.metrics
            .decision
            .with_label_values(&none)
            .observe(elapsed.as_secs_f64() / messages.max(1) as f64);
    }

    /// Takes one observation.
    pub fn observe(&mut self, observation: Observation) {
        match observation {
            Observation::SessionOpened {
                conn,
                node,
                waiting,
                running,
            } => {
                let none: [&str; 0] = [];
                self.metrics.resyncs.with_label_values(&none).inc();
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
            Observation::Arrived(labels) => {
                let model = self.models.value(&labels.model);
                self.metrics
                    .arrivals
                    .with_label_values(&[&labels.pool, model, model])
                    .inc();
            }
            Observation::BadDeadline(labels) => {
                let model = self.models.value(&labels.model);
                self.metrics
                    .push_errors
                    .with_label_values(&[&labels.pool, model, model, code::BAD_DEADLINE])
                    .inc();
            }
            Observation::PriorityLowered(labels) => {
                let model = self.models.value(&labels.model);
                self.metrics
                    .priority_lowered
                    .with_label_values(&[&labels.pool, model, model])
                    .inc();
            }
            Observation::Requeued(labels) => {
                let model = self.models.value(&labels.model);
                self.metrics
                    .requeues
                    .with_label_values(&[&labels.pool, model, model])
                    .inc();
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
                self.outcome(&labels, outcome, code, waited, &endpoint);
            }
            Observation::Refused {
                labels,
                outcome,
                code,
            } => self.refused(&labels, &outcome, &code),
            Observation::Learned { pool, variant, kept } => self.kept.learned(&pool, variant, kept),
            Observation::Misrouted { labels, endpoint } => {
                self.metrics.misrouted.with_label_values(&[&labels.pool]).inc();
                tracing::warn!(pool = %labels.pool, request_id = labels.request_id, endpoint, "went to another endpoint than was granted");
            }
            Observation::Dropped { labels, code, .. } => {
                tracing::debug!(pool = %labels.pool, request_id = labels.request_id, code, "ended without a server");
            }
            Observation::Completed {
                labels,
                outcome: _,
                waited: _,
                endpoint,
                status,
                ttft,
                itl,
                duration,
                prompt_tokens,
                output_tokens,
            } => {
                let model = self.models.value(&labels.model);
                let endpoint = self.endpoints.value(&endpoint);
                let of = [&labels.pool, model, model];
                let at = [&labels.pool, model, model, endpoint];
                let class = code_class(status);
                self.metrics
                    .responses
                    .with_label_values(&[of[0], of[1], of[2], endpoint, class])
                    .inc();
                self.metrics
                    .input_tokens
                    .with_label_values(&of)
                    .inc_by(prompt_tokens.unwrap_or(0));
                self.metrics
                    .output_tokens
                    .with_label_values(&of)
                    .inc_by(output_tokens.unwrap_or(0));
                self.metrics
                    .duration
                    .with_label_values(&at)
                    .observe(duration.as_secs_f64());
                if let Some(ttft) = ttft {
                    self.metrics
                        .ttft
                        .with_label_values(&at)
                        .observe(ttft.as_secs_f64());
                }
                if let Some(itl) = itl {
                    self.metrics.itl.with_label_values(&at).observe(itl.as_secs_f64());
                }
                tracing::debug!(
                    pool = %labels.pool,
                    request_id = labels.request_id,
                    endpoint,
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

    fn outcome(&mut self, labels: &Labels, outcome: Outcome, code: &'static str, waited: Duration, to: &str) {
        let model = self.models.value(&labels.model);
        let of = [&labels.pool, model, model];
        let band = band_name(labels.band);
        let name = outcome.as_str();
        self.metrics
            .requests
            .with_label_values(&[of[0], of[1], of[2], name, band])
            .inc();
        self.metrics
            .queue_latency
            .with_label_values(&[of[0], of[1], of[2], band, name])
            .observe(waited.as_secs_f64());
        match outcome {
            Outcome::Bypassed => self.metrics.bypass.with_label_values(&of).inc(),
            Outcome::ExpiredTtl => self.metrics.expired.with_label_values(&of).inc(),
            Outcome::Cancelled => self.metrics.cancelled.with_label_values(&of).inc(),
            Outcome::Displaced => {
                self.metrics
                    .preemptions
                    .with_label_values(&[of[0], of[1], of[2], band])
                    .inc();
            }
            Outcome::Leased
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
            outcome = name,
            waited_ms = millis(waited),
            endpoint = to,
            "decided"
        );
        if !code.is_empty() && outcome != Outcome::Cancelled {
            self.metrics
                .push_errors
                .with_label_values(&[of[0], of[1], of[2], code])
                .inc();
            self.warn(&labels.pool, code, flow);
        }
    }

    fn refused(&mut self, labels: &Labels, outcome: &str, code: &str) {
        let model = self.models.value(&labels.model);
        let of = [&labels.pool, model, model];
        let known = Outcome::ALL
            .into_iter()
            .map(Outcome::as_str)
            .find(|name| *name == outcome);
        let outcome = known.unwrap_or(Outcome::Internal.as_str());
        let band = band_name(labels.band);
        self.metrics
            .requests
            .with_label_values(&[of[0], of[1], of[2], outcome, band])
            .inc();
        self.metrics
            .push_errors
            .with_label_values(&[of[0], of[1], of[2], self.endpoints.value(code)])
            .inc();
        tracing::debug!(pool = %labels.pool, request_id = labels.request_id, outcome, code, "refused by the filter");
    }

    /// One line a kind and second, with the number of those it stands for.
    fn warn(&mut self, pool: &Arc<str>, code: &'static str, flow: &str) {
        let now = Instant::now();
        let (last, silent) = self.warned.entry((pool.clone(), code)).or_insert((now, 0));
        if *silent == 0 || now.duration_since(*last) >= WARN_EVERY {
            tracing::warn!(pool = %pool, code, flow, suppressed = silent.saturating_sub(1), "request refused");
            (*last, *silent) = (now, 1);
        } else {
            *silent += 1;
        }
    }
}

const fn code_class(status: u16) -> &'static str {
    match status {
        100..=199 => "1xx",
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        500..=599 => "5xx",
        _ => "none",
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
        observer.observe(Observation::Requeued(labels()));
        observer.observe(Observation::Requeued(labels()));
        observer.observe(Observation::PriorityLowered(labels()));
        observer.observe(Observation::Misrouted {
            labels: labels(),
            endpoint: "127.0.0.1:1".into(),
        });
        observer.observe(Observation::SessionOpened {
            conn: penstock_control::ConnId(1),
            node: "n".into(),
            waiting: 0,
            running: 0,
        });
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
