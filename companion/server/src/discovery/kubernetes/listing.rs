//! The objects of a Kubernetes watch, by name.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::runtime::watcher::Event;

/// The objects that a watch has listed. Those of the last complete list count until the next one is complete.
#[derive(Debug)]
pub(super) struct Listing<T> {
    objects: BTreeMap<String, T>,
    /// A new list in progress, which replaces `objects` when it is complete.
    next: Option<BTreeMap<String, T>>,
    was_complete: bool,
}

impl<T> Default for Listing<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), next: None, was_complete: false }
    }
}

impl<T> Listing<T> {
    /// Applies an event. `read` gets an object and what it was before; `None`: the object doesn't count.
    pub(super) fn handle<K: ResourceExt>(
        &mut self,
        event: Event<K>,
        read: impl FnOnce(K, Option<&T>) -> Option<T>,
    ) {
        match event {
            Event::Init => self.next = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                let name = object.name_any();
                let value = read(object, self.objects.get(&name));
                put(self.next.get_or_insert_default(), name, value);
            }
            Event::InitDone => {
                self.objects = self.next.take().unwrap_or_default();
                self.was_complete = true;
            }
            Event::Apply(object) => {
                let name = object.name_any();
                let value = read(object, self.objects.get(&name));
                put(&mut self.objects, name, value);
            }
            Event::Delete(object) => drop(self.objects.remove(&object.name_any())),
        }
    }

    /// All objects are known, and no new list is in progress.
    pub(super) const fn is_complete(&self) -> bool {
        self.was_complete && self.next.is_none()
    }

    /// The objects of the last complete list, with later changes.
    pub(super) const fn objects(&self) -> &BTreeMap<String, T> {
        &self.objects
    }
}

fn put<T>(objects: &mut BTreeMap<String, T>, name: String, value: Option<T>) {
    match value {
        Some(value) => drop(objects.insert(name, value)),
        None => drop(objects.remove(&name)),
    }
}
