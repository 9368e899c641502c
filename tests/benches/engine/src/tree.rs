//! The engine's classes alone: its sources of deficit round robin and of the order in a queue, which its public
//! interface doesn't offer, with the least code around them.

#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/agenda.rs"]
mod agenda;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/drr.rs"]
mod drr;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/node.rs"]
mod node;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/order.rs"]
mod order;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/ring.rs"]
mod ring;

use penstock_engine::Instant;

use crate::cost::Charge;
use crate::policy::CostUnit;

use drr::{Drr, Quantum};
use node::{Node, Unit};
use order::{Order, Queue};

/// Arrival time and order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) sequence: u64,
}

/// The endpoints that a request may go to: any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LaneId(u32);

impl LaneId {
    pub(crate) const ANY: Self = Self(0);
}

/// A request as the queue orders it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    lane: LaneId,
    cost: u64,
    class_cost: u64,
    model: u32,
    suspended: bool,
    strict: u8,
    score: u64,
    arrival: Arrival,
}

/// Classes, and a queue for each.
pub(crate) struct Classes {
    deficits: Drr,
    order: Order,
    queues: Vec<Queue>,
    children: Vec<u32>,
    /// Ids of the waiting requests, by slot.
    ids: Vec<u64>,
    free: Vec<u32>,
}

impl Classes {
    /// Creates one class for each quantum.
    pub(crate) fn new(quanta: impl Iterator<Item = u64>) -> Self {
        let mut deficits = Drr::fixed(Unit::Class);
        let children: Vec<u32> = (0..)
            .zip(quanta)
            .map(|(class, quantum)| deficits.add(class, Quantum::whole(quantum)))
            .collect();
        Self {
            deficits,
            order: Order::default(),
            queues: children.iter().map(|_| Queue::default()).collect(),
            children,
            ids: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Enqueues a request; each class is first come, first served.
    pub(crate) fn enqueue(&mut self, id: u64, class: usize, cost: u64) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.ids.push(0);
            u32::try_from(self.ids.len() - 1).expect("few wait")
        });
        self.ids[number as usize] = id;
        let queued = Queued {
            lane: LaneId::ANY,
            cost,
            class_cost: cost,
            model: 0,
            suspended: false,
            strict: 0,
            score: id,
            arrival: Arrival {
                at: Instant::from_nanos(id),
                sequence: id,
            },
        };
        if self.order.insert(&mut self.queues[class], number, &queued) {
            let head = self.order.head_of(number, |_| true);
            self.deficits.enqueue(self.children[class], &head);
        }
    }

    /// Removes the next request and returns its id.
    pub(crate) fn pick(&mut self) -> Option<u64> {
        let child = self.deficits.pick()?;
        let class = self.deficits.owner(child) as usize;
        let number = self.queues[class].head()?;
        let head = self.order.head_of(number, |_| true);
        let charge = Charge {
            cost: head.cost,
            class_cost: head.class_cost,
            weight: 1.0,
            unit: CostUnit::Tokens,
            model: head.model,
        };
        self.deficits.serve(child, &charge);
        self.order.remove(&mut self.queues[class], number, false);
        self.free.push(number);
        match self.queues[class].head() {
            Some(next) => self.deficits.enqueue(child, &self.order.head_of(next, |_| true)),
            None => self.deficits.remove(child),
        }
        Some(self.ids[number as usize])
    }
}
