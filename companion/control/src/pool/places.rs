//! Gives filters places at endpoints, and takes them back. See [`super::credits`] for what both sides count.
//!
//! A filter gets places while every request would be granted at once anyway. The pool recalls them as soon as one request must wait, and
//! when something changes that could decide otherwise.

use penstock_engine::Instant;
use penstock_engine::input::{EndpointId, Input, Request, RequestId};
use penstock_engine::units::Tokens;

use super::credits::{Answer, Lendable, Offer, Renewal};
use super::effect::GivenCredit;
use super::input::Registering;
use super::{Pool, PoolEffect};
use crate::ids::{CreditId, Epoch, Peer};
use crate::registration::CreditPlace;
use crate::settings::CreditSettings;

/// Endpoints that may no longer take credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doubtful {
    None,
    One(EndpointId),
    All,
}

impl Pool {
    /// A request was granted without waiting, at this endpoint. If its filter could have admitted it by credit, it may get credit there.
    pub(super) fn consider_credit(&mut self, now: Instant, id: RequestId, endpoint: EndpointId) {
        let Some(CreditSettings { busy_min, .. }) = self.rules.credit else {
            return;
        };
        let Some(request) = self.requests.get(&id).filter(|request| request.could_use_credit) else {
            return;
        };
        let (epoch, peer) = (request.key.epoch, request.peer());
        self.credits.record_use(now, epoch);
        let is_usable = || {
            let listed = self.endpoints.get(endpoint);
            listed.is_some_and(|listed| listed.is_listed && listed.taints.is_empty())
                && !self.avoided.contains(now, peer.envoy, endpoint)
        };
        let here = || {
            let may_lend = is_usable() && self.engine.keeps_credit_at(endpoint);
            may_lend.then(|| self.engine.credit_room(endpoint))
        };
        let lendable = Lendable { in_all: self.engine.credit_limit(self.credits.given()), here };
        let may_requeue = self.may_requeue_by_credit(peer);
        let offer = match self.credits.answer(now, epoch, busy_min, may_requeue, lendable) {
            Answer::Offer(offer) => offer,
            Answer::Recall(credit) => return self.send_recalls(vec![credit]),
            Answer::Nothing => return,
        };
        self.credits.give(now, epoch, offer, endpoint);
        let Offer { number, places, .. } = offer;
        // Nothing waits, so the engine decides nothing by this input.
        self.engine.handle(now, Input::GiveCredit { endpoint, requests: places });
        self.credit_changed(now, endpoint);
        let given = GivenCredit {
            credit: CreditId { epoch, number },
            places: Some((self.endpoints.address(endpoint), places)),
            prompt_bytes_max: self.prompt_bytes_max(now),
            saturation_milli: self.saturation_milli(),
            may_requeue,
        };
        self.effects.push_back(PoolEffect::GiveCredit(given));
    }

    /// The filter of a newcomer could have admitted it by credit.
    pub(super) fn could_use_credit(&mut self, now: Instant, registering: &Registering<'_>) -> bool {
        let registration = registering.registration;
        let is_missing_model = self.missing_models.has_served_model(now);
        if self.rules.credit.is_none() || is_missing_model || !registration.may_use_credit() {
            return false;
        }
        let longest = self.prompt_bytes_max(now);
        longest == 0 || registration.prompt_bytes <= longest
    }

    /// A filter may requeue the requests that it admits by credit.
    pub(super) fn may_requeue_by_credit(&self, peer: Peer) -> bool {
        peer.can_requeue && self.rules.requeues_max != Some(0)
    }

    /// A request that its filter admitted by credit enters the stock: in the place that it takes along, or beside the credit.
    pub(super) fn admit_by_credit(
        &mut self,
        now: Instant,
        epoch: Epoch,
        request: Request,
        endpoint: EndpointId,
        place: Option<CreditPlace<'_>>,
    ) {
        let id = request.id;
        let place = place.and_then(|place| self.consume_place(place));
        self.add_by_credit(now, epoch, request, endpoint, place);
        if let Some(granted) = self.expected_usage(id, endpoint) {
            self.autopilot.admitted_by_credit(now, id, granted);
        }
        if let Some(place) = place {
            self.credit_changed(now, place);
        }
        self.apply_decisions(now, None);
    }

    /// Adds a request that a filter admitted by credit to the demand and the stock, in its place at `place`.
    pub(super) fn add_by_credit(
        &mut self,
        now: Instant,
        epoch: Epoch,
        request: Request,
        endpoint: EndpointId,
        place: Option<EndpointId>,
    ) {
        if self.rules.credit.is_some() {
            // The filter is busy, though it doesn't ask.
            self.credits.record_use(now, epoch);
        }
        self.autopilot.arrived(now);
        let id = request.id;
        let input = Input::AdmittedByCredit { request, place, endpoint };
        self.engine.handle(now, input);
        self.record_start(id, false);
    }

