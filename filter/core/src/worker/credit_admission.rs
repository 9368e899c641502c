//! Admits requests by credit, and reports them to the companion. The number of places changes as [`crate::credits`] describes.

use penstock_wire::filter_frame::Event;
use penstock_wire::names::outcome;
use penstock_wire::{Credit, CreditReturned, Grant, Recall, Register, Started};

use super::{Worker, set_saturation, watch_attempt};
use crate::credits::{Admission, Decision, Origin};
use crate::effect::SessionId;
use crate::exchange::{ByCredit, Exchange, Granted, Phase, Upstream, is_background};
use crate::header_sanitizer::HeaderEdit;
use crate::limits::LONG_ADMISSION;
use crate::properties::Properties;
use crate::session::Session;
use crate::time::Instant;

impl Worker {
    /// The companion gives a credit, adds to one, or renews it.
    pub(super) fn handle_credit(&mut self, now: Instant, id: SessionId, message: &Credit) {
        let Some(origin) = self.origin(id) else {
            return;
        };
        if self.sessions.id_of(Some(&message.pool)) != id {
            // Another session carries the pool's requests by now, so the credit is of no use.
            self.send_returned(now, origin, &message.pool, message.id);
            return;
        }
        set_saturation(&mut self.saturation_milli, &message.pool, message.saturation_milli);
        let present = self.credits.id(&message.pool, origin);
        if present.is_some_and(|present| present < message.id) {
            self.return_credit(now, &message.pool);
        }
        self.credits.add(now, origin, message);
    }

    /// The companion recalls a credit.
    pub(super) fn handle_recall(&mut self, now: Instant, id: SessionId, recall: &Recall) {
        let present = self.origin(id).and_then(|origin| self.credits.id(&recall.pool, origin));
        if present == Some(recall.credit) {
            self.return_credit(now, &recall.pool);
        }
    }

    /// The Hello that the companion of a session has acknowledged; `None`: the session has no stream.
    fn origin(&mut self, id: SessionId) -> Option<Origin> {
        let hello = self.sessions.get_mut(id)?.session.established_hello()?;
        Some(Origin { session: id, hello })
    }

    /// Admits a request by credit. Returns the edits of its headers; `None`: the request must be registered.
    pub(super) fn admit_by_credit(&mut self, now: Instant, sequence: u64) -> Option<Vec<HeaderEdit>> {
        let exchange = self.exchanges.get_mut(&sequence)?;
        let pool = exchange.pool.clone()?;
        let session = self.sessions.id_of(Some(&pool.name));
        let hello = self.sessions.get_mut(session)?.session.established_hello()?;
        let origin = Origin { session, hello };
        let admission = match self.credits.decide(now, &pool.name, origin, &exchange.register) {
            Decision::Admit(admission) => admission,
            Decision::Register => return None,
            Decision::Expired => {
                self.return_credit(now, &pool.name);
                return None;
            }
        };
        let Admission { place, endpoint, saturation_milli, requeue } = admission;
        let has_others = self.endpoints.get(&pool.name).is_some_and(|endpoints| endpoints.ready.len() > 1);
        let is_known = || self.served_models.contains(&endpoint, &exchange.register.model);
        let retry_not_found = has_others && !is_known();
        let grant = Grant {
            sequence,
            pool: pool.name.clone(),
            endpoints: vec![endpoint],
            outcome: outcome::LEASED.to_owned(),
            queue_us: 0,
            saturation_milli,
            requeue,
            retry_not_found,
            ..Grant::default()
        };
        let credit_endpoint = grant.endpoints.first().map(String::as_str);
        let edits = self.grant_headers.edits(exchange, &grant, None, credit_endpoint);
        let restart_on = self.grant_headers.restart_on(exchange, &grant);
        if !self.grant_headers.restarts {
            self.granted_ids.insert(exchange);
            watch_attempt(&self.failed_attempts, now, self.grant_headers.epoch, exchange, &grant);
        }
        let mut granted = Granted { restart_on, ..Granted::new(now, grant, exchange.load()) };
        granted.by_credit = Some(ByCredit { credit: place.credit, place: Some(place), known_since: None });
        self.in_flight.add(&granted);
        exchange.phase = Phase::Granted(Box::new(granted));
        Some(edits)
    }

    /// Reports that a response has begun. A request that holds a place is reported as admitted, and gives the place up.
    pub(super) fn report_start(&mut self, now: Instant, started: Started) {
        let sequence = started.sequence;
        let is_admitted = self.report_admission(now, sequence);
        let Some(exchange) = self.exchanges.get(&sequence) else {
            return;
        };
        // The report names the endpoint of the place, so another one that responds is reported as well.
        let is_expected = matches!(&exchange.phase, Phase::Granted(granted)
            if granted.endpoint.as_deref() == Some(started.endpoint.as_str()));
        if !(is_admitted && is_expected) {
            let session = self.sessions.of_mut(exchange.pool_name());
            session.send_once(now, Event::Started(started));
        }
    }

