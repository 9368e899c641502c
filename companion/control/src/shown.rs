//! Which flows of a pool are shown by name, and what each was served: as many as there is room for, first come, until
//! they have been idle for so long that another may have the place.
//!
//! What isn't shown by name is `other`, and what `other` was served never falls: nothing is counted twice, and nothing
//! is moved from one name to another.

use core::time::Duration;

use hashbrown::HashMap;
use penstock_engine::Instant;

/// A flow that has nothing here for so long gives up its series.
pub(crate) const IDLE: Duration = Duration::from_secs(600);
/// Room is looked for no more often than this.
const SWEEP: Duration = Duration::from_secs(1);

/// The flows of one pool.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    flows: HashMap<Box<str>, Flow>,
    other_served: u64,
    swept: Instant,
}

#[derive(Debug)]
struct Flow {
    /// When it was last heard of.
    last: Instant,
    /// Settled cost.
    served: u64,
}

impl Shown {
    /// Something of a flow came. It is shown from now on if it is already, or if fewer than `most` are.
    pub(crate) fn came(&mut self, now: Instant, flow: &str, most: usize) {
        if let Some(known) = self.flows.get_mut(flow) {
            known.last = now;
            return;
        }
        if self.flows.len() >= most {
            self.sweep(now);
        }
        if self.flows.len() < most {
            let newcomer = Flow { last: now, served: 0 };
            self.flows.insert(flow.into(), newcomer);
        }
    }

    /// Something of a flow was served for `cost`; `private`: it isn't shown by name, whatever it is called.
    pub(crate) fn served(&mut self, now: Instant, flow: &str, private: bool, cost: u64) {
        match self.flows.get_mut(flow).filter(|_| !private) {
            Some(known) => {
                known.last = known.last.max(now);
                known.served = known.served.saturating_add(cost);
            }
            None => self.other_served = self.other_served.saturating_add(cost),
        }
    }

    /// Nobody has a place any more; what all others were served stays.
    pub(crate) fn clear(&mut self) {
        self.flows.clear();
    }

    /// How many have a place.
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// Those that are shown at `now`, with what they were served: who is idle isn't, unless it `is_busy`.
    pub(crate) fn at(&self, now: Instant, is_busy: impl Fn(&str) -> bool) -> Vec<(Box<str>, u64)> {
        let shown = self
            .flows
            .iter()
            .filter(|(name, flow)| now.since(flow.last) < IDLE || is_busy(name));
        shown.map(|(name, flow)| (name.clone(), flow.served)).collect()
    }

    /// What all others were served.
    pub(crate) const fn other_served(&self) -> u64 {
        self.other_served
    }

    fn sweep(&mut self, now: Instant) {
        if now.since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        // What it was served goes with it: if it comes back it begins anew.
        self.flows.retain(|_, flow| now.since(flow.last) < IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO.after(Duration::from_secs(seconds))
    }

    fn names(shown: &Shown, now: Instant) -> Vec<String> {
        let mut names: Vec<String> = shown
            .at(now, |_| false)
            .into_iter()
            .map(|(name, _)| name.into())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn the_first_have_a_place_until_they_are_idle_for_ten_minutes() {
        let mut shown = Shown::default();
        for (second, flow) in [(10, "a"), (20, "b"), (30, "c")] {
            shown.came(at(second), flow, 2);
        }
        assert_eq!(names(&shown, at(30)), ["a", "b"]);
        shown.served(at(400), "a", false, 7);
        assert_eq!(names(&shown, at(619)), ["a", "b"]);
        assert_eq!(names(&shown, at(620)), ["a"]);
        shown.came(at(621), "c", 2);
        assert_eq!(names(&shown, at(621)), ["a", "c"]);
        assert_eq!(names(&shown, at(999)), ["a", "c"]);
        assert_eq!(names(&shown, at(1_000)), ["c"]);
        assert_eq!(
            shown.at(at(1_000), |name| name == "a").len(),
            2,
            "one that waits isn't idle"
        );
    }

    #[test]
    fn what_is_served_is_counted_once_under_one_name() {
        let mut shown = Shown::default();
        shown.came(at(1), "a", 1);
        shown.came(at(1), "b", 1);
        shown.served(at(2), "a", false, 5);
        shown.served(at(2), "a", true, 100);
        shown.served(at(2), "b", false, 1_000);
        assert_eq!(shown.at(at(2), |_| false), [("a".into(), 5)]);
        assert_eq!(shown.other_served(), 1_100);
        shown.came(at(700), "b", 1);
        shown.served(at(700), "b", false, 1);
        assert_eq!(shown.at(at(700), |_| false), [("b".into(), 1)]);
        assert_eq!(
            shown.other_served(),
            1_100,
            "it never falls, and nothing moves into it"
        );
    }
}
