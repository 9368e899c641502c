//! The disciplines with virtual time, by definition. Virtual time is in units that all weights of the tests divide.

use std::collections::BTreeMap;

use penstock_engine::policy::Discipline;

const ONE: i128 = 720_720 * 1_024;

/// The virtual time that `cost` takes a flow with this weight, a multiple of a quarter.
pub fn step(cost: u128, weight: f64) -> i128 {
    cost as i128 * ONE * 4 / (weight * 4.0) as i128
}

pub fn in_cost_per_weight(virtual_time: i128) -> f64 {
    virtual_time as f64 / ONE as f64
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    pub finish: i128,
    /// The part of `finish` of requests that bypassed while none waited, and aren't settled, in `period`.
    uncontested: i128,
    period: u32,
    /// For `vtc`: the estimated cost of the identity's running requests from other leaves that is part of `finish`.
    elsewhere: u64,
    /// The flow was backlogged or charged.
    started: bool,
    /// Requests of the flow wait, and the flow's limit admits them.
    pub backlogged: bool,
}

/// The last advance of virtual time, as long as no flow has started at it.
#[derive(Clone, Debug)]
struct LastAdvance {
    flow: Box<str>,
    step: i128,
    now: i128,
    served: Option<Box<str>>,
}

/// Virtual time of the flows of one leaf.
#[derive(Clone, Debug)]
pub struct VirtualTime {
    discipline: Discipline,
    now: i128,
    /// For `vtc`: the flow served last.
    served: Option<Box<str>>,
    last_advance: Option<LastAdvance>,
    /// Counts the times at which two flows came to wait, or a weight changed.
    period: u32,
    pub flows: BTreeMap<Box<str>, Flow>,
}

impl VirtualTime {
    pub const fn new(discipline: Discipline) -> Self {
        Self { discipline, now: 0, served: None, last_advance: None, period: 0, flows: BTreeMap::new() }
    }

    /// The least start of a flow that becomes backlogged.
    fn start_level(&self) -> i128 {
        match self.discipline {
            Discipline::Wfq | Discipline::RoundRobin => self.now,
            Discipline::Vtc => {
                let backlogged = self.flows.values().filter(|flow| flow.backlogged);
                let last = || self.served.as_ref().map(|name| self.flows[name].finish);
                backlogged.map(|flow| flow.finish).min().or_else(last).unwrap_or(self.now)
            }
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => 0,
        }
    }

    /// How far a flow is ahead of a new one.
    pub fn lag(&self, name: &str) -> i128 {
        match self.discipline {
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => 0,
            Discipline::Wfq | Discipline::RoundRobin | Discipline::Vtc => {
                let finish = self.flows.get(name).map_or(0, |flow| flow.finish);
                (finish - self.start_level()).max(0)
            }
        }
    }

    fn step(&self, cost: u64, weight: f64) -> i128 {
        match self.discipline {
            Discipline::Wfq | Discipline::Vtc => step(cost.into(), weight),
            Discipline::RoundRobin => step(1, weight),
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => 0,
        }
    }

    /// The key that orders a flow with a head of this cost.
    pub fn order_key(&self, name: &str, cost: u64, weight: f64) -> i128 {
        match self.discipline {
            Discipline::Wfq | Discipline::RoundRobin => self.flows[name].finish + self.step(cost, weight),
            Discipline::Vtc => self.flows[name].finish,
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => 0,
        }
    }

    fn lift(&mut self, name: &str) {
        let start_level = self.start_level();
        let flow = self.flows.entry(name.into()).or_default();
        flow.started = true;
        if flow.finish < start_level {
            flow.finish = start_level;
            self.last_advance = None;
        }
    }

    /// Sets whether a known or new flow is backlogged.
    pub fn set_backlogged(&mut self, name: &str, backlogged: bool) {
        let before = self.flows.entry(name.into()).or_default().backlogged;
        if backlogged && !before {
            self.lift(name);
        }
        self.flows.get_mut(name).expect("it is known").backlogged = backlogged;
    }

    pub fn backlogged(&self) -> usize {
        self.flows.values().filter(|flow| flow.backlogged).count()
    }

    /// Virtual time waits no longer for what runs.
    pub fn begin_period(&mut self) {
        self.period += 1;
    }

    fn follows_finish(&self) -> bool {
        matches!(self.discipline, Discipline::Wfq | Discipline::RoundRobin)
    }

