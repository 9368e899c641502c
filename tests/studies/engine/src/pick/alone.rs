//! The engine's classes without the rest of the engine: comparable with a queue that does nothing else.

use super::{Item, Subject, quantum};
use crate::tree::Classes;

pub(crate) struct Alone(Classes);

impl Subject for Alone {
    type Request = Item;

    const NAME: &'static str = "Penstock, classes alone";

    fn new(classes: usize) -> Self {
        Self(Classes::new((0..classes).map(quantum)))
    }

    fn prepare(&self, item: Item) -> Item {
        item
    }

    fn enqueue(&mut self, item: Item) {
        self.0.enqueue(item.id, item.class, item.cost);
    }

    fn pick(&mut self) -> u64 {
        self.0.pick().expect("a request waits")
    }

    fn end(&mut self, _id: u64) {}
}
