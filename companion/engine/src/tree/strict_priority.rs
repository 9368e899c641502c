//! Strict priority: the first runnable child is next. Later children are owed nothing.

use super::node::{Head, Node, Receipt, bit};
use crate::cost::Charge;
use crate::ids::{ChildId, Id};

/// At most 64 children, most important first.
#[derive(Debug, Default)]
pub(super) struct StrictPriority {
    /// A bit per child.
    runnable: u64,
}

impl Node for StrictPriority {
    fn enqueue(&mut self, child: ChildId, _head: &Head) {
        self.runnable |= bit(child);
    }

    fn pick(&self) -> Option<ChildId> {
        (self.runnable != 0).then(|| ChildId::from_index(self.runnable.trailing_zeros() as usize))
    }

    fn block(&mut self, child: ChildId) {
        self.runnable &= !bit(child);
    }

    fn remove(&mut self, child: ChildId) {
        self.runnable &= !bit(child);
    }

    fn serve(&mut self, _child: ChildId, _charge: &Charge) -> Receipt {
        Receipt::default()
    }

    fn charge(&mut self, _child: ChildId, _charge: &Charge) -> Receipt {
        Receipt::default()
    }

    fn settle(&mut self, _child: ChildId, _charge: &Charge, _receipt: Receipt, _real: Option<u64>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_runnable_child_is_picked() {
        let head = Head { class_cost: 1, cost: 1, ..Head::NONE };
        let [_, first, second] = [0, 1, 2].map(ChildId::from_index);
        let mut node = StrictPriority::default();
        assert_eq!(node.pick(), None);
        node.enqueue(second, &head);
        node.enqueue(first, &head);
        assert_eq!(node.pick(), Some(first));
        node.remove(first);
        assert_eq!(node.pick(), Some(second));
        node.block(second);
        assert_eq!(node.pick(), None);
    }
}
