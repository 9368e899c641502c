//! Turns observations into counters, spans and log lines. Each request is one line at debug; each kind of rejection is at
//! most one line a second at warn. Prompts, bodies and private identities appear in none of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use penstock_control::{
    Completed, ConnId, Decided, Dropped, Labels, Observation, PoolNews, Refused, RequestNews, SessionNews,
    Status,
};
use penstock_engine::effect::BudgetReport;
use penstock_engine::{HealthReason, HealthState, Instant, Outcome};
use penstock_wire::Code;

use crate::metrics::trace::{SpanRecord, Tracer};
use crate::metrics::{CompletedRequest, Metrics, NO_POOL, OTHER, SeriesTable};
use penstock_stores::Recorders;

/// Codes with which a filter rejects requests that were admitted, or that waited for a companion until their time was over.
const LATER: [Code; 6] = [
    Code::QueueTimeout,
    Code::DeadlineExceeded,
    Code::Cancelled,
    Code::UpstreamUnavailable,
    Code::UpstreamReset,
    Code::UpstreamTimeout,
];
/// A kind of rejection is logged once in this interval, with the number of suppressed lines.
const WARN_INTERVAL: Duration = Duration::from_secs(1);
/// The kind of the log line about an Envoy without file descriptors.
const OUT_OF_FILES: &str = "out_of_files";
/// The logged status of a request that waited when its client left. No response was sent.
const CLIENT_LEFT: u16 = 499;

/// Updates the metrics, writes the log, and passes models and usage to the stores. Owned by the driver; nothing is shared.
#[derive(Debug)]
pub struct Observer {
    metrics: Arc<Metrics>,
    table: SeriesTable,
    /// By pool and code: the last log line, and the rejections since then, that one included.
    warned: HashMap<(Arc<str>, &'static str), (Instant, u64)>,
    recorders: Recorders,
    tracer: Option<Tracer>,
}

impl Observer {
    /// An observer that exports at most `values_max` values of a label that clients choose.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, values_max: usize) -> Self {
        metrics.set_values_max(values_max);
        Self {
            table: SeriesTable::new(metrics.clone()),
            metrics,
            warned: HashMap::new(),
            recorders: Recorders::default(),
            tracer: None,
        }
    }

    /// Records learned models and usage.
    #[must_use]
    pub(crate) fn with_recorders(self, recorders: Recorders) -> Self {
        Self { recorders, ..self }
    }

