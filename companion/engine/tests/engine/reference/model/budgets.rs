//! Budgets: every flow has its windows from the start, and whoever asks moves them step by step to the present.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_budget_model::{Calendar, Window, first_day, first_day_of_week, month_of, steps, week_of};
use penstock_engine::effect::BudgetReport;
use penstock_engine::input::{BudgetReset, BudgetUsage, UsageKind, UsedAt};
use penstock_engine::policy::{Budget, BudgetPeriod, BudgetWindow, CostUnit, Over};
use penstock_engine::{Effect, Input, Instant, Outcome, RequestId};

use super::engine_effects::EngineEffects;
use super::{Item, Level, Model};

/// What a running request has reserved: the step of each window, what it took of its top-ups, and the estimate.
#[derive(Clone, Debug)]
struct Reserved {
    steps: Vec<(i64, u64)>,
    tokens: u64,
}

#[derive(Clone)]
pub struct Budgets {
    calendar: Calendar,
    flows: BTreeMap<Box<str>, Vec<Window>>,
    reserved: BTreeMap<RequestId, Reserved>,
    shadowed: Vec<RequestId>,
}

impl Budgets {
    pub fn new(now: Instant) -> Self {
        Self {
            calendar: Calendar::new(now.as_nanos()),
            flows: BTreeMap::new(),
            reserved: BTreeMap::new(),
            shadowed: Vec::new(),
        }
    }
}

/// The nanoseconds of a step of a window.
fn step_width(window: Duration) -> u64 {
    steps(window.as_nanos() as u64).0
}

impl Model {
    fn budget(&self, name: &str) -> Option<&Budget> {
        self.policy.flows.budgets.iter().find(|budget| budget.flows.matches(name))
    }

    fn step_of(&self, period: BudgetPeriod, now: Instant) -> i64 {
        match period {
            BudgetPeriod::Sliding(window) => (now.as_nanos() / step_width(window)) as i64,
            BudgetPeriod::Day => self.budgets.calendar.days_begun,
            BudgetPeriod::Week => self.budgets.calendar.weeks_begun,
            BudgetPeriod::Month => self.budgets.calendar.months_begun,
        }
    }

    fn begin_of(&self, period: BudgetPeriod, step: i64) -> Instant {
        let calendar = &self.budgets.calendar;
        let begin_of = |day| Instant::from_nanos(calendar.begin_of(day));
        match period {
            BudgetPeriod::Sliding(window) => Instant::from_nanos(step as u64 * step_width(window)),
            BudgetPeriod::Day => begin_of(calendar.day + step - calendar.days_begun),
            BudgetPeriod::Week => begin_of(first_day_of_week(calendar.week + step - calendar.weeks_begun)),
            BudgetPeriod::Month => begin_of(first_day(calendar.month + step - calendar.months_begun)),
        }
    }

    /// The windows of a flow at present; `None`: it has no budget.
    fn windows(&mut self, name: &str) -> Option<(Vec<BudgetWindow>, &mut Vec<Window>)> {
        let definitions = self.budget(name)?.windows.clone();
        let steps: Vec<i64> =
            definitions.iter().map(|window| self.step_of(window.period, self.now)).collect();
        let kept = |period| match period {
            // The oldest step begins before the window does.
            BudgetPeriod::Sliding(_) => 61,
            BudgetPeriod::Day | BudgetPeriod::Week | BudgetPeriod::Month => 1,
        };
        let new = || {
            let windows = definitions.iter().zip(&steps);
            windows.map(|(window, &step)| Window::new(window.limit, kept(window.period), step)).collect()
        };
        let windows = self.budgets.flows.entry(name.into()).or_insert_with(new);
        for (window, step) in windows.iter_mut().zip(steps) {
            window.advance(step);
        }
        Some((definitions, windows))
    }

    fn has_room(&self, name: &str) -> bool {
        let windows = self.budgets.flows.get(name);
        windows.is_none_or(|windows| windows.iter().all(|window| window.room() > 0))
    }

    /// The first moment with room in all windows.
    fn has_room_at(&self, name: &str) -> Instant {
        let definitions = &self.budget(name).expect("it has a budget").windows;
        let full = definitions.iter().zip(&self.budgets.flows[name]).filter(|(_, window)| window.room() == 0);
        let begins = full.map(|(definition, window)| {
            let step = window.has_room_in().expect("nothing runs elsewhere");
            self.begin_of(definition.period, step)
        });
        begins.max().expect("a window is full").max(self.now)
    }

