//! The engine's classes alone: its sources of deficit round robin and of the order in a queue, which its public
//! interface doesn't offer, with the least code around them.

#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/drr.rs"]
mod drr;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/lanes.rs"]
mod lanes;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/node.rs"]
mod node;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/order.rs"]
mod order;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/queued.rs"]
mod queued;
#[rustfmt::skip]
#[path = "../../../../companion/engine/src/tree/ring.rs"]
mod ring;

use penstock_engine::Instant;

use self::drr::{Drr, Quantum};
use self::node::{Node, Unit};
use self::order::{Order, Queue};
use self::queued::Queued;
use crate::arrival::Arrival;
use crate::cost::Charge;
use crate::ids::{ChildId, ClassId, EligibilityId, FlowId, Id, JobId, ModelId};
use crate::policy::CostUnit;

/// Classes, and a queue for each.
pub(crate) struct Classes {
    deficits: Drr<usize>,
    order: Order,
    queues: Vec<Queue>,
    children: Vec<ChildId>,
    /// Ids of the waiting requests, by slot.
    ids: Vec<u64>,
    free: Vec<JobId>,
}

impl Classes {
    /// Creates one class for each quantum.
    pub(crate) fn new(quanta: impl Iterator<Item = u64>) -> Self {
        let mut deficits = Drr::fixed(Unit::Class);
        let children: Vec<ChildId> =
            (0..).zip(quanta).map(|(class, quantum)| deficits.add(class, Quantum::whole(quantum))).collect();
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
        let job = self.free.pop().unwrap_or_else(|| {
            self.ids.push(0);
            JobId::from_index(self.ids.len() - 1)
        });
        self.ids[job.index()] = id;
        let queued = Queued {
            flow: FlowId::MIN,
            class: ClassId::from_index(class),
            eligibility: EligibilityId::ANY,
            cost,
            class_cost: cost,
            model: ModelId::FIRST,
            prompt: cost,
            cached: 0,
            bytes: 0,
            suspended: false,
            strict: 0,
            score: id,
            arrival: Arrival { at: Instant::from_nanos(id), sequence: id },
        };
        if self.order.insert(&mut self.queues[class], job, &queued, None) {
            let head = self.order.head_of(job);
            self.deficits.enqueue(self.children[class], &head);
        }
    }

    /// Removes the next request and returns its id.
    pub(crate) fn pick(&mut self) -> Option<u64> {
        let child = self.deficits.pick()?;
        let class = self.deficits.owner(child);
        let job = Order::first_without_lanes(&self.queues[class])?;
        let head = self.order.head_of(job);
        let charge = Charge {
            cost: head.cost,
            class_cost: head.class_cost,
            weight: 1.0,
            unit: CostUnit::Tokens,
            model: head.model,
        };
        self.deficits.serve(child, &charge);
        self.order.remove(&mut self.queues[class], job, false);
        self.free.push(job);
        match Order::first_without_lanes(&self.queues[class]) {
            Some(next) => self.deficits.enqueue(child, &self.order.head_of(next)),
            None => self.deficits.remove(child),
        }
        Some(self.ids[job.index()])
    }
}
