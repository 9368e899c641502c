//! While no companion answers: who has waited too long is answered, or goes without it where the policy says so.
//!
//! Who goes is one of as many as this Envoy may have in flight without a companion, over all its workers, so each worker
//! keeps its word on what it has in flight: renewed with each beat, and from the companion's loss on with each change.

use std::collections::{BTreeMap, BTreeSet};

use penstock_wire::{
    Grant, Register,
    limits::HEARTBEAT_INTERVAL,
    names::{self, code, outcome},
};

use super::{PoolEndpoints, Worker};
use crate::{
    effect::Effect,
    exchange::{Granted, Phase},
    fallback_deadlines::{WaitDecision, decide},
    header_sanitizer::HeaderEdit,
    in_flight::{Bound, InFlightStore, Load},
    limits::{FALLBACK_ENDPOINTS_MAX, RETRY_AFTER_MS, TICK_MIN},
    local_reply::Failure,
    time::Instant,
};

/// What this worker has in flight, and what it has said of it.
#[derive(Debug)]
pub(super) struct WorkerInFlight {
    pools: BTreeMap<String, Load>,
    /// The pools where the shared_data have a word of ours.
    said: BTreeSet<String>,
    /// When the words are renewed.
    say_at: Instant,
    /// The companion was away when it was last looked at.
    away: bool,
}

impl WorkerInFlight {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            pools: BTreeMap::new(),
            said: BTreeSet::new(),
            say_at: now,
            away: false,
        }
    }

    pub(super) fn begin(&mut self, going: &Granted) {
        match self.pools.get_mut(&going.pool) {
            Some(load) => *load = load.plus(going.load),
            None => drop(self.pools.insert(going.pool.clone(), going.load)),
        }
    }

    pub(super) fn end(&mut self, going: &Granted) {
        if let Some(load) = self.pools.get_mut(&going.pool) {
            *load = load.minus(going.load);
        }
    }

    /// Forgets the pools where nothing is.
    pub(super) fn tidy(&mut self) {
        self.pools.retain(|_, load| *load != Load::default());
    }

    fn of(&self, pool: &str) -> Load {
        self.pools.get(pool).copied().unwrap_or_default()
    }

    /// Says what is in flight in a pool; nothing, if nothing is and nothing else was said.
    fn say(&mut self, pool: &str, words: InFlightStore<'_>) {
        let own = self.of(pool);
        if own != Load::default() {
            self.said.insert(pool.to_owned());
        } else if !self.said.remove(pool) {
            return;
        }
        words.say(pool, own);
    }
}

impl Worker {
    /// While no companion answers, its deadlines are ours.
    pub(super) fn enforce(&mut self, now: Instant) {
        let Some(away_since) = self.session.away_since() else {
            return;
        };
        let mut due: Vec<_> = self
            .exchanges
            .iter()
            .filter(|(_, exchange)| matches!(exchange.phase, Phase::Waiting { .. }))
            .filter_map(
                |(sequence, exchange)| match decide(now, exchange, Some(away_since), &self.ready) {
                    WaitDecision::Wait => None,
                    verdict => Some((exchange.arrived, *sequence, exchange.context, verdict)),
                },
            )
            .collect();
        due.sort_unstable_by_key(|(arrived, sequence, ..)| (*arrived, *sequence));
        for (arrived, sequence, context, verdict) in due {
            let effect = match self.settle(now, sequence, now.micros_since(arrived), verdict) {
                Ok(edits) => Effect::Resume {
                    context,
                    edits,
                    rewrite: None,
                },
                Err((failure, outcome)) => {
                    let answer = self.refuse(now, sequence, &failure, outcome);
                    Effect::Reply { context, answer }
                }
            };
            self.effects.push_back(effect);
        }
    }

