//! The engine of one pool: events in, decisions out.
//!
//! Every call does the same: it advances time, expires what is due by then, applies the input, and dispatches what may
//! be dispatched now. Nothing else causes a decision.

mod above_bounds;
mod admission;
mod audit;
mod budget;
mod credit;
mod dispatch;
mod endpoint_events;
mod eviction;
mod lifecycle;
mod prefill;
mod prepare;
mod queue_position;
mod reconfigure;
mod retry;
mod snapshot;

use alloc::collections::{BTreeSet, VecDeque};
use core::time::Duration;

pub use self::prepare::Prepared;
use crate::budget::Budgets;
use crate::counters::Counters;
use crate::drain_rate::DrainRate;
use crate::effect::{Effect, Reject};
use crate::endpoints::Endpoints;
use crate::eviction::Evictions;
use crate::expiry::{Expiry, Ttls};
use crate::hashed_name::NameHasher;
use crate::ids::JobId;
use crate::input::{EndpointId, Input, RequestId};
use crate::job::Job;
use crate::jobs::Jobs;
use crate::outcome::Outcome;
use crate::policy::{Gate, Policy};
use crate::rate_limiter::RateLimiter;
use crate::rng::Rng;
use crate::time::Instant;
use crate::token_history::TokenHistory;
use crate::tree::Tree;

/// The decisions of one pool.
///
/// An engine does nothing by itself. Its owner brings every event, with the time, and carries out every decision:
///
/// 1. [`Self::handle`] applies an [`Input`], and [`Self::handle_timeout`] lets time pass.
/// 2. [`Self::poll_effect`] then returns what was decided, until it returns `None`. The engine has already accounted for an effect, so the
///    owner carries out each one, in this order, and reports a failure to do so as a further input.
/// 3. [`Self::poll_timeout`] returns the time for the next `handle_timeout`. Any input may change it, so the owner asks again after each.
///
/// The methods by purpose:
///
/// - Setup, before the first input: [`Self::new`], [`Self::trace`], [`Self::report_usage`], [`Self::report_running_usage`] and
///   [`Self::report_budgets`]. What happened while a report was off is not reported later.
/// - Before [`Input::Register`] and its like: [`Self::prepare`] writes estimates into the request. They hold for the next input only,
///   because every answer and every prompt that is sent changes what the engine expects of the next one.
/// - Questions about a request: [`Self::position`], [`Self::block_reason`], [`Self::class`], [`Self::charged_flow`],
///   [`Self::endpoint_of`] and [`Self::expected`]. An id that isn't open has no answer, which is no error.
/// - Questions about the pool: [`Self::snapshot`] for everything, in time proportional to the flows, for people and metrics; the other
///   queries for one value, which decisions may ask. [`Self::waiting_for_room`] alone visits all identities where these have limits.
/// - Budgets: [`Self::budgets`], [`Self::budget_at`], [`Self::tightest_window`] and their like. Those that take `now` look ahead without
///   advancing the engine.
/// - Credit: [`Self::credit_room`], [`Self::keeps_credit`] and [`Self::keeps_credit_at`] advise; only [`Input::GiveCredit`] and
///   [`Input::TakeBack`] change stock.
/// - [`Self::audit`] recomputes every sum, for tests.
///
/// What the owner must keep to:
///
/// - A [`RequestId`] is used for one request only, and an [`EndpointId`] for one address. A late event about an ended request is ignored by
///   its id; a reused id would give that event to an innocent request.
/// - Every [`Effect::Grant`] is followed by [`Input::Completed`], [`Input::Requeue`], [`Input::Retry`] or [`Input::Refused`], whatever
///   happens to the request. Otherwise its stock is never released. The engine has no timeout for running requests, because a long answer
///   and a lost one look alike from here.
/// - [`Input::Ready`] comes after every [`Input::Adopt`] of a takeover: what runs must be stock before the gate is asked.
#[derive(Debug)]
pub struct Engine {
    policy: Policy,
    now: Instant,
    /// [`Input::Ready`] was received, and no [`Input::Hold`] since.
    ready: bool,
    draining: bool,
    jobs: Jobs,
    arrivals: u64,
    tree: Tree,
    endpoints: Endpoints,
    rate_limiter: RateLimiter,
    expiry: Expiry,
    evictions: Evictions,
    /// The waiting requests that avoid endpoints, by the end of their pauses.
    pauses: BTreeSet<(Instant, JobId)>,
    /// The waiting requests that avoid an endpoint because it refused them, by that endpoint.
    refused: BTreeSet<(EndpointId, JobId)>,
    token_history: TokenHistory,
    drain_rate: DrainRate,
    counters: Counters,
    rng: Rng,
    traced: bool,
    reports_usage: bool,
    reports_running_usage: bool,
    reports_budgets: bool,
    /// Other engines hear of resets of budgets here.
    shares_budgets: bool,
    budgets: Budgets,
    /// Under [`Gate::Auto`]: the sequence of the arrival that was next and fitted no endpoint, at the last
    /// [`Endpoints::clear_dirty`].
    blocked_head: Option<u64>,
    effects: VecDeque<Effect>,
}

