//! What the engines decide, as commands to the filters and as observations.

use core::time::Duration;
use std::sync::Arc;

use penstock_engine::input::{PastUsage, RequestId, Usage};
use penstock_engine::{Effect, Instant, Outcome};
use penstock_wire as wire;
use wire::command::Kind;

use crate::answer::{self, Answer};
use crate::control::Control;
use crate::convert;
use crate::event::{Labels, Observation};
use crate::register::Stage;
use crate::status::named;

/// What a client is told to wait when nobody can say.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);

impl Control {
    /// Does all that an engine has decided.
    pub(crate) fn effects(&mut self, now: Instant, pool: usize) {
        while let Some(effect) = self.pools[pool].engine.poll_effect() {
            match effect {
                Effect::Grant {
                    id,
                    endpoints,
                    outcome,
                    waited,
                    prompt,
                    cached,
                    output,
                    cost: _,
                } => {
                    if let Some(&first) = endpoints.first()
                        && self.requests.get(id).is_some()
                    {
                        let expected = Usage {
                            prompt: Some(prompt),
                            cached: Some(cached),
                            output: Some(output),
                        };
                        let granted = convert::granted(first, &expected);
                        self.pools[pool].autopilot.granted(now, id, granted);
                    }
                    let of = &self.pools[pool];
                    let saturation_milli = narrow(of.engine.saturation_milli());
                    // Collected, the list would be made in the memory of the numbers, and that moved to fit.
                    let mut addresses = Vec::with_capacity(endpoints.len());
                    addresses.extend(endpoints.iter().map(|it| of.address(*it).to_owned()));
                    self.granted(now, pool, id, addresses, outcome, waited, saturation_milli);
                }
                Effect::Reject {
                    id,
                    outcome,
                    waited,
                    retry_after,
                } => {
                    self.rejected(pool, id, outcome, waited, retry_after);
                }
                Effect::Cancelled { id, waited } => {
                    let code = wire::names::code::CANCELLED;
                    if let Some(entry) = self.requests.close(id) {
                        match entry.admitted {
                            None => {
                                self.decided(&entry.labels, Outcome::Cancelled, code, waited, Arc::default());
                            }
                            Some(outcome) => self.dropped(&entry.labels, outcome, "", waited),
                        }
                    }
                }
                Effect::UsageSettled {
                    band,
                    class,
                    flow,
                    model,
                    cost,
                } => {
                    let pool = self.pools[pool].name.clone();
                    let ago = Duration::ZERO;
                    let used = PastUsage {
                        band,
                        class,
                        flow,
                        model,
                        cost,
                        ago,
                    };
                    self.observe(Observation::Used { pool, used });
                }
                Effect::Settled { id, band: _, cost } => {
                    if let Some(labels) = self.requests.settled(id) {
                        let flow = named(&labels.flow);
                        self.pools[pool].shown.served(now, flow, labels.private, cost.0);
                    }
                }
                // A control never asks for traces.
                Effect::Traced { .. } => {}
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one effect")]
    fn granted(
        &mut self,
        now: Instant,
        pool: usize,
        id: RequestId,
        endpoints: Vec<String>,
        outcome: Outcome,
        waited: Duration,
        saturation_milli: u32,
    ) {
        let requeues = self.pools[pool].requeues;
        let Some(entry) = self.requests.get(id) else {
            return;
        };
        let context = self.requests.contexts.get(&entry.name.epoch);
        let enters_again = context.is_some_and(|context| context.version >= 2);
        let Some(entry) = self.requests.get_mut(id) else {
            return;
        };
        let first_time = entry.admitted.is_none();
        // Let go again, it keeps the outcome it was let go with at first.
        let outcome = *entry.admitted.get_or_insert(outcome);
        // Kept without what its entry knows anyway.
        let kept = wire::Grant {
            sequence: entry.name.sequence,
            pool: String::new(),
            endpoints,
            outcome: String::new(),
            queue_us: micros(waited),
            saturation_milli,
            target_model: if entry.rewritten || entry.labels.target_model == entry.labels.model {
                String::new()
            } else {
                entry.labels.target_model.to_string()
            },
            requeue: enters_again && entry.requeues < requeues,
        };
        let said = entry.whole(&kept);
        entry.stage = Stage::Granted {
            grant: Box::new(kept),
            at: now,
            failed: 0,
            misrouted: false,
        };
        let (epoch, labels) = (entry.name.epoch, entry.labels.clone());
        if first_time {
            let first = said.endpoints.first().map_or("", String::as_str);
            let first = self.pools[pool].shared_address(first);
            self.decided(&labels, outcome, "", waited, first);
        }
        self.say(epoch, Kind::Grant(said));
    }

    fn rejected(
        &mut self,
        pool: usize,
        id: RequestId,
        outcome: Outcome,
        waited: Duration,
        retry_after: Option<Duration>,
    ) {
        let Some(entry) = self.requests.close(id) else {
            return;
        };
        let of = &self.pools[pool];
        let saturation = narrow(of.engine.saturation_milli());
        let Some(answer) = answer::to(outcome, &of.name, &of.policy, of.capacity_status) else {
            return;
        };
        if let Some(admitted) = entry.admitted {
            self.dropped(&entry.labels, admitted, answer.code, waited);
        } else {
            if matches!(outcome, Outcome::RejectedPolicy | Outcome::RejectedInvalid) {
                self.pools[pool].autopilot.refused();
            }
            self.decided(&entry.labels, outcome, answer.code, waited, Arc::default());
        }
        let outcome = entry.admitted.unwrap_or(outcome).as_str();
        let sequence = entry.name.sequence;
        let reject = reject(sequence, answer, outcome, waited, retry_after, saturation);
        self.turn_down(entry.name, reject);
    }

    /// Says to log and metrics how a request left the queue, once for each.
    pub(crate) fn decided(
        &mut self,
        labels: &Arc<Labels>,
        outcome: Outcome,
        code: &'static str,
        waited: Duration,
        endpoint: Arc<str>,
    ) {
        let labels = labels.clone();
        self.observe(Observation::Decided {
            labels,
            outcome,
            code,
            waited,
            endpoint,
        });
    }

    /// Says that a request which was let go has ended, and not at a server.
    pub(crate) fn dropped(
        &mut self,
        labels: &Arc<Labels>,
        outcome: Outcome,
        code: &'static str,
        waited: Duration,
    ) {
        self.observe(Observation::Dropped {
            labels: labels.clone(),
            outcome,
            code,
            waited,
        });
    }
}

/// A rejection as the filter is told it; only those who may come again are told when.
pub(crate) fn reject(
    sequence: u64,
    answer: Answer,
    outcome: &str,
    waited: Duration,
    retry_after: Option<Duration>,
    saturation_milli: u32,
) -> wire::Reject {
    let again = matches!(answer.status, 429 | 503 | 504);
    wire::Reject {
        sequence,
        status: u32::from(answer.status),
        code: answer.code.to_owned(),
        outcome: outcome.to_owned(),
        message: answer.message,
        retry_after_ms: again.then(|| millis(retry_after.unwrap_or(RETRY_AFTER_DEFAULT))),
        r#final: answer.last_word,
        queue_us: micros(waited),
        saturation_milli,
    }
}

fn narrow(of: u64) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

fn micros(of: Duration) -> u64 {
    u64::try_from(of.as_micros()).unwrap_or(u64::MAX)
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}