    /// A new request has this id, which an ended one had before.
    pub(super) fn forget_shadowed(&mut self, id: RequestId) {
        self.budgets.shadowed.retain(|other| *other != id);
    }

    /// Moves the windows of all flows to the present.
    pub(super) fn advance_budgets(&mut self) {
        self.budgets.calendar.advance(self.now.as_nanos());
        let names: Vec<Box<str>> = self.budgets.flows.keys().cloned().collect();
        for name in names {
            self.windows(&name);
        }
        self.refresh_backlogs();
    }

    pub(super) fn is_held(&self, name: &str) -> bool {
        let holds = |budget: &Budget| budget.over == Over::Hold && !budget.shadow;
        self.budget(name).is_some_and(holds) && !self.has_room(name)
    }

    /// The time for which the budget of a flow holds it.
    pub(super) fn held_for(&self, name: &str) -> Duration {
        if self.is_held(name) { self.has_room_at(name).since(self.now) } else { Duration::ZERO }
    }

    pub(super) fn budget_wake(&self) -> Option<Instant> {
        let held = self.budgets.flows.keys().filter(|name| self.is_held(name));
        held.map(|name| self.has_room_at(name)).min()
    }

    /// What happens to the item because its flow has no room.
    fn over_budget(&mut self, item: &Item, effects: &mut EngineEffects) -> Option<Over> {
        let budget = self.budget(&item.name)?;
        let (over, shadow) = (budget.over, budget.shadow);
        if item.band == Level::Demoted || self.has_room(&item.name) {
            return None;
        }
        if !shadow {
            return Some(over);
        }
        if !self.budgets.shadowed.contains(&item.id) {
            self.budgets.shadowed.push(item.id);
            let flow = item.name.clone();
            effects.expect_next(Effect::Budget(BudgetReport::Shadowed { flow, over }));
        }
        None
    }

    pub(super) fn admit_newcomer(&mut self, item: Item, effects: &mut EngineEffects) -> Option<Item> {
        // Requests get new chances with their ids.
        self.budgets.shadowed.retain(|id| *id != item.id);
        match self.over_budget(&item, effects) {
            None | Some(Over::Hold) => Some(item),
            Some(Over::Demote) => Some(self.demoted(&item)),
            Some(Over::Refuse) => {
                let retry_after = self.has_room_at(&item.name).since(self.now);
                self.release(&item);
                self.count(item.band.shown(), Outcome::RejectedBudget);
                effects.expect_budget_reject(item.id, self.now.since(item.arrived), retry_after);
                None
            }
        }
    }

    fn demoted(&mut self, item: &Item) -> Item {
        let demoted = Item { band: Level::Demoted, ..item.clone() };
        self.ensure_flow(self.leaf(&demoted), &item.name);
        self.release(item);
        demoted
    }

    /// Whether `id`, whose turn it is, goes.
    pub(super) fn admits_next(&mut self, id: RequestId, effects: &mut EngineEffects) -> bool {
        let item = self.item(id).clone();
        match self.over_budget(&item, effects) {
            None => return true,
            Some(Over::Hold) => unreachable!("a held flow has no turn"),
            Some(Over::Demote) => {
                self.items.retain(|other| other.id != id);
                self.refresh_backlogs();
                let demoted = self.demoted(&item);
                self.wait(demoted);
            }
            Some(Over::Refuse) => {
                let retry_after = self.has_room_at(&item.name).since(self.now);
                self.remove_waiting(id);
                self.count(item.band.shown(), Outcome::RejectedBudget);
                effects.expect_budget_reject(id, self.now.since(item.arrived), retry_after);
            }
        }
        false
    }

    /// The item starts to run. Demoted ones cost their budget nothing.
    pub(super) fn reserve_budget(&mut self, item: &Item) {
        if item.band == Level::Demoted {
            return;
        }
        let tokens = self.cost_of(item, Default::default());
        let Some((definitions, windows)) = self.windows(&item.name) else {
            return;
        };
        let reserve = |(definition, window): (&BudgetWindow, &mut Window)| {
            let of_top_ups = window.reserve(in_unit(tokens, definition.unit));
            (window.now, of_top_ups)
        };
        let steps = definitions.iter().zip(windows).map(reserve).collect();
        self.budgets.reserved.insert(item.id, Reserved { steps, tokens });
    }