impl Engine {
    /// An engine without endpoints, which dispatches nothing until [`Input::Ready`]. The same policy, seed, times and
    /// inputs give the same effects.
    #[must_use]
    pub fn new(policy: Policy, seed: u64, now: Instant) -> Self {
        let names = NameHasher::default();
        let mut endpoints = Endpoints::new(policy.gate, policy.scheduler, policy.counts_cached_tokens());
        endpoints.set_release_after(policy.release_after);
        endpoints.set_extra_places(policy.extra_for_idle_flows);
        Self {
            endpoints,
            rate_limiter: RateLimiter::new(policy.queue.max_rate, now),
            tree: Tree::new(&policy, names.clone(), seed, now),
            budgets: Budgets::new(&policy.flows, now),
            evictions: Evictions::new(policy.eviction.is_some()),
            policy,
            now,
            ready: false,
            draining: false,
            jobs: Jobs::default(),
            arrivals: 0,
            expiry: Expiry::new(),
            pauses: BTreeSet::new(),
            refused: BTreeSet::new(),
            token_history: TokenHistory::new(names),
            drain_rate: DrainRate::new(now),
            counters: Counters::default(),
            rng: Rng::new(seed),
            traced: false,
            reports_usage: false,
            reports_running_usage: false,
            reports_budgets: false,
            shares_budgets: false,
            blocked_head: None,
            effects: VecDeque::new(),
        }
    }

    /// Applies an event that happens at `now`. A time before that of an earlier call counts as the latter.
    pub fn handle(&mut self, now: Instant, input: Input) {
        // What is due has expired before the input: a cancellation or a longer ttl that comes late must not save a request, whose outcome would
        // then depend on when the owner called last. After the input, a shorter ttl may have made more due.
        self.advance(now);
        if !self.is_manual() {
            self.expire();
        }
        self.apply(input);
        if !self.is_manual() {
            self.expire();
            self.dispatch();
            self.evict();
        }
        self.drain_rate.advance(self.now, self.is_saturated());
    }

