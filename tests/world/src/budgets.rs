//! Accounts of the flows' budgets, kept by the world itself.
//!
//! The world counts each dispatch at its estimate, each end at its real usage and each refund, and knows time and UTC of each companion.
//! From that it computes what is left of every budget, by the documentation and without the engine's code. After every step of a companion
//! it compares its accounts with the engine's, and checks what was granted, demoted, refused and held.

mod accounts;
mod flow;

use core::time::Duration;
use std::collections::BTreeMap;

use penstock_control::{CostEvent, CostEventKind, Event, PoolBudgets};
use penstock_engine::input::Service;

use self::accounts::PoolAccounts;
use super::World;
use super::event::SimEvent;
use super::rng::Rng;
use super::time::{MILLI, Nanos};

/// Midnights before which worlds begin: before 1 January 2028, 15 January, 29 February and 1 March.
const MIDNIGHTS: [u64; 4] = [1_830_297_600, 1_831_507_200, 1_835_395_200, 1_835_481_600];
/// How long a request may wait that nothing blocks: a timer may be late by the time between two events.
const DISPATCH_DELAY_MAX: Nanos = 5 * MILLI;

/// The accounts of one companion's process.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// UTC in nanoseconds, and the companion's clock when it was read.
    utc: Option<(Nanos, i128)>,
    pools: BTreeMap<String, PoolAccounts>,
    /// A session has ended or begun in this batch, so that it isn't clear which requests could go.
    is_unclear: bool,
    /// The companion has handed over, and follows no clock any more.
    is_closed: bool,
}

impl World {
    /// UTC by a companion's wall clock.
    pub(super) fn utc(&self, index: usize) -> Duration {
        let passed = Duration::from_nanos(self.now - super::START);
        let offset = self.companions[index].wall_clock_offset;
        let utc = Duration::from_secs(self.utc_at_start) + passed;
        match u64::try_from(offset) {
            Ok(ahead) => utc + Duration::from_secs(ahead),
            Err(_) => utc.saturating_sub(Duration::from_secs(offset.unsigned_abs())),
        }
    }

    /// UTC when the world of this seed begins: shortly before midnight.
    pub(super) fn draw_utc(seed: u64) -> u64 {
        let rng = &mut Rng::new(seed ^ 0x5554_4331);
        rng.choose(&MIDNIGHTS) - rng.choose(&[2, 10, 60])
    }

    /// In half of the worlds with budgets, wall clocks are set while requests run. Drawn from a generator of its own.
    pub(super) fn schedule_wall_clock_jumps(&mut self) {
        let rng = &mut Rng::new(self.scenario.seed ^ 0x5741_4c4c);
        let has_budgets = (self.scenario.pools.iter()).any(|pool| !pool.policy.flows.budgets.is_empty());
        if !has_budgets || rng.percent(50) {
            return;
        }
        let span = self.scenario.interval * self.scenario.requests;
        for _ in 0..rng.between(1, 6) {
            let index = usize::try_from(rng.below(self.companions.len() as u64)).unwrap_or(0);
            let most = rng.choose(&[30, 30, 30, 4_000, 86_400, 40 * 86_400]);
            let seconds = i64::try_from(rng.below(2 * most)).unwrap_or(0) - i64::try_from(most).unwrap_or(0);
            let time = self.now + rng.below(span);
            self.event_queue.schedule(time, SimEvent::WallClockJumps(index, seconds));
        }
    }

    /// A companion's wall clock is set, and its process notices.
    pub(super) fn jump_wall_clock(&mut self, index: usize, seconds: i64) {
        self.companions[index].wall_clock_offset += seconds;
        self.note(|| format!("the wall clock of companion {index} jumps by {seconds} s"));
        let utc = self.utc(index);
        self.deliver_to_companion(index, Event::Utc(utc));
    }

    /// A companion's process has started.
    pub(super) fn begin_accounts(&mut self, index: usize) {
        if let Some(control) = &mut self.companions[index].control {
            control.trace_costs();
        }
        self.follow_costs(index, None);
        let (now, utc) = (self.companion_now(index), self.utc(index));
        if let Some(control) = &mut self.companions[index].control {
            control.handle(now, Event::Utc(utc));
        }
        self.follow_costs(index, Some(utc));
    }