    /// The item has really used `real` tokens; `None`: nothing was served.
    pub(super) fn settle_budget(&mut self, item: &Item, real: Option<u64>) {
        if let Some(reserved) = self.budgets.reserved.remove(&item.id)
            && let Some((definitions, windows)) = self.windows(&item.name)
        {
            let of_windows = definitions.iter().zip(windows);
            for ((definition, window), (step, of_top_ups)) in of_windows.zip(reserved.steps) {
                let estimate = in_unit(reserved.tokens, definition.unit);
                let real = real.map_or(0, |tokens| in_unit(tokens, definition.unit));
                window.settle(step, estimate, of_top_ups, real, 0);
            }
        }
        self.refresh_backlogs();
    }

    pub(super) fn apply_to_budgets(&mut self, input: Input) {
        match input {
            Input::Utc(utc) => {
                self.budgets.calendar.set(self.now.as_nanos(), utc.as_nanos() as i128);
                self.advance_budgets();
            }
            Input::BudgetUsage { settled, .. } => {
                settled.iter().for_each(|usage| self.add_budget_usage(usage));
            }
            Input::TopUp { flow, tokens } => {
                if let Some((definitions, windows)) = self.windows(named(&flow)) {
                    let of_tokens = definitions.iter().zip(windows);
                    of_tokens
                        .filter(|(definition, _)| definition.unit == CostUnit::Tokens)
                        .for_each(|(_, window)| window.top_up(window.now, tokens.0));
                }
            }
            Input::ResetBudget(flow) => self.reset_budget(named(&flow)),
            Input::BudgetResets(resets) => {
                for reset in &resets {
                    if let BudgetReset::Elsewhere { flow, .. } = reset {
                        self.reset_budget(named(flow));
                    }
                }
            }
            _ => unreachable!("only inputs about budgets come here, and no history"),
        }
        self.refresh_backlogs();
    }

    fn reset_budget(&mut self, name: &str) {
        if self.budget(name).is_none() {
            return;
        }
        if let Some((_, windows)) = self.windows(name) {
            windows.iter_mut().for_each(Window::reset);
        }
        let of_flow = self.items.iter().filter(|item| *item.name == *name);
        let ids: Vec<RequestId> = of_flow.map(|item| item.id).collect();
        self.budgets.reserved.retain(|id, _| !ids.contains(id));
    }

    /// The step of a calendar window that contains this day since 1970 began; at most the present one.
    fn step_of_day(&self, period: BudgetPeriod, day: i64) -> i64 {
        let calendar = &self.budgets.calendar;
        let (begun, present, number) = match period {
            BudgetPeriod::Sliding(_) => unreachable!("a calendar window"),
            BudgetPeriod::Day => (calendar.days_begun, calendar.day, day),
            BudgetPeriod::Week => (calendar.weeks_begun, calendar.week, week_of(day)),
            BudgetPeriod::Month => {
                let month = if day < 0 { calendar.month - 1 } else { month_of(day) };
                (calendar.months_begun, calendar.month, month)
            }
        };
        begun - (present - number).max(0)
    }

    fn add_budget_usage(&mut self, usage: &BudgetUsage) {
        let now = self.now;
        let step = match (usage.used_at, usage.period) {
            (UsedAt::Debt, _) => None,
            (UsedAt::Ago(ago), BudgetPeriod::Sliding(length)) => {
                let then = i128::from(now.as_nanos()) - ago.as_nanos() as i128;
                Some(then.div_euclid(step_width(length).into()) as i64)
            }
            (UsedAt::Since(_), BudgetPeriod::Sliding(_)) | (UsedAt::Ago(_), _) => return,
            (UsedAt::Since(seconds), period) => Some(self.step_of_day(period, seconds.div_euclid(86_400))),
        };
        let Some((definitions, windows)) = self.windows(named(&usage.flow)) else {
            return;
        };
        let of_window = definitions.iter().zip(windows);
        for (_, window) in
            of_window.filter(|(window, _)| (window.unit, window.period) == (usage.unit, usage.period))
        {
            match (step, usage.kind) {
                (None, _) => window.add_debt(usage.amount),
                (Some(step), UsageKind::Used) => window.add_used(step, usage.amount),
                (Some(step), UsageKind::ToppedUp) => window.top_up(step, usage.amount),
            }
        }
    }
}

const fn in_unit(tokens: u64, unit: CostUnit) -> u64 {
    match unit {
        CostUnit::Tokens => tokens,
        CostUnit::Requests => 1,
    }
}

fn named(flow: &str) -> &str {
    if flow.is_empty() { "anonymous" } else { flow }
}
