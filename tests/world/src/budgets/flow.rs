//! The account of one flow: its windows, what it runs, and every charge for the law over several windows.

use penstock_budget_model::{Calendar, Window, steps};
use penstock_engine::policy::{Budget, BudgetPeriod, CostUnit, Over};

/// Tokens and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) tokens: u64,
    pub(super) requests: u64,
}

impl Amount {
    pub(super) const fn request(tokens: u64) -> Self {
        Self { tokens, requests: 1 }
    }

    pub(super) const fn of(self, unit: CostUnit) -> u64 {
        match unit {
            CostUnit::Tokens => self.tokens,
            CostUnit::Requests => self.requests,
        }
    }
}

/// What a running request is charged.
#[derive(Clone, Debug)]
pub(super) struct Charge {
    /// The step of each window in which it was dispatched.
    steps: Vec<i64>,
    estimate: u64,
    /// The number of the charge among those of the flow.
    number: usize,
}

/// A charge, for the law over several windows.
#[derive(Clone, Debug)]
struct Charged {
    /// Granted by this engine: it may go beyond the limit only as the last one.
    is_granted: bool,
    /// From when to when it ran, in numbers of events; `None`: it runs.
    started: u64,
    ended: Option<u64>,
    /// The larger one of its estimate and its usage.
    most: Amount,
    /// For each window, when how much of it counts, by [`place`].
    counted: Vec<[(i64, u64); 2]>,
}

/// The account of a flow with a budget.
#[derive(Clone, Debug)]
pub(super) struct FlowAccount {
    pub(super) budget: Budget,
    pub(super) windows: Vec<Window>,
    pub(super) running: Amount,
    /// The number of the last event at which nothing was left.
    pub(super) emptied: Option<u64>,
    /// Since when something is left, by the companion's clock, as far as an event has shown it; `None`: nothing is left.
    pub(super) has_room_since: Option<u64>,
    charges: Vec<Charged>,
    /// What the engine should have reported to other gateways in this step as used, by window.
    pub(super) to_report: Vec<u64>,
}

/// Where usage lies for the law of a window: the time in nanoseconds, or the number of the day, week or month.
fn place(period: BudgetPeriod, calendar: &Calendar, local: u64) -> i64 {
    match period {
        BudgetPeriod::Sliding(_) => i64::try_from(local).unwrap_or(i64::MAX),
        BudgetPeriod::Day | BudgetPeriod::Week | BudgetPeriod::Month => step(period, calendar, local),
    }
}

/// The length of a window in the unit of [`place`].
fn extent(period: BudgetPeriod) -> i64 {
    match period {
        BudgetPeriod::Sliding(length) => i64::try_from(length.as_nanos()).unwrap_or(i64::MAX),
        BudgetPeriod::Day | BudgetPeriod::Week | BudgetPeriod::Month => 1,
    }
}

/// The number of the step of a window in which the companion's clock shows `local`.
fn step(period: BudgetPeriod, calendar: &Calendar, local: u64) -> i64 {
    match period {
        BudgetPeriod::Sliding(length) => {
            let (width, _) = steps(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
            i64::try_from(local / width).unwrap_or(i64::MAX)
        }
        BudgetPeriod::Day => calendar.days_begun,
        BudgetPeriod::Week => calendar.weeks_begun,
        BudgetPeriod::Month => calendar.months_begun,
    }
}

fn length(period: BudgetPeriod) -> i64 {
    match period {
        BudgetPeriod::Sliding(length) => steps(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)).1,
        BudgetPeriod::Day | BudgetPeriod::Week | BudgetPeriod::Month => 1,
    }
}

impl FlowAccount {
    pub(super) fn new(budget: Budget, calendar: &Calendar, local: u64) -> Self {
        let windows = budget.windows.iter().map(|window| {
            let now = step(window.period, calendar, local);
            Window::new(window.limit, length(window.period), now)
        });
        Self {
            windows: windows.collect(),
            running: Amount::default(),
            emptied: None,
            has_room_since: Some(local),
            charges: Vec::new(),
            to_report: vec![0; budget.windows.len()],
            budget,
        }
    }

    /// Moves all windows to the present. `event`: the number of the present event.
    pub(super) fn advance(&mut self, calendar: &Calendar, local: u64, event: u64) {
        for (window, definition) in self.windows.iter_mut().zip(&self.budget.windows) {
            window.advance(step(definition.period, calendar, local));
        }
        self.note_room(local, event);
    }