    /// Follows what has just happened at a companion. `utc`: it has read its wall clock.
    pub(super) fn follow_costs(&mut self, index: usize, utc: Option<Duration>) {
        let local = self.companion_now(index).as_nanos();
        let companion = &mut self.companions[index];
        let Some(control) = companion.control.as_mut().filter(|_| !companion.accounts.is_closed) else {
            return;
        };
        let events = control.take_cost_events();
        if let Some(utc) = utc {
            let utc = i128::try_from(utc.as_nanos()).unwrap_or(i128::MAX);
            companion.accounts.utc = Some((local, utc));
        }
        let accounts = &mut companion.accounts;
        for pool in accounts.pools.values_mut() {
            pool.advance(local);
            if let (Some(_), Some((local, utc))) = (utc, accounts.utc) {
                pool.calendar.set(pool.local.max(local), utc);
                pool.advance(local);
            }
        }
        for event in &events {
            if let Err(violation) = self.follow_cost(index, event, local) {
                self.fail(|| violation);
            }
        }
        self.compare_accounts(index);
    }

    /// A companion has handed over to another one.
    pub(super) fn close_companion_accounts(&mut self, index: usize) {
        self.companions[index].accounts.is_closed = true;
    }

    fn follow_cost(&mut self, index: usize, event: &CostEvent, local: Nanos) -> Result<(), String> {
        let mut scenarios = self.scenario.pools.iter();
        let Some(scenario) = scenarios.find(|scenario| *scenario.name == *event.pool) else {
            return Ok(());
        };
        let flows = &scenario.policy.flows;
        if flows.budgets.is_empty() {
            return Ok(());
        }
        let name = scenario.name.clone();
        if matches!(event.kind, CostEventKind::PoolMade) {
            let shares_flows =
                flows.identities_max < usize::try_from(self.scenario.flows).unwrap_or(usize::MAX);
            let mut pool = PoolAccounts::new(flows.clone(), shares_flows, local);
            let accounts = &mut self.companions[index].accounts;
            if let Some((then, utc)) = accounts.utc {
                let passed = i128::from(local.saturating_sub(then));
                pool.calendar.set(local, utc + passed);
            }
            let before = accounts.pools.insert(name, pool);
            return before.map_or(Ok(()), |before| self.close_accounts(&before));
        }
        self.check_usage(index, event)?;
        let pool = self.companions[index].accounts.pools.get_mut(&name);
        let pool = pool.ok_or_else(|| format!("pool {name} has events, and was never made"))?;
        pool.apply(&event.kind)
    }

    /// Checks what a request is charged at its end: what its server has counted.
    fn check_usage(&self, index: usize, event: &CostEvent) -> Result<(), String> {
        let CostEventKind::Ended { id, service } = &event.kind else {
            return Ok(());
        };
        let pool = self.companions[index].accounts.pools.get(&*event.pool);
        let request = pool.and_then(|pool| pool.requests.get(id));
        let Some(request) = request.map(|request| &request.request_id) else {
            return Ok(());
        };
        let number = request.strip_prefix('r').and_then(|number| number.parse::<u64>().ok());
        let counted = number.and_then(|number| self.counted_usage.get(&number));
        if let Service::Served(usage) = service
            && let Some(prompt) = usage.prompt
        {
            let own = (prompt.0, usage.output.unwrap_or_default().0);
            if counted != Some(&own) {
                return Err(format!("{request} is charged for {own:?}, and its server counted {counted:?}"));
            }
        }
        Ok(())
    }

    /// Compares all accounts of a companion with its engines' budgets.
    fn compare_accounts(&mut self, index: usize) {
        let accounts = &mut self.companions[index].accounts;
        if accounts.pools.is_empty() {
            return;
        }
        let latest = accounts.pools.values().map(|pool| pool.local).max();
        let now = penstock_engine::Instant::from_nanos(latest.unwrap_or(0));
        let Some(control) = &self.companions[index].control else {
            return;
        };
        let budgets: Vec<PoolBudgets> = control.budgets(now);
        let accounts = &mut self.companions[index].accounts;
        let mut violation = None;
        for budgets in &budgets {
            if let Some(pool) = accounts.pools.get_mut(&*budgets.pool) {
                pool.advance(now.as_nanos());
                if let Err(difference) = pool.compare(&budgets.flows) {
                    violation.get_or_insert(format!("pool {}: {difference}", budgets.pool));
                }
            }
        }
        if let Some(violation) = violation {
            self.fail(|| violation);
        }
    }