    /// Charges a flow and returns virtual time before and after. `uncontested`: set to the period and the cost if virtual time waits for the request.
    pub fn charge(
        &mut self,
        name: &str,
        cost: u64,
        weight: f64,
        bypasses: bool,
        uncontested: &mut Option<(u32, u64)>,
    ) -> (i128, i128) {
        if !self.flows.get(name).is_some_and(|flow| flow.backlogged) {
            self.lift(name);
        }
        let step = self.step(cost, weight);
        let waits = bypasses && self.backlogged() == 0 && self.follows_finish();
        let flow = self.flows.get_mut(name).expect("lifted");
        if flow.period != self.period {
            (flow.period, flow.uncontested) = (self.period, 0);
        }
        flow.finish += step;
        let (before, finish) = (self.now, flow.finish - flow.uncontested);
        if waits {
            flow.uncontested += step;
            *uncontested = Some((self.period, cost));
        }
        let last_advance = LastAdvance { flow: name.into(), step, now: before, served: self.served.clone() };
        match self.discipline {
            Discipline::Wfq | Discipline::RoundRobin => {
                self.last_advance = (finish > before).then_some(last_advance);
                self.now = before.max(finish);
            }
            Discipline::Vtc => {
                self.last_advance = Some(last_advance);
                self.served = Some(name.into());
            }
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => {}
        }
        (before, self.now)
    }

    /// `uncontested`: what [`Self::charge`] set it to.
    pub fn settle(
        &mut self,
        name: &str,
        cost: u64,
        weight: f64,
        real: Option<u64>,
        uncontested: Option<(u32, u64)>,
    ) {
        let (step, backlogged) = (self.step(cost, weight), self.backlogged());
        if let Some(advance) = self.last_advance.take_if(|advance| *advance.flow == *name)
            && real.is_none()
            && advance.step == step
        {
            (self.now, self.served) = (advance.now, advance.served);
        }
        let settled = real.map_or(0, |real| self.step(real, weight));
        let taken = uncontested.map_or(0, |(_, cost)| self.step(cost, weight));
        let flow = self.flows.get_mut(name).expect("the flow was charged");
        flow.finish += settled - step;
        if uncontested.is_some_and(|(period, _)| period == self.period) {
            flow.uncontested -= taken;
            let ended = flow.finish - flow.uncontested;
            if real.is_some() && backlogged == 0 && ended > self.now {
                (self.now, self.last_advance) = (ended, None);
            }
        }
    }

    /// For `vtc`: the identity is charged in another leaf. That counts for a known flow, while a flow is backlogged here.
    pub fn charge_elsewhere(&mut self, name: &str, cost: u64, weight: f64) {
        let step = self.step(cost, weight);
        let contested = self.flows.values().any(|flow| flow.backlogged);
        if let Some(flow) = self.flows.get_mut(name).filter(|_| contested) {
            flow.finish += step;
            flow.elsewhere += cost;
        }
    }

    /// For `vtc`: a request that was charged in another leaf is settled. A charge that did not count isn't corrected.
    pub fn settle_elsewhere(&mut self, name: &str, cost: u64, weight: f64, real: Option<u64>) {
        let step = self.step(cost, weight);
        let real = real.map_or(0, |real| self.step(real, weight));
        if let Some(flow) = self.flows.get_mut(name).filter(|flow| flow.elsewhere >= cost) {
            flow.elsewhere -= cost;
            flow.finish += real - step;
        }
    }

    /// The weight of a flow changes: what it is ahead or behind stays the same cost.
    pub fn reweigh(&mut self, name: &str, old: f64, new: f64) {
        if self.discipline == Discipline::Fifo || self.discipline == Discipline::Usage || old == new {
            return;
        }
        self.last_advance = None;
        self.begin_period();
        let level = self.start_level();
        let gains = |flow: &Flow| flow.backlogged || flow.finish > level;
        if let Some(flow) = self.flows.get_mut(name).filter(|flow| gains(flow)) {
            let ahead = (flow.finish - level) as f64;
            flow.finish = level + (ahead * old / new).round_ties_even() as i128;
        }
    }

    /// Forgets flows that aren't `used` and would not start earlier if they were new.
    pub fn drop_unused_flows(&mut self, used: impl Fn(&str) -> bool) {
        loop {
            let start_level = self.start_level();
            let idle = self.flows.iter().filter(|(name, _)| !used(name));
            let forgotten = idle.filter(|(_, flow)| flow.finish <= start_level).map(|(name, _)| name.clone());
            let Some(name) = forgotten.min_by_key(|name| self.flows[name].finish) else {
                return;
            };
            let flow = self.flows.remove(&name).expect("the flow exists");
            if flow.started {
                self.last_advance = None;
            }
            if self.served.as_ref() == Some(&name) {
                self.served = None;
                self.now = flow.finish;
            }
        }
    }
}