    /// Lets a request go that may, after `queue_us`: the changes to its headers, or why it is refused instead.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        sequence: u64,
        queue_us: u64,
        verdict: WaitDecision,
    ) -> Result<Vec<HeaderEdit>, (Failure, &'static str)> {
        if let WaitDecision::Reject(failure, outcome) = verdict {
            return Err((failure, outcome));
        }
        let internal = || {
            let failure = Failure::new(500, code::INTERNAL, "The filter lost track of the request.");
            (failure, outcome::INTERNAL)
        };
        let exchange = self.exchanges.get_mut(&sequence).ok_or_else(internal)?;
        let Phase::Waiting { registered } = exchange.phase else {
            return Err(internal());
        };
        let pool = exchange.pool.clone().ok_or_else(internal)?;
        let ready = self.ready.get(&pool.name);
        let known = ready
            .map(|ready| &ready.endpoints)
            .filter(|ready| !ready.is_empty())
            .unwrap_or(&pool.endpoints);
        self.turn = self.turn.wrapping_add(1);
        let endpoints = choose(known, &exchange.register, self.turn).ok_or_else(|| {
            let message = "None of the endpoints that the request allows is ready: widen them, or try later.";
            let failure = Failure::new(503, code::NO_ENDPOINTS, message).retry_after_ms(RETRY_AFTER_MS);
            (failure, outcome::NO_ENDPOINTS)
        })?;
        let load = exchange.load();
        let most = ready
            .and_then(|ready| ready.fallback_bound)
            .or(pool.fallback_bound);
        // Who entered again has its place already.
        if let Some(most) = most.filter(|_| load != Load::default()) {
            let words = InFlightStore {
                shared_data: &*self.shared_data,
                worker: self.session.epoch(),
                now,
            };
            let bound = Bound {
                most,
                in_tokens: pool.fallback_bound_in_tokens,
            };
            if !words.take(&pool.name, self.in_flight.of(&pool.name), load, bound) {
                let message = "The gateway's queue is unreachable, and as much is in flight as may be without it: \
                               check that Penstock's companion runs, then try again.";
                let failure =
                    Failure::new(503, code::GATEWAY_UNAVAILABLE, message).retry_after_ms(RETRY_AFTER_MS);
                return Err((failure, outcome::GATEWAY_UNAVAILABLE));
            }
            self.in_flight.said.insert(pool.name.clone());
        }
        let mut edits = vec![HeaderEdit::Set(names::POOL_HEADER, pool.name.clone())];
        if !endpoints.is_empty() {
            edits.push(HeaderEdit::Set(names::ENDPOINT_HEADER, endpoints.join(",")));
        }
        let saturation = self.saturation_milli.get(&pool.name);
        let grant = Grant {
            sequence,
            pool: pool.name.clone(),
            endpoints,
            outcome: outcome::DISPATCHED.to_owned(),
            queue_us,
            saturation_milli: saturation.copied().unwrap_or(0),
            ..Grant::default()
        };
        let going = Granted::new(now, grant, load);
        self.in_flight.begin(&going);
        exchange.phase = Phase::Granted(Box::new(going));
        self.session.goes_without(now, registered);
        Ok(edits)
    }

    /// A granted request is over: its place is free.
    pub(super) fn land(&mut self, now: Instant, going: &Granted) {
        self.in_flight.end(going);
        let opens = || self.policy.fail_open_pools().any(|pool| pool.name == going.pool);
        if self.session.away_since().is_some() && opens() {
            let words = InFlightStore {
                shared_data: &*self.shared_data,
                worker: self.session.epoch(),
                now,
            };
            self.in_flight.say(&going.pool, words);
        }
    }

    /// Renews the words with each beat, and as soon as the companion is lost.
    pub(super) fn publish_in_flight(&mut self, now: Instant) {
        let away = self.session.away_since().is_some();
        let lost = away && !self.in_flight.away;
        self.in_flight.away = away;
        if !lost && self.in_flight.say_at > now.after(TICK_MIN) {
            return;
        }
        self.in_flight.say_at = now.after(HEARTBEAT_INTERVAL);
        let words = InFlightStore {
            shared_data: &*self.shared_data,
            worker: self.session.epoch(),
            now,
        };
        for pool in self.policy.fail_open_pools() {
            self.in_flight.say(&pool.name, words);
        }
    }
}

impl PoolEndpoints {
    pub(super) fn new(said: penstock_wire::Endpoints) -> (String, Self) {
        let ready = Self {
            endpoints: said.ready,
            fallback_bound: said.fallback_bound,
        };
        (said.pool, ready)
    }
}

/// The endpoints to try: of those known, in turn, that the request allows. Of a pool of which none is known, what the
/// request itself names, or none: then Envoy chooses. `None`: it allows none of them.
fn choose(known: &[String], register: &Register, turn: usize) -> Option<Vec<String>> {
    let Register { subset, pin, .. } = register;
    let allows = |endpoint: &&String| {
        (pin.is_empty() || **endpoint == *pin) && (subset.is_empty() || subset.contains(endpoint))
    };
    let free = pin.is_empty() && subset.is_empty();
    let named: Vec<String>;
    let from = if known.is_empty() {
        named = subset
            .iter()
            .chain((!pin.is_empty()).then_some(pin))
            .cloned()
            .collect();
        &named
    } else {
        known
    };
    let start = turn.checked_rem(from.len()).unwrap_or(0);
    let (before, after) = from.split_at_checked(start)?;
    let mut chosen: Vec<String> = Vec::new();
    for endpoint in after.iter().chain(before).filter(allows) {
        if chosen.len() < FALLBACK_ENDPOINTS_MAX && !chosen.contains(endpoint) {
            chosen.push(endpoint.clone());
        }
    }
    (free || !chosen.is_empty()).then_some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn strings(of: &[&str]) -> Vec<String> {
        of.iter().map(ToString::to_string).collect()
    }

    fn chosen(known: &[&str], subset: &[&str], pin: &str, turn: usize) -> Option<Vec<String>> {
        let register = Register {
            subset: strings(subset),
            pin: pin.to_owned(),
            ..Register::default()
        };
        choose(&strings(known), &register, turn)
    }

    #[test]
    fn endpoints_are_tried_in_turn() {
        let known = ["a", "b", "c", "d"];
        assert_eq!(chosen(&known, &[], "", 0), Some(strings(&["a", "b", "c"])));
        assert_eq!(chosen(&known, &[], "", 3), Some(strings(&["d", "a", "b"])));
        assert_eq!(chosen(&known, &[], "", 4), Some(strings(&["a", "b", "c"])));
        assert_eq!(chosen(&["a"], &[], "", 9), Some(strings(&["a"])));
    }

    #[test]
    fn what_a_request_allows_is_kept_to() {
        let known = ["a", "b", "c"];
        assert_eq!(
            chosen(&known, &["c", "x", "a"], "", 1),
            Some(strings(&["c", "a"]))
        );
        assert_eq!(chosen(&known, &[], "b", 0), Some(strings(&["b"])));
        assert_eq!(chosen(&known, &["a"], "b", 0), None);
        assert_eq!(chosen(&known, &[], "x", 0), None);
    }

    #[test]
    fn where_none_is_known_envoy_chooses_but_not_against_the_request() {
        assert_eq!(chosen(&[], &[], "", 0), Some(Vec::new()));
        assert_eq!(chosen(&[], &["x", "y", "x"], "", 0), Some(strings(&["x", "y"])));
        assert_eq!(chosen(&[], &["x", "y"], "y", 0), Some(strings(&["y"])));
        assert_eq!(chosen(&[], &["x"], "y", 0), None);
    }
}
