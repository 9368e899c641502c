//! Counters of requests before a response: arrivals, decisions, rejections.

use prometheus::IntCounterVec;

use super::{Maker, REQUEST, request_labels};

#[derive(Debug)]
pub(crate) struct RequestCounters {
    pub(crate) arrivals: IntCounterVec,
    pub(crate) client_retries: IntCounterVec,
    pub(crate) decided: IntCounterVec,
    pub(crate) refused_after_grant: IntCounterVec,
    pub(crate) bypass: IntCounterVec,
    pub(crate) expired: IntCounterVec,
    pub(crate) cancelled: IntCounterVec,
    pub(crate) push_errors: IntCounterVec,
    pub(crate) preemptions: IntCounterVec,
    pub(crate) requeues: IntCounterVec,
    pub(crate) priority_lowered: IntCounterVec,
    pub(crate) disaggregated: IntCounterVec,
    pub(crate) misrouted: IntCounterVec,
    pub(crate) pushback: IntCounterVec,
}

impl RequestCounters {
    pub(super) fn new(make: &Maker) -> prometheus::Result<Self> {
        let [decided, refused_after_grant] = outcomes(make)?;
        Ok(Self {
            arrivals: make.counter(
                "arrivals_total",
                "Requests that arrived, by their door: a filter in Envoy, or the endpoint picker.",
                &request_labels(&["door"]),
            )?,
            client_retries: make.counter(
                "client_retries_total",
                "Requests that arrived, and that their clients say they had sent before (x-stainless-retry-count): the first, second, third \
                 or a later retry.",
                &["pool", "retry"],
            )?,
            decided,
            refused_after_grant,
            bypass: make.counter(
                "bypass_total",
                "Requests that the companion granted at their arrival (outcome bypassed). Those that filters admitted by credit \
                 are in lease_admissions_total.",
                &REQUEST,
            )?,
            expired: make.counter(
                "requests_expired_total",
                "Requests that waited longer than queue.ttl, also those that filters rejected while no companion answered.",
                &REQUEST,
            )?,
            cancelled: make.counter(
                "requests_cancelled_total",
                "Requests whose client disconnected while they waited.",
                &REQUEST,
            )?,
            push_errors: make.counter(
                "queue_push_errors_total",
                "Requests rejected at their arrival, by the error code of the response, and requests whose invalid deadline was ignored \
                 (bad_deadline); requests that waited are in requests_total by outcome.",
                &request_labels(&["error_type"]),
            )?,
            preemptions: make.counter(
                "preemptions_total",
                "Waiting requests displaced by a more critical one, by their band.",
                &request_labels(&["band"]),
            )?,
            requeues: make.counter(
                "requeues_total",
                "Granted requests that no endpoint accepted and that were requeued.",
                &REQUEST,
            )?,
            priority_lowered: make.counter(
                "priority_lowered_total",
                "Requests that claimed a higher priority than their client may have.",
                &REQUEST,
            )?,
            disaggregated: make.counter(
                "disaggregated_requests_total",
                "Requests that were granted two endpoints, one of them for the prompt (disaggregation), by their first grant.",
                &["pool"],
            )?,
            misrouted: make.counter(
                "misrouted_total",
                "Requests that Envoy sent to another endpoint than the granted one.",
                &["pool"],
            )?,
            pushback: make.counter(
                "endpoint_pushback_total",
                "Requests that a model server refused by itself with a status of queue.requeue_on, by endpoint and status. Each \
                 lowers the endpoint's bound, and the request goes elsewhere or waits.",
                &["pool", "endpoint", "status"],
            )?,
        })
    }

    /// Exports a pool's counters of incidents as 0, because a rate can't be computed over an absent series.
    pub(super) fn init_pool(&self, pool: &str) {
        self.misrouted.with_label_values(&[pool]);
        self.disaggregated.with_label_values(&[pool]);
        for counter in [&self.bypass, &self.expired, &self.cancelled, &self.requeues, &self.priority_lowered]
        {
            // No particular model: an empty label counts as absent.
            counter.with_label_values(&[pool, "", ""]);
        }
        // Filters report many of these at once, and only a series that existed before shows an increase.
        let code = penstock_wire::Code::GatewayUnavailable.as_str();
        self.push_errors.with_label_values(&[pool, "", "", code]);
    }
}

/// The counters of first and second outcomes, and of second ones.
fn outcomes(make: &Maker) -> prometheus::Result<[IntCounterVec; 2]> {
    let labels = request_labels(&["outcome", "band"]);
    let all = make.counter(
        "requests_total",
        "Requests that left the queue or never entered it, by outcome. A request that was granted, and was evicted or waited again because \
         no endpoint took it and left the queue without another grant, counts twice: refused_after_grant_total.",
        &labels,
    )?;
    let second = make.counter(
        "refused_after_grant_total",
        "Requests that were granted and later rejected, evicted or cancelled, because no endpoint had taken them, the grant came too late \
         or a critical request waited for their place, by their second outcome. requests_total has both outcomes: its sum less this one counts every request once.",
        &labels,
    )?;
    Ok([all, second])
}