    /// The longest prompt that may go by credit, in bytes: where prompts choose their endpoint by their prefix, or long ones have an endpoint
    /// of their own, only short ones. 0 for any.
    fn prompt_bytes_max(&mut self, now: Instant) -> u64 {
        if let Some(longest) = self.credits.prompt_bytes_max(now) {
            return longest;
        }
        let has_choice = self.engine.ready_count() > 1 && self.rules.policy.scheduler.prefix > 0.0;
        // 0 would mean no limit. No prompt of a chat is that short.
        let bytes_below = |least| self.engine.bytes_below(Tokens(least)).max(1);
        let credit = self.rules.credit.filter(|_| has_choice);
        let by_prefix = credit.map(|credit| credit.prefix_min_tokens);
        let least = by_prefix.into_iter().chain(self.rules.policy.min_uncached_tokens).min();
        let longest = least.map_or(0, bytes_below);
        self.credits.set_prompt_bytes_max(now, longest);
        longest
    }

    /// Recalls all credit once a request waits or the pool has no room for credit any more. Takes constant time while nothing has
    /// changed.
    pub(super) fn check_credits(&mut self, now: Instant) {
        self.credits.note_wait(now, self.engine.waiting() > 0);
        if self.credits.is_any_active() && !self.engine.keeps_credit() {
            self.recall_credits(|_| true);
        }
    }

    /// A newcomer was rejected because it would have had to wait.
    pub(super) fn note_lack(&mut self, now: Instant) {
        self.credits.note_lack(now);
        self.recall_credits(|_| true);
    }

    /// Recalls the credit at those of the endpoints that take no credit any more.
    pub(super) fn recall_unfit_credits(&mut self, doubtful: Doubtful) {
        if !self.credits.is_any_active() {
            return;
        }
        let engine = &self.engine;
        match doubtful {
            Doubtful::None => {}
            Doubtful::One(endpoint) if engine.keeps_credit_at(endpoint) => {}
            Doubtful::One(endpoint) => self.recall_credits(|id| id == endpoint),
            Doubtful::All => {
                let recalled = self.credits.recall(|id| !engine.keeps_credit_at(id));
                self.send_recalls(recalled);
            }
        }
    }

    /// Recalls the credits with places at such endpoints.
    pub(super) fn recall_credits(&mut self, is_at: impl Fn(EndpointId) -> bool) {
        let recalled = self.credits.recall(is_at);
        self.send_recalls(recalled);
    }

    fn send_recalls(&mut self, recalled: Vec<CreditId>) {
        self.effects.extend(recalled.into_iter().map(PoolEffect::Recall));
    }

    /// Takes a place away that the filter holds, because a request runs on without it. `None`: the filter doesn't hold it.
    pub(super) fn consume_place(&mut self, place: CreditPlace<'_>) -> Option<EndpointId> {
        let endpoint = self.endpoints.id(place.endpoint)?;
        self.credits.consume(place.credit, endpoint).then_some(endpoint)
    }

    /// The filter was asked for this credit and hasn't returned it.
    pub(crate) fn is_recalled(&self, credit: CreditId) -> bool {
        self.credits.is_recalled(credit)
    }

    /// The filter has given up a credit.
    pub(super) fn credit_returned(&mut self, now: Instant, credit: CreditId) {
        let places = self.credits.returned(credit);
        self.take_back(now, places);
    }

    /// The stream of a root context has ended.
    pub(super) fn credit_suspended(&mut self, epoch: Epoch) {
        self.credits.suspend(epoch);
    }

    /// The filter of a root context has listed its requests, or is gone: it uses no credit that was given before.
    pub(super) fn credit_ended(&mut self, now: Instant, epoch: Epoch) {
        let places = self.credits.end(epoch);
        self.take_back(now, places);
    }

    /// A request that was admitted by credit, and is counted by itself, runs on without its place.
    pub(super) fn credit_consumed(&mut self, now: Instant, place: CreditPlace<'_>) {
        if let Some(endpoint) = self.consume_place(place) {
            self.take_back(now, vec![(endpoint, 1)]);
        }
    }

    fn take_back(&mut self, now: Instant, places: Vec<(EndpointId, u64)>) {
        for (endpoint, requests) in places {
            self.decide(now, Input::TakeBack { endpoint, requests });
            self.credit_changed(now, endpoint);
        }
    }

    /// The autopilot learns whether filters may run requests at an endpoint that aren't known.
    fn credit_changed(&mut self, now: Instant, endpoint: EndpointId) {
        let has_credit = self.engine.credit_at(endpoint) > 0;
        self.autopilot.set_credit(now, endpoint, has_credit);
    }

    /// Renews the credits of busy filters, if that is due.
    pub(super) fn renew_credits(&mut self, now: Instant) {
        // Under rules without credit all were recalled.
        let busy_min = self.rules.credit.map_or(u32::MAX, |credit| credit.busy_min);
        for Renewal { credit, may_requeue } in self.credits.take_renewals(now, busy_min) {
            let given = GivenCredit {
                credit,
                places: None,
                prompt_bytes_max: self.prompt_bytes_max(now),
                saturation_milli: self.saturation_milli(),
                may_requeue,
            };
            self.effects.push_back(PoolEffect::GiveCredit(given));
        }
    }
}