    /// Exports a span for each request, if there is a tracer.
    #[must_use]
    pub(crate) fn with_tracer(self, tracer: Option<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// Sets the limit and the recorders. Series beyond a smaller limit stay.
    pub(crate) fn configure(&mut self, values_max: usize, recorders: Recorders) {
        self.metrics.set_values_max(values_max);
        self.recorders = recorders;
    }

    /// Records that deciding on `messages` took `elapsed`.
    pub(crate) fn record_batch(&self, elapsed: Duration, messages: usize) {
        #[expect(clippy::cast_precision_loss, reason = "a batch is small")]
        self.metrics.decision.observe(elapsed.as_secs_f64() / messages.max(1) as f64);
    }

    /// Drops the series of pools and endpoints that no longer exist, before the metrics are rendered with this status.
    pub(crate) fn retain_labels(&mut self, now: Instant, status: &Status) {
        self.table.retain_labels(now, status);
        let is_pool = |name: &str| name == NO_POOL || status.pools.iter().any(|pool| &*pool.name == name);
        self.warned.retain(|(pool, _), _| is_pool(pool));
    }

    /// Replaces the names of models beyond the limit on label values by `other`.
    pub(crate) fn limit_models(&mut self, status: &mut Status) {
        self.table.limit_models(status);
    }

    /// Handles an observation made at `now`.
    pub fn observe(&mut self, now: Instant, observation: Observation) {
        match observation {
            Observation::Session(conn, news) => self.observe_session(conn, &news),
            Observation::Pool(pool, news) => self.observe_pool(now, &pool, news),
            Observation::Request(labels, news) => self.observe_request(now, &labels, news),
            Observation::Alive(endpoints) => self.metrics.liveness.record(&endpoints),
        }
    }

    fn observe_pool(&mut self, now: Instant, pool: &Arc<str>, news: PoolNews) {
        match news {
            PoolNews::Health { endpoint, before, state, reason } => {
                log_health(pool, &endpoint, before, state, reason);
            }
            PoolNews::OutOfFiles => self.warn_about_files(now, pool),
            PoolNews::PushedBack { endpoint, status } => {
                let counter = &self.metrics.requests.pushback;
                let values = [&**pool, &*endpoint, pushback_status(status)];
                counter.with_label_values(&values).inc();
                tracing::debug!(pool = %pool, endpoint = %endpoint, status, "endpoint refused a request: its bound was lowered");
            }
            PoolNews::Abandoned { endpoint } => self.metrics.early_reads.ask(pool, &endpoint),
            PoolNews::Estimated(reason) => {
                self.metrics.responses.estimated.with_label_values(&[&**pool, reason.as_str()]).inc();
            }
            PoolNews::Learned { variant, kept } => self.recorders.record_model(pool, variant, kept),
            PoolNews::Used(used) => self.recorders.record_usage(pool, used),
            PoolNews::Running(running) => self.recorders.record_running(pool, running),
            PoolNews::Budget(report) => self.record_budget(pool, report),
        }
    }

    /// Stores what flows use of their budgets.
    fn record_budget(&self, pool: &str, report: BudgetReport) {
        match report {
            BudgetReport::Used(used) => self.recorders.record_budget_used(pool, used),
            BudgetReport::Running(running) => self.recorders.record_budget_running(pool, running),
            BudgetReport::Reset { flow, number } => self.recorders.record_budget_reset(pool, &flow, number),
            BudgetReport::Forgotten { flow, number } => self.recorders.forget_budget(pool, &flow, number),
            BudgetReport::Shadowed { .. } => {}
        }
    }

    fn observe_request(&mut self, now: Instant, labels: &Arc<Labels>, news: RequestNews) {
        match news {
            RequestNews::Arrived(door) => self.table.series(now, labels).count_arrival(door),
            RequestNews::ClientRetry(retries) => {
                // Libraries try two or three times; more are one series.
                let label = match retries {
                    0 | 1 => "1",
                    2 => "2",
                    3 => "3",
                    4.. => "more",
                };
                self.metrics.requests.client_retries.with_label_values(&[&*labels.pool, label]).inc();
            }
            RequestNews::BadDeadline => self.count_push_error(now, labels, Code::BadDeadline),
            RequestNews::PriorityLowered => {
                let values = self.table.series(now, labels).labels();
                self.metrics.requests.priority_lowered.with_label_values(&values).inc();
            }
            RequestNews::Requeued => {
                let values = self.table.series(now, labels).labels();
                self.metrics.requests.requeues.with_label_values(&values).inc();
                tracing::debug!(
                    pool = %labels.pool,
                    request_id = labels.request_id,
                    "request requeued: no endpoint accepted it"
                );
            }
            RequestNews::Decided(decided) => self.observe_decision(now, labels, &decided),
            RequestNews::Refused(refused) => self.observe_filter_rejection(now, labels, &refused),
            RequestNews::Misrouted(endpoint) => self.observe_misrouted(labels, &endpoint),
            RequestNews::Dropped(dropped) => self.observe_drop(now, labels, &dropped),
            RequestNews::Completed(completed) => self.observe_completion(now, labels, &completed),
        }
    }

    fn observe_misrouted(&self, labels: &Labels, endpoint: &str) {
        self.metrics.requests.misrouted.with_label_values(&[&labels.pool]).inc();
        tracing::warn!(
            pool = %labels.pool,
            request_id = labels.request_id,
            endpoint,
            "Envoy sent the request to another endpoint than the granted one"
        );
    }

    /// Counts the gateway's own answer to a granted request, which no endpoint answered.
    fn count_own_answer(&mut self, now: Instant, labels: &Arc<Labels>, status: u16, duration: Duration) {
        let answered =
            CompletedRequest { status, duration, ttft: None, itl: None, input_tokens: 0, output_tokens: 0 };
        self.table.record_completion(now, labels, "", &answered);
    }

    /// Handles the end of a granted request that no endpoint accepted, or whose end none reported.
    fn observe_drop(&mut self, now: Instant, labels: &Arc<Labels>, dropped: &Dropped) {
        let Dropped { outcome, requeues, status, code, waited } = *dropped;
        if let Some(status) = status {
            self.count_own_answer(now, labels, status, waited);
        }
        if !outcome.is_grant() {
            let series = self.table.series(now, labels);
            series.count_decision(outcome, labels.band, Some(waited));
            series.count_second_outcome(outcome, labels.band);
        }
        // The time after the grant isn't known: no endpoint reported an end.
        self.export_span(|| SpanRecord {
            granted: true,
            code,
            requeues,
            ..SpanRecord::new(labels.clone(), outcome, waited, waited)
        });
        tracing::debug!(
            pool = %labels.pool,
            request_id = labels.request_id,
            outcome = outcome.as_str(),
            code = code.map(Code::as_str),
            requeues,
            waited_ms = millis(waited),
            "request ended without an endpoint"
        );
        if let Some(code) = code {
            let flow = if labels.private { OTHER } else { &labels.flow };
            self.warn_about_rejection(now, &labels.pool, code, flow);
        }
    }

    fn observe_session(&self, conn: ConnId, news: &SessionNews) {
        match news {
            SessionNews::Opened { node, waiting, running } => {
                self.metrics.resyncs.inc();
                tracing::info!(
                    conn = conn.0,
                    node,
                    "session opened: its filter has {waiting} waiting and {running} running requests"
                );
            }
            SessionNews::Closed(why) => {
                tracing::info!(conn = conn.0, why, "session closed");
            }
            SessionNews::Orphaned { waiting, running } => {
                let grace = penstock_wire::limits::SESSION_GRACE;
                tracing::warn!(
                    conn = conn.0,
                    "session lost: {waiting} waiting and {running} running requests keep their places for {grace:?}"
                );
            }
        }
    }

    fn observe_completion(&mut self, now: Instant, labels: &Arc<Labels>, completed: &Completed) {
        let &Completed {
            outcome,
            waited,
            ref endpoint,
            status,
            first_token,
            ttft,
            itl,
            duration,
            prompt_tokens,
            output_tokens,
            requeues,
            extra,
        } = completed;
        let completed = CompletedRequest {
            status,
            duration,
            ttft,
            itl,
            input_tokens: prompt_tokens.unwrap_or(0),
            output_tokens: output_tokens.unwrap_or(0),
        };
        self.table.record_completion(now, labels, endpoint, &completed);
        self.export_span(|| SpanRecord {
            granted: true,
            first_token,
            endpoint: (**endpoint).into(),
            status,
            input_tokens: prompt_tokens,
            output_tokens,
            requeues,
            ..SpanRecord::new(labels.clone(), outcome, waited, duration)
        });
        tracing::debug!(
            pool = %labels.pool,
            request_id = labels.request_id,
            endpoint = &**endpoint,
            status,
            duration_ms = millis(duration),
            ttft_ms = ttft.map(millis),
            prompt_tokens,
            output_tokens,
            requeues,
            extra,
            "request ended"
        );
    }

    fn observe_decision(&mut self, now: Instant, labels: &Arc<Labels>, decided: &Decided) {
        let Decided { outcome, code, waited, ref endpoint, was_queued, extra, ref prefill } = *decided;
        if !outcome.is_grant() {
            self.export_span(|| SpanRecord {
                code,
                ..SpanRecord::new(labels.clone(), outcome, waited, waited)
            });
        }
        self.table.series(now, labels).count_decision(outcome, labels.band, Some(waited));
        if prefill.is_some() {
            self.metrics.requests.disaggregated.with_label_values(&[&*labels.pool]).inc();
        }
        let flow = if labels.private { OTHER } else { &labels.flow };
        tracing::debug!(
            pool = %labels.pool,
            request_id = labels.request_id,
            flow,
            band = labels.band.as_str(),
            outcome = outcome.as_str(),
            status = (outcome == Outcome::Cancelled).then_some(CLIENT_LEFT),
            waited_ms = millis(waited),
            endpoint = &**endpoint,
            prefill_endpoint = prefill.as_deref(),
            extra,
            "request decided"
        );
        if let Some(code) = code.filter(|_| outcome != Outcome::Cancelled) {
            self.warn_about_rejection(now, &labels.pool, code, flow);
        }
        if let Some(code) = code.filter(|_| !was_queued) {
            self.count_push_error(now, labels, code);
        }
    }

    fn observe_filter_rejection(&mut self, now: Instant, labels: &Arc<Labels>, refused: &Refused) {
        let Refused { node, outcome, code, waited, was_granted, requeues } = refused;
        let code = *code;
        if code == Code::FilterMisconfigured {
            self.warn_about_filter(now, node);
        }
        let outcome = Outcome::from_name(outcome).unwrap_or(Outcome::Internal);
        let series = self.table.series(now, labels);
        series.count_decision(outcome, labels.band, *waited);
        if *was_granted {
            series.count_second_outcome(outcome, labels.band);
        } else if waited.is_none() && !LATER.contains(&code) {
            self.count_push_error(now, labels, code);
        }
        tracing::debug!(
            pool = %labels.pool,
            request_id = labels.request_id,
            outcome = outcome.as_str(),
            code = code.as_str(),
            requeues,
            "request rejected by its filter"
        );
    }

    fn export_span(&self, record: impl FnOnce() -> SpanRecord) {
        if let Some(tracer) = &self.tracer {
            tracer.record(record());
        }
    }

    fn count_push_error(&mut self, now: Instant, labels: &Labels, code: Code) {
        let [pool, model, target_model] = self.table.series(now, labels).labels();
        self.metrics
            .requests
            .push_errors
            .with_label_values(&[pool, model, target_model, code.as_str()])
            .inc();
    }

    /// Logs one line for each interval.
    fn warn_about_filter(&mut self, now: Instant, node: &str) {
        let key = (Arc::from(NO_POOL), Code::FilterMisconfigured.as_str());
        let (last, count) = self.warned.entry(key).or_insert((now, 0));
        if *count == 0 || now.since(*last) >= WARN_INTERVAL {
            tracing::error!(
                node,
                suppressed = count.saturating_sub(1),
                "an Envoy doesn't pass request bodies to its filter, so requests are answered 503 filter_misconfigured: set \
                 `allow_on_headers_stop_iteration: true` in the filter's plugin configuration"
            );
            (*last, *count) = (now, 1);
        } else {
            *count += 1;
        }
    }

    /// Logs one line for each pool and interval.
    fn warn_about_files(&mut self, now: Instant, pool: &Arc<str>) {
        let (last, count) = self.warned.entry((pool.clone(), OUT_OF_FILES)).or_insert((now, 0));
        if *count == 0 || now.since(*last) >= WARN_INTERVAL {
            tracing::error!(
                pool = %pool,
                suppressed = count.saturating_sub(1),
                "an Envoy has no file descriptor left for connections to servers, so requests wait: raise its limit of open files \
                 (LimitNOFILE), or print a bootstrap with fewer connections (envoy-config --open-files)"
            );
            (*last, *count) = (now, 1);
        } else {
            *count += 1;
        }
    }

    /// Logs one line for each pool, code and interval.
    fn warn_about_rejection(&mut self, now: Instant, pool: &Arc<str>, code: Code, flow: &str) {
        let code = code.as_str();
        let (last, count) = self.warned.entry((pool.clone(), code)).or_insert((now, 0));
        if *count == 0 || now.since(*last) >= WARN_INTERVAL {
            tracing::warn!(pool = %pool, code, flow, suppressed = count.saturating_sub(1), "request rejected");
            (*last, *count) = (now, 1);
        } else {
            *count += 1;
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Logs a change of an endpoint's state.
fn log_health(pool: &str, endpoint: &str, before: HealthState, state: HealthState, reason: HealthReason) {
    let before = before.as_str();
    match state {
        HealthState::Down => {
            tracing::warn!(
                pool,
                endpoint,
                before,
                "endpoint down: {reason}; check that its server accepts connections"
            );
        }
        HealthState::Failing => {
            tracing::warn!(pool, endpoint, before, "endpoint failing: {reason}; check the log of its server");
        }
        HealthState::Probing => {
            tracing::info!(
                pool,
                endpoint,
                before,
                "endpoint probed: it takes one request at a time, and the next answer decides"
            );
        }
        HealthState::Healthy => tracing::info!(pool, endpoint, before, "endpoint healthy: {reason}"),
    }
}

/// The label of a status with which a server refuses a request.
const fn pushback_status(status: u16) -> &'static str {
    match status {
        429 => "429",
        _ => "503",
    }
}

#[cfg(test)]
mod tests {
    use penstock_control::Status;
    use penstock_engine::input::Band;

    use super::*;

    fn labels() -> Arc<Labels> {
        Arc::new(Labels {
            tokens: None,
            pool: "chat".into(),
            model: "m".into(),
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
        String::from_utf8(metrics.render(&status, &[], None).expect("text")).expect("text")
    }

    #[test]
    fn each_incident_is_counted_under_its_metric() {
        let metrics = Arc::new(Metrics::new().expect("distinct"));
        let mut observer = Observer::new(metrics.clone(), 10);
        observer.observe(Instant::ZERO, Observation::Request(labels(), RequestNews::Requeued));
        observer.observe(Instant::ZERO, Observation::Request(labels(), RequestNews::Requeued));
        observer.observe(Instant::ZERO, Observation::Request(labels(), RequestNews::PriorityLowered));
        observer.observe(
            Instant::ZERO,
            Observation::Request(labels(), RequestNews::Misrouted("127.0.0.1:1".into())),
        );
        observer.observe(
            Instant::ZERO,
            Observation::Session(
                penstock_control::ConnId(1),
                SessionNews::Opened { node: "n".into(), waiting: 0, running: 0 },
            ),
        );
        let page = page(&metrics);
        let labels_text = r#"{model="m",pool="chat",target_model="m"}"#;
        for line in [
            format!("penstock_requeues_total{labels_text} 2"),
            format!("penstock_priority_lowered_total{labels_text} 1"),
            r#"penstock_misrouted_total{pool="chat"} 1"#.to_owned(),
            "penstock_resyncs_total 1".to_owned(),
            "penstock_unacked_events 0".to_owned(),
            "penstock_sessions 0".to_owned(),
        ] {
            assert!(page.lines().any(|present| present == line), "{line} isn't in\n{page}");
        }
        for name in ["requeues_total", "priority_lowered_total", "unacked_events"] {
            let help = format!("# HELP penstock_{name} ");
            assert!(page.contains(&help), "{name} has no help in\n{page}");
        }
    }

    /// A filter that rejected a request by itself tells the companion when it is back.
    #[test]
    fn what_filters_decided_is_counted_like_what_the_companion_decides() {
        let metrics = Arc::new(Metrics::new().expect("distinct"));
        let mut observer = Observer::new(metrics.clone(), 10);
        for (outcome, code) in [
            ("expired_ttl", Code::QueueTimeout),
            ("rejected_invalid", Code::InvalidApiKey),
            ("cancelled", Code::Cancelled),
        ] {
            let rejected = Observation::Request(
                labels(),
                RequestNews::Refused(Refused {
                    node: "edge".into(),
                    outcome: outcome.into(),
                    code,
                    waited: None,
                    was_granted: false,
                    requeues: 0,
                }),
            );
            observer.observe(Instant::ZERO, rejected);
        }
        let page = page(&metrics);
        let labels_text = r#"model="m",pool="chat",target_model="m""#;
        for line in [
            format!("penstock_requests_expired_total{{{labels_text}}} 1"),
            format!("penstock_requests_cancelled_total{{{labels_text}}} 1"),
            format!(r#"penstock_queue_push_errors_total{{error_type="invalid_api_key",{labels_text}}} 1"#),
        ] {
            assert!(page.lines().any(|present| present == line), "{line} isn't in\n{page}");
        }
    }
}