    /// A companion begins a batch of events.
    pub(super) fn begin_batch(&mut self, index: usize) {
        self.companions[index].roots_closed_in_batch.clear();
        let accounts = &mut self.companions[index].accounts;
        accounts.is_unclear = false;
        for pool in accounts.pools.values_mut() {
            pool.demoted_started = None;
            pool.batch_started = (pool.event, pool.local);
        }
    }

    /// In this batch a session has ended or begun.
    pub(super) fn note_unclear_batch(&mut self, index: usize) {
        self.companions[index].accounts.is_unclear = true;
    }

    /// Checks after a batch of events that no request waits that should have gone.
    pub(super) fn check_turns(&mut self, index: usize) {
        if self.companions[index].accounts.is_unclear || !self.can_judge_turns() {
            return;
        }
        let (mut violation, mut judged) = (None, 0);
        for (name, pool) in &self.companions[index].accounts.pools {
            if violation.is_none() && self.has_simple_turns(name) && !pool.shares_flows {
                judged += u64::from(pool.demoted_started.is_some());
                violation = self.wrong_turn(index, pool);
            }
        }
        self.summary.demotions_judged += judged;
        if let Some(violation) = violation {
            self.fail(|| violation);
        }
    }

    fn wrong_turn(&self, index: usize, pool: &PoolAccounts) -> Option<String> {
        let (event, local) = pool.batch_started;
        if pool.demoted_started.is_some() {
            let mut waiting = pool.waiting_within_budget(event, local);
            if let Some(request) = waiting.find(|request| self.can_go(index, &request.request_id)) {
                return Some(format!(
                    "a demoted request goes before {} of flow {}, which is within its budget",
                    request.request_id, request.flow
                ));
            }
        }
        let local = pool.local.saturating_sub(DISPATCH_DELAY_MAX);
        let starts_at_once = self.scenario.lease == 0 && pool.grants && !self.companions[index].draining;
        if starts_at_once && pool.is_idle() && pool.idle_since.is_some_and(|since| since <= local) {
            let mut waiting = pool.waiting_within_budget(event, local);
            if let Some(request) = waiting.find(|request| self.can_go(index, &request.request_id)) {
                return Some(format!(
                    "{} of flow {} waits, though something is left of its budget and nothing runs",
                    request.request_id, request.flow
                ));
            }
        }
        None
    }

    /// Nothing but the gate, the bands and the budgets decides which request goes.
    fn can_judge_turns(&self) -> bool {
        !self.scenario.faults.iter().any(|kind| kind.blurs_turns())
    }

    fn has_simple_turns(&self, pool: &str) -> bool {
        let mut scenarios = self.scenario.pools.iter();
        scenarios.find(|scenario| *scenario.name == *pool).is_some_and(|scenario| {
            let policy = &scenario.policy;
            let flows = &policy.flows;
            flows.max_in_flight.is_none()
                && flows.max_in_flight_per_endpoint.is_none()
                && policy.queue.max_rate.is_none()
                && !matches!(policy.gate, penstock_engine::policy::Gate::Auto { .. })
                && scenario.credit.is_none()
        })
    }

    /// The request waits here, and its filter has a session here, so that it can be granted.
    fn can_go(&self, index: usize, request: &str) -> bool {
        let tenure = self.companions[index].tenure;
        let number = request.strip_prefix('r').and_then(|number| number.parse::<u64>().ok());
        let mut streams = self.http_streams.values().filter(|http| Some(http.client) == number);
        let (Some(http), None) = (streams.next(), streams.next()) else {
            return false;
        };
        let root = self.roots.get(&http.root);
        let has_session =
            root.is_some_and(|root| !root.dead && root.attachments[index].session_stream.is_some());
        has_session && http.registered_with == Some(tenure) && !http.resumed && !http.replied
    }

    /// A companion's process ends.
    pub(super) fn end_accounts(&mut self, index: usize) {
        let accounts = core::mem::take(&mut self.companions[index].accounts);
        for pool in accounts.pools.values() {
            if let Err(violation) = self.close_accounts(pool) {
                self.fail(|| violation);
            }
        }
    }

    fn close_accounts(&mut self, pool: &PoolAccounts) -> Result<(), String> {
        let counts = pool.counts;
        self.summary.budget_charges += counts.charged;
        self.summary.budget_demotions += counts.demoted;
        self.summary.budget_refusals += counts.refused;
        self.summary.budget_comparisons += counts.compared;
        pool.check_law()
    }
}
