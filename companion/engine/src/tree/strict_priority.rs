//! A strict cascade: of the children that can go, the first. Nothing is owed to those after it.

use crate::cost::Charge;

use super::node::{ChildId, Head, Node, Receipt};

/// Children are numbered from 0, most important first, below 64.
#[derive(Debug, Default)]
pub(super) struct StrictPriority {
    able: u64,
}

impl Node for StrictPriority {
    fn enqueue(&mut self, child: ChildId, _head: &Head) {
        self.able |= 1 << child;
    }

    fn pick(&self) -> Option<ChildId> {
        (self.able != 0).then(|| self.able.trailing_zeros())
    }

    fn block(&mut self, child: ChildId) {
        self.able &= !(1 << child);
    }

    fn remove(&mut self, child: ChildId) {
        self.able &= !(1 << child);
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
    use super::super::{Arrival, LaneId};
    use super::*;

    #[test]
    fn the_first_that_can_go_does() {
        let head = Head {
            class_cost: 1,
            cost: 1,
            model: 0,
            lane: LaneId::ANY,
            open: true,
            arrival: Arrival::default(),
        };
        let mut cascade = StrictPriority::default();
        assert_eq!(cascade.pick(), None);
        cascade.enqueue(2, &head);
        cascade.enqueue(1, &head);
        assert_eq!(cascade.pick(), Some(1));
        cascade.remove(1);
        assert_eq!(cascade.pick(), Some(2));
        cascade.block(2);
        assert_eq!(cascade.pick(), None);
    }
}