    /// Advances time to `now` without an event. Due when [`Self::poll_timeout`] is reached. Early and late calls are
    /// harmless.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance(now);
        self.expire();
        if !self.is_manual() {
            self.dispatch();
            self.evict();
        }
        self.drain_rate.advance(self.now, self.is_saturated());
    }

    /// Whether every grant is followed by [`Effect::Traced`].
    pub const fn trace(&mut self, traced: bool) {
        self.traced = traced;
    }

    /// Whether settled costs give [`Effect::UsageSettled`].
    pub const fn report_usage(&mut self, reported: bool) {
        self.reports_usage = reported;
    }

    /// Whether charges and settlements give [`Effect::UsageRunning`].
    pub const fn report_running_usage(&mut self, reported: bool) {
        self.reports_running_usage = reported;
    }

    /// The next decision to carry out, oldest first.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Self::handle_timeout`] is due; `None`: not before another event. May be earlier than the owner's present
    /// time.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let expires = self.expiry.next(self.ttls()).map(|(end, _, _)| end);
        let token = self
            .rate_limiter
            .next_token(self.now)
            .filter(|_| self.is_open() && self.tree.has_runnable() || self.waits_for_rate_above());
        let probe = self.endpoints.next_probe();
        let release = self.endpoints.next_release();
        let pause = self.pauses.first().map(|&(until, _)| until);
        let wake = self.budgets.next_wake();
        let timers = expires.into_iter().chain(token).chain(probe);
        timers.chain(release).chain(pause).chain(wake).chain(self.next_eviction()).min()
    }

    fn advance(&mut self, now: Instant) {
        if now < self.now {
            self.counters.clock_backwards += 1;
        } else {
            self.now = now;
        }
        self.tree.advance(self.now);
        self.drain_rate.advance(self.now, self.is_saturated());
        let now = self.now;
        while self.change_endpoints(|endpoints, rng| endpoints.probe_due(now, rng)) {}
        self.release_abandoned();
        self.end_pauses();
        self.budgets.advance(self.now);
        self.wake_held();
    }

    fn apply(&mut self, input: Input) {
        match input {
            Input::Register(request) => self.register(request),
            Input::Adopt { request, endpoint } => self.adopt(request, endpoint, Outcome::Dispatched),
            Input::Prefills { id, endpoint } => self.prefills(id, endpoint),
            Input::GiveCredit { endpoint, requests } => self.give_credit(endpoint, requests),
            Input::TakeBack { endpoint, requests } => self.take_back(endpoint, requests),
            Input::AdmittedByCredit { request, place, endpoint } => {
                self.admitted_by_credit(request, place, endpoint)
            }
            Input::Resume(request) => self.resume(request),
            Input::Cancel(id) => self.cancel(id),
            Input::Sent { id, endpoint } => self.sent(id, endpoint),
            Input::FirstToken(id) => self.answer_begun(id),
            Input::Begun(id) => self.begun(id),
            Input::Completed { id, service } => self.completed(id, service),
            Input::Left { id, service } => self.left(id, service),
            Input::Settle { id, service } => self.settle(id, service),
            Input::ModelRemoved(id) => {
                if let Some(job) = self.waiting_job(id) {
                    self.reject_waiting(job, Outcome::RejectedInvalid);
                }
            }
            Input::Amend(amended) => self.amend(amended),
            Input::Dispatch { blocked } => self.dispatch_one(&blocked),
            Input::Requeue(id) => self.requeue(id),
            Input::Retry(id) => self.retry(id),
            Input::PushedBack { id, endpoint } => self.pushed_back(id, endpoint),
            Input::Refused { id, retry_after } => self.refused(id, retry_after),
            Input::Suspend(id) => self.set_suspended(id, true),
            Input::Continue(id) => self.set_suspended(id, false),
            Input::PastUsage(past) => self.tree.add_past_usage(past, &self.policy.flows),
            Input::SharedUsage { settled, running } => {
                self.tree.add_past_usage(settled, &self.policy.flows);
                self.tree.set_running_elsewhere(running, &self.policy.flows);
            }
            Input::Utc(utc) => self.set_utc(utc),
            Input::BudgetUsage { settled, running } => self.add_budget_usage(settled, running),
            Input::BudgetHistory(past) => self.replay_budgets(past),
            Input::BudgetResets(resets) => self.apply_budget_resets(resets),
            Input::TopUp { flow, tokens } => self.top_up(&flow, tokens),
            Input::ResetBudget(flow) => self.reset_budget(&flow),
            Input::Policy(policy) => self.set_policy(policy),
            Input::Drain(draining) => self.drain(draining),
            Input::Ready => {
                self.ready = true;
                self.endpoints.begin(self.now);
            }
            Input::Hold => self.ready = false,
            Input::Endpoint { id, state } => self.list_endpoint(id, state),
            Input::EndpointRemoved(id) => self.unlist_endpoint(id),
            Input::Relist(relisted) => self.relist(*relisted),
            Input::Failed { id, endpoint } => self.request_failed(id, endpoint),
            Input::Restarted(id) => self.endpoints.forget_cache(id),
            Input::Answered(answer) => self.answered(&answer),
            Input::Load { id, running } => self.observe_load(id, running),
            Input::ServerStats { id, stats } => self.endpoints.set_stats(id, stats),
            Input::Allowance { id, allowance } => self.set_allowance(id, allowance),
        }
    }

    /// Requests are dispatched only by [`Input::Dispatch`].
    fn is_manual(&self) -> bool {
        self.policy.gate == Gate::Manual
    }

    /// The gate is an allowance of each endpoint.
    const fn is_auto(&self) -> bool {
        matches!(self.policy.gate, Gate::Auto { .. })
    }

    /// A request may be too large for the room that an endpoint has left.
    const fn fits_each(&self) -> bool {
        self.policy.gate.fits_each()
    }

    /// The gate lets waiting requests pass.
    fn is_open(&self) -> bool {
        self.ready
            && !self.is_manual()
            && self.is_below(self.endpoints.bounds().lower)
            && self.endpoints.any_room()
    }

    /// Stock is below `bound`, if the gate has a bound for the pool.
    fn is_below(&self, bound: u64) -> bool {
        let stock = self.endpoints.filled();
        stock < bound || stock == 0 || self.is_auto()
    }

    /// Rejects what is due. Mostly nothing is, and the comparison is all that every event pays for it.
    #[inline]
    fn expire(&mut self) {
        if self.expiry.may_be_due(self.now) {
            self.expire_due();
        }
    }

    #[inline(never)]
    fn expire_due(&mut self) {
        while let Some((timer, job)) = self.expiry.due(self.now, self.ttls()) {
            self.reject_waiting(job, timer.outcome());
        }
    }

    fn ttls(&self) -> Ttls {
        Ttls { ttl: self.policy.queue.ttl, without_endpoint: self.policy.queue.longest_wait() }
    }

    fn waiting_job(&self, id: RequestId) -> Option<JobId> {
        self.jobs.find(id).filter(|&job| self.jobs[job].is_waiting())
    }

    /// Puts `id` into the queue.
    fn enqueue(&mut self, id: JobId) {
        let job = &self.jobs[id];
        self.tree.enqueue(id, &job.queued, &self.endpoints);
        self.expiry.insert(id, job.queued.arrival, job.deadline());
        self.list_waiting(id);
    }

    /// `id` waits no longer.
    fn stop_timers(&mut self, id: JobId) {
        let job = &self.jobs[id];
        let (arrival, deadline) = (job.queued.arrival, job.deadline());
        self.expiry.remove(id, arrival, deadline);
        self.evictions.remove_waiting(id, arrival);
    }

    /// Takes `id` out of the queue. The caller then calls [`Self::release`].
    fn take_waiting(&mut self, id: JobId) -> Job {
        self.forget_pause(id);
        self.stop_timers(id);
        let job = self.jobs.remove(id);
        self.tree.remove(id, &job.queued, &self.endpoints);
        job
    }

    /// `job` is gone, so it no longer keeps its flow and its eligibility set.
    fn release(&mut self, job: &Job) {
        self.tree.release_flow(job.queued.flow);
        self.tree.release_eligibility(job.queued.eligibility);
    }

    /// Removes `id`, which waits, and rejects it.
    fn reject_waiting(&mut self, id: JobId, outcome: Outcome) {
        let budget_wait = self.budget_wait_for(outcome, self.jobs[id].queued.flow);
        let job = self.take_waiting(id);
        self.reject(&job, outcome, budget_wait);
    }

    /// Rejects `job`, which has left the engine but for [`Self::release`]. `budget_wait`: the time until its budget has room,
    /// if that is why, or if the budget would hold the next request.
    fn reject(&mut self, job: &Job, outcome: Outcome, budget_wait: Option<Duration>) {
        self.counters.count(job.band.shown(), outcome);
        let retry_after = Some(match budget_wait {
            Some(wait) if outcome == Outcome::RejectedBudget => wait,
            wait => {
                let ahead = self.tree.before_next(&job.queued).requests;
                let expected = self.expected_rate();
                let estimate = self.drain_rate.retry_after(ahead, expected, &mut self.rng);
                estimate.max(wait.unwrap_or_default())
            }
        });
        self.release(job);
        self.push(Effect::Reject(Reject {
            id: job.id,
            outcome,
            waited: self.now.since(job.queued.arrival.at),
            retry_after,
        }));
    }

    /// Completions per second by the performance models, until the drain rate is measured.
    fn expected_rate(&self) -> Option<f64> {
        if self.drain_rate.is_measured() {
            return None;
        }
        self.endpoints.rate()
    }

    #[inline]
    fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// An unsuspended request waits, or would have to wait although endpoints are ready. While the gate is open, requests that only limits
    /// of their own hold back don't count: a pool that could serve others doesn't show how fast its queue drains.
    fn is_saturated(&self) -> bool {
        let full = self.endpoints.any_ready() && self.endpoints.filled() >= self.endpoints.bounds().upper;
        full || self.tree.any_active() && !self.holds_all()
    }

    /// Requests wait, and none of them may go though the gate is open: limits of their own hold them back.
    pub(super) fn holds_all(&self) -> bool {
        self.is_open() && !self.tree.has_runnable()
    }
}
