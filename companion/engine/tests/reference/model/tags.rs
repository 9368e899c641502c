//! The rules that go by a tag, by definition. Virtual time is in units that all weights of the tests divide.

use std::collections::BTreeMap;

use penstock_engine::policy::Discipline;

const ONE: i128 = 720_720 * 1_024;

/// How far `cost` moves one of `weight`, which is a number of quarters.
pub fn step(cost: u128, weight: f64) -> i128 {
    cost as i128 * ONE * 4 / (weight * 4.0) as i128
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    pub finish: i128,
    /// Something of it waits and its own limit lets it go.
    pub backlogged: bool,
}

/// How virtual time was moved last, as long as nobody has started there.
#[derive(Clone, Debug)]
struct Moved {
    by: Box<str>,
    step: i128,
    now: i128,
    served: Option<Box<str>>,
}

/// The flows of one leaf.
#[derive(Clone, Debug)]
pub struct Tags {
    discipline: Discipline,
    now: i128,
    /// Of counters: who went last.
    served: Option<Box<str>>,
    moved: Option<Moved>,
    pub flows: BTreeMap<Box<str>, Flow>,
}

impl Tags {
    pub const fn new(discipline: Discipline) -> Self {
        Self {
            discipline,
            now: 0,
            served: None,
            moved: None,
            flows: BTreeMap::new(),
        }
    }

    /// Where who begins to wait starts, at least.
    fn level(&self) -> i128 {
        match self.discipline {
            Discipline::Wfq | Discipline::RoundRobin => self.now,
            Discipline::Vtc => {
                let able = self.flows.values().filter(|flow| flow.backlogged);
                let last = || self.served.as_ref().map(|name| self.flows[name].finish);
                able.map(|flow| flow.finish)
                    .min()
                    .or_else(last)
                    .unwrap_or(self.now)
            }
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => 0,
        }
    }

    fn step(&self, cost: u64, weight: f64) -> i128 {
        match self.discipline {
            Discipline::Wfq | Discipline::Vtc => step(cost.into(), weight),
            Discipline::RoundRobin => step(1, weight),
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => 0,
        }
    }

    /// What a head of that cost waits for.
    pub fn tag(&self, name: &str, cost: u64, weight: f64) -> i128 {
        match self.discipline {
            Discipline::Wfq | Discipline::RoundRobin => self.flows[name].finish + self.step(cost, weight),
            Discipline::Vtc => self.flows[name].finish,
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => 0,
        }
    }

    fn lift(&mut self, name: &str) {
        let level = self.level();
        let flow = self.flows.entry(name.into()).or_default();
        if flow.finish < level {
            flow.finish = level;
            self.moved = None;
        }
    }

    pub fn set_backlogged(&mut self, name: &str, backlogged: bool) {
        let before = self.flows.get(name).is_some_and(|flow| flow.backlogged);
        if backlogged && !before {
            self.lift(name);
        }
        if backlogged != before {
            self.flows.entry(name.into()).or_default().backlogged = backlogged;
        }
    }

    /// Returns virtual time before and after.
    pub fn charge(&mut self, name: &str, cost: u64, weight: f64) -> (i128, i128) {
        if !self.flows.get(name).is_some_and(|flow| flow.backlogged) {
            self.lift(name);
        }
        let step = self.step(cost, weight);
        let flow = self.flows.get_mut(name).expect("lifted");
        flow.finish += step;
        let (before, finish) = (self.now, flow.finish);
        let moved = Moved {
            by: name.into(),
            step,
            now: before,
            served: self.served.clone(),
        };
        match self.discipline {
            Discipline::Wfq | Discipline::RoundRobin => {
                self.moved = (finish > before).then_some(moved);
                self.now = before.max(finish);
            }
            Discipline::Vtc => {
                self.moved = Some(moved);
                self.served = Some(name.into());
            }
            Discipline::Usage | Discipline::Drr | Discipline::Fifo => {}
        }
        (before, self.now)
    }

    pub fn settle(&mut self, name: &str, cost: u64, weight: f64, real: Option<u64>) {
        let step = self.step(cost, weight);
        if let Some(last) = self.moved.take_if(|last| *last.by == *name)
            && real.is_none()
            && last.step == step
        {
            (self.now, self.served) = (last.now, last.served);
        }
        let real = real.map_or(0, |real| self.step(real, weight));
        self.flows.get_mut(name).expect("it ran").finish += real - step;
    }

    /// Who isn't `used` and would start no earlier anew is forgotten.
    pub fn forget(&mut self, used: impl Fn(&str) -> bool) {
        loop {
            let level = self.level();
            let idle = self.flows.iter().filter(|(name, _)| !used(name));
            let gone = idle
                .filter(|(_, flow)| flow.finish <= level)
                .map(|(name, _)| name.clone());
            let Some(name) = gone.min_by_key(|name| self.flows[name].finish) else {
                return;
            };
            let flow = self.flows.remove(&name).expect("just found");
            self.moved = None;
            if self.served.as_ref() == Some(&name) {
                self.served = None;
                self.now = flow.finish;
            }
        }
    }
}