    fn note_room(&mut self, local: u64, event: u64) {
        if self.has_room() {
            self.has_room_since.get_or_insert(local);
        } else {
            self.has_room_since = None;
            self.emptied = Some(event);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.windows.iter().all(|window| window.room() > 0)
    }

    /// The budget decides, and this is what it does.
    pub(super) fn decides(&self, over: Over) -> bool {
        self.budget.over == over && !self.budget.shadow
    }

    /// A request starts, and counts at this estimate.
    pub(super) fn charge(
        &mut self,
        estimate: u64,
        is_granted: bool,
        calendar: &Calendar,
        (local, event): (u64, u64),
    ) -> Charge {
        let amount = Amount::request(estimate);
        let mut dispatched = Vec::new();
        for (window, definition) in self.windows.iter_mut().zip(&self.budget.windows) {
            window.reserve(amount.of(definition.unit));
            dispatched.push(step(definition.period, calendar, local));
        }
        self.charges.push(Charged {
            is_granted,
            started: event,
            ended: None,
            most: amount,
            counted: (self.budget.windows.iter())
                .map(|window| {
                    let place = place(window.period, calendar, local);
                    [(place, amount.of(window.unit)), (place, 0)]
                })
                .collect(),
        });
        self.running.tokens += estimate;
        self.running.requests += 1;
        self.note_room(local, event);
        Charge { steps: dispatched, estimate, number: self.charges.len() - 1 }
    }

    /// A request has ended. `real`: its tokens; `None`: nothing was served.
    pub(super) fn settle(
        &mut self,
        charge: &Charge,
        real: Option<u64>,
        calendar: &Calendar,
        (local, event): (u64, u64),
    ) {
        self.running.tokens -= charge.estimate;
        self.running.requests -= 1;
        let running = self.running;
        let real = real.map_or_else(Amount::default, Amount::request);
        let estimate = Amount::request(charge.estimate);
        let charged = &mut self.charges[charge.number];
        charged.ended = Some(event);
        charged.most.tokens = charged.most.tokens.max(real.tokens);
        for (index, window) in self.windows.iter_mut().enumerate() {
            let definition = &self.budget.windows[index];
            let unit = definition.unit;
            let (step, estimate, real) = (charge.steps[index], estimate.of(unit), real.of(unit));
            let settled = window.settle(step, estimate, 0, real, running.of(unit));
            let excess = real.saturating_sub(estimate);
            let [(dispatched, _), _] = charged.counted[index];
            let excess_at =
                if settled.has_left { place(definition.period, calendar, local) } else { dispatched };
            charged.counted[index] = [(dispatched, real.min(estimate)), (excess_at, excess)];
            self.to_report[index] += if settled.has_left { settled.still_counted + excess } else { real };
        }
        self.note_room(local, event);
    }

    /// Checks the law of a window: within so many windows in a row a flow uses at most their limits, one request more, and what runs at
    /// the same time.
    ///
    /// # Errors
    /// When it used more.
    pub(super) fn check_law(&self) -> Result<(), String> {
        for (index, definition) in self.budget.windows.iter().enumerate() {
            let unit = definition.unit;
            let running_at = |event: u64| {
                let runs = |charge: &&Charged| {
                    charge.started <= event && charge.ended.is_none_or(|ended| ended >= event)
                };
                let running = self.charges.iter().filter(runs);
                running.map(|charge| charge.most.of(unit)).sum::<u64>()
            };
            let at_once = self.charges.iter().map(|charge| running_at(charge.started));
            let adopted = self.charges.iter().filter(|charge| !charge.is_granted);
            let adopted: u64 = adopted.map(|charge| charge.most.of(unit)).sum();
            let beyond = at_once.max().unwrap_or(0) + adopted;
            let counted = self.charges.iter().flat_map(|charge| charge.counted[index]);
            let mut counted: Vec<(i64, u64)> = counted.filter(|(_, amount)| *amount > 0).collect();
            counted.sort_unstable();
            let length = extent(definition.period);
            for (first, &(begin, _)) in counted.iter().enumerate() {
                let mut used = 0;
                for &(place, amount) in &counted[first..] {
                    used += amount;
                    let windows = ((place - begin) / length + 1).unsigned_abs();
                    if used > windows * definition.limit + beyond {
                        return Err(format!(
                            "used {used} in {windows} windows of {definition:?}, with at most {beyond} at the same time"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
