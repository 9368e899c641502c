//! Charges of a child's owner in other leaves, under [`Rule::Vtc`]: an owner gains nothing by spreading its requests over
//! leaves.
//!
//! Such a charge counts here while the child exists and some child is runnable here, because then the owner competes here, or
//! is ahead here, and another owner waits for its turn. Without these conditions, the usage of an owner while no owner competed
//! with it would keep its requests here waiting long afterwards. A charge that was not counted is not corrected either: a
//! refund of it would be a credit.

use super::{Place, Rule, VirtualTimeScheduler};
use crate::cost::{Charge, VirtualTime};
use crate::ids::ChildId;

impl VirtualTimeScheduler {
    /// The owner of `child` is charged in another leaf. Returns whether the tag of a waiting child changed.
    pub(crate) fn charge_elsewhere(&mut self, child: ChildId, charge: &Charge) -> bool {
        if self.rule != Rule::Vtc || self.open.least().is_none() {
            return false;
        }
        let step = self.step(charge.cost, charge.weight);
        self.children[child].elsewhere += u128::from(charge.cost);
        self.shift_counter(child, step)
    }

    /// A request of the owner of `child` that was charged in another leaf cost `real`; `None`: nothing. Returns whether the
    /// tag of a waiting child changed.
    pub(crate) fn settle_elsewhere(&mut self, child: ChildId, charge: &Charge, real: Option<u64>) -> bool {
        let step = self.step(charge.cost, charge.weight);
        let (node, cost) = (&mut self.children[child], u128::from(charge.cost));
        if self.rule != Rule::Vtc || node.elsewhere < cost {
            return false;
        }
        node.elsewhere -= cost;
        let real = real.map_or(VirtualTime::default(), |real| self.step(real, charge.weight));
        real != step && self.shift_counter(child, real - step)
    }

    /// Moves the counter of `child`. Returns whether the tag of a waiting child changed.
    fn shift_counter(&mut self, child: ChildId, distance: VirtualTime) -> bool {
        self.shift(child, distance);
        self.update_idle(child);
        matches!(self.children[child].place, Place::In(_))
    }
}