    /// Reports a request that holds a place as admitted, and removes the place. Returns whether the request held one.
    pub(super) fn report_admission(&mut self, now: Instant, sequence: u64) -> bool {
        let Some(exchange) = self.exchanges.get_mut(&sequence) else {
            return false;
        };
        let Phase::Granted(granted) = &exchange.phase else {
            return false;
        };
        let Some(place) = granted.place() else {
            return false;
        };
        // A place of an earlier Hello has ended with it: the present one lists the request.
        let is_in_force = self.credits.consume(&granted.pool, place);
        if is_in_force && let Some(member) = self.sessions.get_mut(place.origin.session) {
            report_running(now, &mut member.session, place.origin, exchange);
        }
        is_in_force
    }

    /// Reports the requests that were admitted by credit and have run for long without an answer: the companion shows them, and sees that
    /// their server is silent. Looks at each request once; one whose body arrives for so long is reported at its end.
    pub(super) fn report_long_admissions(&mut self, now: Instant) {
        let is_long = |exchange: &Exchange| now.since(exchange.arrived) >= LONG_ADMISSION;
        let later = self.exchanges.range(self.reported_to.saturating_add(1)..);
        let due: Vec<u64> =
            later.take_while(|(_, exchange)| is_long(exchange)).map(|(sequence, _)| *sequence).collect();
        for sequence in due {
            self.report_admission(now, sequence);
            self.reported_to = sequence;
        }
    }

    /// Reports the end of a granted request, and frees its place. `pool`: the pool whose session reports it.
    pub(super) fn report_end(
        &mut self,
        now: Instant,
        pool: Option<&str>,
        register: Register,
        mut granted: Granted,
        host: &impl Properties,
    ) {
        let id = self.sessions.id_of(pool);
        let session = self.sessions.of_mut(pool);
        let Some(by_credit) = granted.by_credit.take() else {
            let completed = granted.completed(now, (register.sequence, is_background(&register)), host);
            session.send_terminal(now, Event::Completed(completed));
            return;
        };
        if let Some(place) = by_credit.place {
            self.credits.free(&granted.pool, place);
        }
        let admitted = granted.ended(now, by_credit.credit, register, host);
        let known_since = by_credit.known_since.filter(|origin| origin.session == id);
        session.send_admitted_end(now, admitted, known_since.map(|origin| origin.hello));
    }

    /// Returns the credits that have expired, and those of pools that another session carries. Forgets those whose stream has
    /// ended.
    pub(super) fn return_ended_credits(&mut self, now: Instant) {
        let is_moved = |pool: &str, origin: Origin| {
            let session = self.sessions.of(Some(pool));
            self.sessions.id_of(Some(pool)) != origin.session
                || session.established_hello() != Some(origin.hello)
        };
        for pool in self.credits.ended(now, is_moved) {
            self.return_credit(now, &pool);
        }
    }

    /// Gives up the credit of a pool. While its stream lasts, reports the requests that hold a place, then returns the credit.
    pub(super) fn return_credit(&mut self, now: Instant, pool: &str) {
        let Some((origin, credit)) = self.credits.give_up(pool) else {
            return;
        };
        if self.origin(origin.session) != Some(origin) {
            return;
        }
        let Some(member) = self.sessions.get_mut(origin.session) else {
            return;
        };
        for exchange in self.exchanges.values_mut() {
            let Phase::Granted(granted) = &exchange.phase else {
                continue;
            };
            let place = granted.place().filter(|_| granted.pool == pool);
            // The requeue listener's filter has registered a requeued request, and reports it.
            let is_requeued = matches!(granted.upstream, Upstream::Requeued { .. });
            if place.is_some_and(|place| place.origin == origin && place.credit == credit) && !is_requeued {
                report_running(now, &mut member.session, origin, exchange);
            }
        }
        self.send_returned(now, origin, pool, credit);
    }

    fn send_returned(&mut self, now: Instant, origin: Origin, pool: &str, credit: u64) {
        if let Some(member) = self.sessions.get_mut(origin.session) {
            let pool = pool.to_owned();
            let returned = CreditReturned { pool, credit };
            member.session.send_once(now, Event::CreditReturned(returned));
        }
    }
}

/// Reports that a request runs on without its place.
fn report_running(now: Instant, session: &mut Session, origin: Origin, exchange: &mut Exchange) {
    let Phase::Granted(granted) = &mut exchange.phase else {
        return;
    };
    let Some(by_credit) = &mut granted.by_credit else {
        return;
    };
    by_credit.place = None;
    by_credit.known_since = Some(origin);
    let credit = by_credit.credit;
    exchange.register.age_us = now.micros_since(exchange.arrived);
    let register = exchange.register.clone();
    session.report(now, granted.admitted(now, credit, register));
}
