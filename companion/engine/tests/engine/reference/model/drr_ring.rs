//! Deficit round robin by visits, one step at a time, as the rule for classes defines it.

/// Deficits are in quarters of a cost unit, because the weights in tests are quarters.
pub const QUARTERS: u64 = 4;

#[derive(Clone, Debug)]
struct Child<K> {
    key: K,
    quantum: u64,
    deficit: u64,
    in_visit: bool,
    /// Requests wait in this child; `period` counts how often that began.
    backlogged: bool,
    period: u64,
}

/// Deficit taken for a dispatched request, and the period of the child in which it was taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    period: u64,
    amount: u64,
}

#[derive(Clone, Debug)]
pub struct DrrRing<K> {
    /// An empty child leaves the ring, and joins again behind the cursor.
    joining: bool,
    children: Vec<Child<K>>,
    cursor: usize,
    periods: u64,
}

impl<K: Clone + PartialEq> DrrRing<K> {
    /// A ring in which every child has a fixed place, with its quantum in quarters.
    pub fn fixed(children: impl IntoIterator<Item = (K, u64)>) -> Self {
        let child = |(key, quantum)| Child {
            key,
            quantum,
            deficit: 0,
            in_visit: false,
            backlogged: false,
            period: 0,
        };
        Self { joining: false, children: children.into_iter().map(child).collect(), cursor: 0, periods: 0 }
    }

    pub const fn joining() -> Self {
        Self { joining: true, children: Vec::new(), cursor: 0, periods: 0 }
    }

    fn find(&self, key: &K) -> Option<usize> {
        self.children.iter().position(|child| child.key == *key)
    }

    /// Sets the children with waiting requests and their quanta. At most one of them is new.
    pub fn set_waiting(&mut self, waiting: &[(K, u64)]) {
        for index in (0..self.children.len()).rev() {
            let child = &mut self.children[index];
            if child.backlogged && !waiting.iter().any(|(key, _)| *key == child.key) {
                self.empty(index);
            }
        }
        for (key, quantum) in waiting {
            match self.find(key) {
                Some(index) => {
                    let child = &mut self.children[index];
                    child.quantum = *quantum;
                    if !child.backlogged {
                        child.backlogged = true;
                        self.periods += 1;
                        child.period = self.periods;
                    }
                }
                None => self.join(key.clone(), *quantum),
            }
        }
    }

    /// The quantum of a child changes, whether requests wait there or not. A smaller one counts in a present visit, too.
    pub fn set_quantum(&mut self, key: &K, quantum: u64) {
        if let Some(index) = self.find(key) {
            let child = &mut self.children[index];
            if child.in_visit && quantum < child.quantum {
                child.deficit = child.deficit.saturating_sub(child.quantum - quantum);
            }
            child.quantum = quantum;
        }
    }

    pub fn keys(&self) -> Vec<K> {
        self.children.iter().map(|child| child.key.clone()).collect()
    }

    fn join(&mut self, key: K, quantum: u64) {
        assert!(self.joining, "a fixed ring has all children");
        self.periods += 1;
        let child =
            Child { key, quantum, deficit: 0, in_visit: false, backlogged: true, period: self.periods };
        self.children.insert(self.cursor, child);
        self.cursor = (self.cursor + 1) % self.children.len();
    }

    fn empty(&mut self, index: usize) {
        if self.joining {
            self.children.remove(index);
            self.cursor -= usize::from(index < self.cursor);
            if self.cursor == self.children.len() {
                self.cursor = 0;
            }
            return;
        }
        let child = &mut self.children[index];
        child.backlogged = false;
        child.in_visit = false;
        child.deficit = 0;
        if index == self.cursor {
            self.advance();
        }
    }

    const fn advance(&mut self) {
        self.cursor = (self.cursor + 1) % self.children.len();
    }

    /// The child that goes next; `head` returns the cost of its first request, or `None` if it can't go.
    pub fn pick(&mut self, head: impl Fn(&K) -> Option<u64>) -> Option<K> {
        let heads: Vec<Option<u64>> = self.children.iter().map(|child| head(&child.key)).collect();
        if heads.iter().all(Option::is_none) {
            return None;
        }
        loop {
            let child = &mut self.children[self.cursor];
            if let Some(cost) = heads[self.cursor] {
                if !child.in_visit {
                    child.in_visit = true;
                    child.deficit += child.quantum;
                }
                if cost * QUARTERS <= child.deficit {
                    return Some(child.key.clone());
                }
                child.in_visit = false;
            }
            self.advance();
        }
    }

    /// Charges a child that was picked or bypassed the queue; takes at most its deficit.
    pub fn take(&mut self, key: &K, cost: u64) -> Taken {
        let Some(index) = self.find(key).filter(|&index| self.children[index].backlogged) else {
            return Taken::default();
        };
        let child = &mut self.children[index];
        let amount = child.deficit.min(cost * QUARTERS);
        child.deficit -= amount;
        Taken { period: child.period, amount }
    }

    pub fn refund(&mut self, key: &K, taken: Taken) {
        if let Some(index) = self.find(key) {
            let child = &mut self.children[index];
            if child.backlogged && child.period == taken.period {
                child.deficit += taken.amount;
            }
        }
    }

    /// The deficit in whole units.
    pub fn deficit(&self, key: &K) -> u64 {
        self.find(key).map_or(0, |index| self.children[index].deficit / QUARTERS)
    }
}
