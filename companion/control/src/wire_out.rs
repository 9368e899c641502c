//! Builds the messages to the filter from this crate's types.

use core::time::Duration;

use penstock_engine::policy::CostUnit;
use penstock_wire as wire;
use wire::command::Kind;

use crate::ids::CreditId;
use crate::labels::Labels;
use crate::pool::{Announcement, GivenCredit, Grant};
use crate::rate_limit::RateLimit;
use crate::rejection::Rejection;

/// The grant of the filter's request with this sequence number, in the memory of an earlier message.
pub(crate) fn grant(
    sequence: u64,
    labels: &Labels,
    grant: &Grant,
    rate_limit: Option<RateLimit>,
    memory: wire::Grant,
) -> Kind {
    let mut endpoints = memory.endpoints;
    endpoints.resize_with(grant.endpoints.len(), String::new);
    for (text, address) in endpoints.iter_mut().zip(&grant.endpoints) {
        write(text, address);
    }
    let written = |mut text: String, value: &str| {
        write(&mut text, value);
        text
    };
    let prefill_endpoint = grant.prefill.as_deref().unwrap_or_default();
    let target_model = if grant.rewrites_body { &*labels.model.target } else { "" };
    Kind::Grant(wire::Grant {
        sequence,
        pool: written(memory.pool, &labels.pool),
        endpoints,
        outcome: written(memory.outcome, grant.outcome.as_str()),
        queue_us: micros(grant.waited),
        saturation_milli: grant.saturation_milli,
        target_model: written(memory.target_model, target_model),
        requeue: grant.may_requeue,
        rate_limit: rate_limit.map(left_of_budget),
        final_status: grant.is_final,
        retry_not_found: grant.retries_not_found,
        prefill_endpoint: written(memory.prefill_endpoint, prefill_endpoint),
    })
}

fn write(text: &mut String, value: &str) {
    text.clear();
    text.push_str(value);
}

/// The rejection of the filter's request with this sequence number.
pub(crate) fn reject(sequence: u64, rejection: &Rejection) -> Kind {
    Kind::Reject(error(sequence, rejection))
}

/// Asks for the end of the filter's request with this sequence number, by this answer.
pub(crate) fn evict(sequence: u64, rejection: &Rejection) -> Kind {
    Kind::Evict(wire::Evict { answer: Some(error(sequence, rejection)) })
}

fn error(sequence: u64, rejection: &Rejection) -> wire::Reject {
    wire::Reject {
        sequence,
        status: u32::from(rejection.answer.status),
        code: rejection.answer.code.as_str().to_owned(),
        outcome: rejection.outcome.as_str().to_owned(),
        message: rejection.answer.message.clone(),
        retry_after_ms: rejection.retry_after.map(|wait| millis(wait.saturating_add(ROUNDED_UP))),
        r#final: rejection.answer.is_final,
        queue_us: micros(rejection.waited),
        saturation_milli: rejection.saturation_milli,
        rate_limit: rejection.rate_limit.map(left_of_budget),
    }
}

fn left_of_budget(left: RateLimit) -> wire::RateLimit {
    let unit = match left.unit {
        CostUnit::Tokens => wire::rate_limit::Unit::Tokens,
        CostUnit::Requests => wire::rate_limit::Unit::Requests,
    };
    wire::RateLimit {
        unit: unit.into(),
        limit: left.limit,
        remaining: left.remaining,
        reset_ms: millis(left.resets_in.saturating_add(ROUNDED_UP)),
    }
}

/// A pool's ready endpoints, and the bound for requests that go without the companion.
pub(crate) fn endpoints(announcement: &Announcement<'_>) -> Kind {
    Kind::Endpoints(wire::Endpoints {
        pool: announcement.pool.to_owned(),
        ready: announcement.ready().map(str::to_owned).collect(),
        fallback_bound: announcement.fallback_bound,
        keep_ready: false,
    })
}

/// A pool's bound for requests that go without the companion. The filter knows the endpoints.
pub(crate) fn fallback_bound(announcement: &Announcement<'_>) -> Kind {
    Kind::Endpoints(wire::Endpoints {
        pool: announcement.pool.to_owned(),
        ready: Vec::new(),
        fallback_bound: announcement.fallback_bound,
        keep_ready: true,
    })
}

/// Gives places of a pool, or renews a credit.
pub(crate) fn credit(pool: &str, given: &GivenCredit) -> Kind {
    let places = given.places.iter().map(|(address, places)| wire::EndpointCredit {
        address: (**address).to_owned(),
        requests: u32::try_from(*places).unwrap_or(u32::MAX),
    });
    Kind::Credit(wire::Credit {
        pool: pool.to_owned(),
        id: given.credit.number,
        ttl_ms: u32::try_from(GivenCredit::TTL.as_millis()).unwrap_or(u32::MAX),
        endpoints: places.collect(),
        prompt_bytes_max: given.prompt_bytes_max,
        saturation_milli: given.saturation_milli,
        requeue: given.may_requeue,
    })
}

/// Recalls a credit.
pub(crate) fn recall(pool: &str, credit: CreditId) -> Kind {
    Kind::Recall(wire::Recall { pool: pool.to_owned(), credit: credit.number })
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Added before the conversion to milliseconds: a client that comes back that early would be rejected again.
const ROUNDED_UP: Duration = Duration::from_nanos(999_999);

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
