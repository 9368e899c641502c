//! The admission credits of a worker: requests that the companion lets the worker admit by itself.
//!
//! A credit has places at endpoints. A place admits one request at a time, and the next one once that request has ended. The
//! companion counts every place as a running request, so both sides must agree on the number of places. It changes only by
//! these messages, whatever their order:
//!
//! - `Credit` adds the places that it lists.
//! - `Admitted` without `completed` removes one place at `running.endpoint`, whether or not the companion knows the request
//!   by then. Then the companion counts the request instead of the place.
//! - `Admitted` with `completed` changes no number. Either the place is free again, or the request had none any more.
//! - `CreditReturned` removes all places of the credit. So does a `Hello`, which lists the running requests.
//! - `Completed`, and a `Register` with a `credit_endpoint`, change no number.
//!
//! An `Admitted` that the filter sends again after a `Hello` has `completed`, so a lost message never counts twice. The field
//! `running.endpoint` always names the endpoint of the place, even if another server responds.

mod credit;
mod waiting;

use std::collections::BTreeMap;

use penstock_wire::{self as wire, Register};

use self::credit::Credit;
use self::waiting::WaitingCount;
pub(crate) use self::waiting::WaitingPlace;
use crate::effect::SessionId;
use crate::time::Instant;

/// A Hello of a session. What a companion gives after it ends with the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) session: SessionId,
    /// Number of the Hello in its session.
    pub(crate) hello: u32,
}

/// A place that a running request holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) origin: Origin,
    /// The id of the credit.
    pub(crate) credit: u64,
    /// The position of the endpoint in the credit's list.
    endpoint: usize,
}

/// The admission of a request by credit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) place: Place,
    /// `ip:port`.
    pub(crate) endpoint: String,
    pub(crate) saturation_milli: u32,
    pub(crate) requeue: bool,
}

/// Whether a request is admitted by credit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Admit(Admission),
    /// The credit, if there is one, isn't for this request, or has no place left.
    Register,
    /// The credit has expired.
    Expired,
}

/// The credits of a worker.
#[derive(Debug, Default)]
pub(crate) struct Credits {
    pools: BTreeMap<String, PoolCredit>,
}

/// The credit of a pool.
#[derive(Debug, Default)]
struct PoolCredit {
    waiting: WaitingCount,
    /// The Hello after which the credit was given, and those before it.
    origin: Option<Origin>,
    /// The highest id of a credit of this origin that was given up.
    given_up: u64,
    credit: Option<Credit>,
}

impl PoolCredit {
    /// The credit of this origin.
    fn credit_of(&mut self, origin: Origin) -> Option<&mut Credit> {
        self.credit.as_mut().filter(|_| self.origin == Some(origin))
    }

    /// The credit of a place.
    fn credit_with(&mut self, place: Place) -> Option<&mut Credit> {
        self.credit_of(place.origin).filter(|credit| credit.id == place.credit)
    }
}

impl Credits {
    /// A request of this pool begins to wait, until the place is dropped.
    pub(crate) fn wait(&mut self, pool: &str) -> WaitingPlace {
        if let Some(known) = self.pools.get(pool) {
            return known.waiting.enter();
        }
        let new = self.pools.entry(pool.to_owned()).or_default();
        new.waiting.enter()
    }

    /// Adds a credit, or adds to the credit with the same id and renews it. Ignores a credit that was given up. The caller gives
    /// up a credit of the same origin with a lower id first.
    pub(crate) fn add(&mut self, now: Instant, origin: Origin, message: &wire::Credit) {
        let pool = self.pools.entry(message.pool.clone()).or_default();
        if pool.origin != Some(origin) {
            pool.origin = Some(origin);
            pool.given_up = 0;
            pool.credit = None;
        }
        if message.id <= pool.given_up {
            return;
        }
        match &mut pool.credit {
            Some(credit) if credit.id == message.id => credit.add(now, message),
            // An older one was replaced.
            Some(credit) if credit.id > message.id => {}
            Some(_) | None => {
                let mut credit = Credit::new(message.id);
                credit.add(now, message);
                pool.credit = Some(credit);
            }
        }
    }

    /// The id of the credit of a pool, if it is of this origin.
    pub(crate) fn id(&mut self, pool: &str, origin: Origin) -> Option<u64> {
        let credit = self.pools.get_mut(pool)?.credit_of(origin)?;
        Some(credit.id)
    }

    /// Takes a place for a request, if the pool has a credit of this origin, the credit is for such requests, and no request of
    /// the pool waits. Of the endpoints with a free place, it takes the one with the smallest part of its places taken; of
    /// equals, the next in turn.
    pub(crate) fn decide(
        &mut self,
        now: Instant,
        pool: &str,
        origin: Origin,
        register: &Register,
    ) -> Decision {
        let Some(pool) = self.pools.get_mut(pool) else {
            return Decision::Register;
        };
        let is_overtaking = pool.waiting.is_any();
        let Some(credit) = pool.credit_of(origin) else {
            return Decision::Register;
        };
        if credit.has_expired(now) {
            return Decision::Expired;
        }
        if is_overtaking || !credit.is_for(register) {
            return Decision::Register;
        }
        let Some((endpoint, address)) = credit.take_place() else {
            return Decision::Register;
        };
        let address = address.to_owned();
        Decision::Admit(Admission {
            place: Place { origin, credit: credit.id, endpoint },
            endpoint: address,
            saturation_milli: credit.saturation_milli,
            requeue: credit.requeue,
        })
    }

    /// Frees the place of a request that has ended. Does nothing if its credit was given up.
    pub(crate) fn free(&mut self, pool: &str, place: Place) {
        let pool = self.pools.get_mut(pool);
        if let Some(credit) = pool.and_then(|pool| pool.credit_with(place)) {
            credit.free(place.endpoint);
        }
    }

    /// Removes the place of a request that runs on without it. Returns `false` if its credit was given up.
    pub(crate) fn consume(&mut self, pool: &str, place: Place) -> bool {
        let pool = self.pools.get_mut(pool);
        let credit = pool.and_then(|pool| pool.credit_with(place));
        credit.is_some_and(|credit| {
            credit.consume(place.endpoint);
            true
        })
    }

    /// Gives up the credit of a pool. Returns its origin and its id.
    pub(crate) fn give_up(&mut self, pool: &str) -> Option<(Origin, u64)> {
        let pool = self.pools.get_mut(pool)?;
        let credit = pool.credit.take()?;
        pool.given_up = pool.given_up.max(credit.id);
        Some((pool.origin?, credit.id))
    }

    /// The pools with a credit that has expired, or for whose name and origin `is_ended` returns true.
    pub(crate) fn ended(&self, now: Instant, is_ended: impl Fn(&str, Origin) -> bool) -> Vec<String> {
        let has_ended = |(name, pool): &(&String, &PoolCredit)| {
            let credit = pool.credit.as_ref().zip(pool.origin);
            credit.is_some_and(|(credit, origin)| credit.has_expired(now) || is_ended(name, origin))
        };
        let ended = self.pools.iter().filter(has_ended);
        ended.map(|(name, _)| name.clone()).collect()
    }

    /// Removes the pools that don't exist any more. Those with a credit or with waiting requests stay.
    pub(crate) fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        let is_used = |pool: &PoolCredit| pool.credit.is_some() || pool.waiting.is_any();
        self.pools.retain(|name, pool| exists(name) || is_used(pool));
    }
}
