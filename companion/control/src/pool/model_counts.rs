//! How many requests of each model wait and run in a pool, counted at each change.
//!
//! A model that has been idle for [`IDLE`] is no longer shown. Clients choose model names, so the number of idle models has
//! a limit: beyond it a model is forgotten with its last request.

use core::time::Duration;

use hashbrown::HashMap;
use penstock_engine::{Instant, ModelName};

use super::visible_flows::IDLE;
use crate::limits::IDLE_MODELS_MAX;
use crate::status::ModelStatus;

/// The least time between two searches for idle models.
const SWEEP: Duration = Duration::from_secs(1);

/// The counts of one pool.
#[derive(Debug, Default)]
pub(super) struct ModelCounts {
    models: HashMap<ModelName, ModelCount>,
    swept: Instant,
}

#[derive(Debug)]
struct ModelCount {
    waiting: u64,
    running: u64,
    /// The arrival of its last request.
    last: Instant,
}

impl ModelCount {
    const fn count_mut(&mut self, waits: bool) -> &mut u64 {
        if waits { &mut self.waiting } else { &mut self.running }
    }

    const fn is_idle(&self) -> bool {
        self.waiting == 0 && self.running == 0
    }

    fn is_shown(&self, now: Instant) -> bool {
        !self.is_idle() || now.since(self.last) < IDLE
    }
}

impl ModelCounts {
    /// A request arrives, which waits or runs.
    pub(super) fn open(&mut self, now: Instant, model: &ModelName, waits: bool) {
        if let Some(count) = self.models.get_mut(model) {
            count.last = now;
            *count.count_mut(waits) += 1;
            return;
        }
        if self.models.len() >= IDLE_MODELS_MAX && now.since(self.swept) >= SWEEP {
            self.swept = now;
            self.models.retain(|_, count| count.is_shown(now));
        }
        let mut count = ModelCount { waiting: 0, running: 0, last: now };
        *count.count_mut(waits) = 1;
        self.models.insert(model.clone(), count);
    }

    /// A request has come and ended.
    pub(super) fn passed(&mut self, now: Instant, model: &ModelName) {
        match self.models.get_mut(model) {
            Some(count) => count.last = now,
            None => {
                self.open(now, model, false);
                self.close(model, false);
            }
        }
    }

    /// A request waited or ran, and now waits or runs.
    pub(super) fn change(&mut self, model: &ModelName, waited: bool, waits: bool) {
        if let Some(count) = self.models.get_mut(model).filter(|_| waited != waits) {
            *count.count_mut(waited) -= 1;
            *count.count_mut(waits) += 1;
        }
    }

    /// A request that waited or ran has ended.
    pub(super) fn close(&mut self, model: &ModelName, waited: bool) {
        let is_full = self.models.len() > IDLE_MODELS_MAX;
        let Some(count) = self.models.get_mut(model) else {
            return;
        };
        *count.count_mut(waited) -= 1;
        if is_full && count.is_idle() {
            self.models.remove(model);
        }
    }

    /// The models that have requests or had some lately, by name.
    pub(super) fn status(&self, now: Instant) -> Vec<ModelStatus> {
        let shown = self.models.iter().filter(|(_, count)| count.is_shown(now));
        let mut models: Vec<_> = shown
            .map(|(model, count)| ModelStatus {
                model: model.clone(),
                waiting: count.waiting,
                running: count.running,
            })
            .collect();
        models.sort_unstable_by(|one, other| one.model.cmp(&other.model));
        models
    }

    /// The requests of `model` that wait, and those that run.
    pub(super) fn of(&self, model: &ModelName) -> (u64, u64) {
        self.models.get(model).map_or((0, 0), |count| (count.waiting, count.running))
    }

    /// All requests that wait, and all that run.
    pub(super) fn in_all(&self) -> (u64, u64) {
        let counts = self.models.values();
        counts.fold((0, 0), |(waiting, running), count| (waiting + count.waiting, running + count.running))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(seconds))
    }

    fn shown(counts: &ModelCounts, now: Instant) -> Vec<(String, u64, u64)> {
        let models = counts.status(now).into_iter();
        models
            .map(|model| {
                (format!("{}>{}", model.model.requested, model.model.target), model.waiting, model.running)
            })
            .collect()
    }

    #[test]
    fn each_change_moves_one_request() {
        let mut counts = ModelCounts::default();
        let (plain, rewritten) = (ModelName::from("b"), ModelName::new("b", "a"));
        counts.open(at(1), &plain, true);
        counts.open(at(1), &rewritten, true);
        counts.open(at(1), &rewritten, false);
        counts.change(&rewritten, true, false);
        counts.change(&rewritten, false, false);
        assert_eq!(shown(&counts, at(1)), [("b>a".into(), 0, 2), ("b>b".into(), 1, 0)]);
        counts.change(&rewritten, false, true);
        counts.close(&rewritten, false);
        counts.close(&plain, true);
        assert_eq!(shown(&counts, at(1)), [("b>a".into(), 1, 0), ("b>b".into(), 0, 0)]);
        assert_eq!((counts.of(&rewritten), counts.in_all()), ((1, 0), (1, 0)));
    }

    #[test]
    fn a_model_is_shown_until_it_has_been_idle_for_ten_minutes() {
        let mut counts = ModelCounts::default();
        counts.open(at(10), &"busy".into(), true);
        counts.open(at(10), &"idle".into(), true);
        counts.close(&"idle".into(), true);
        assert_eq!(shown(&counts, at(609)).len(), 2);
        assert_eq!(shown(&counts, at(610)), [("busy>busy".into(), 1, 0)]);
    }

    #[test]
    fn idle_models_have_a_limit_and_busy_ones_are_always_counted() {
        let mut counts = ModelCounts::default();
        let name = |number: usize| ModelName::from(format!("m{number}").as_str());
        for number in 0..=IDLE_MODELS_MAX {
            counts.open(at(1), &name(number), true);
        }
        for number in 0..=IDLE_MODELS_MAX {
            counts.close(&name(number), true);
        }
        assert_eq!(shown(&counts, at(1)).len(), IDLE_MODELS_MAX);
        // The names that have been idle for long make room.
        counts.open(at(1_000), &name(IDLE_MODELS_MAX + 1), true);
        assert_eq!(counts.models.len(), 1);
    }
}
