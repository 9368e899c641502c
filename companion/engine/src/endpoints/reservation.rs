//! Endpoints that are reserved for the blocked head under [`crate::policy::Gate::Auto`].

use super::Endpoints;
use crate::ids::EndpointIndex;
use crate::input::EndpointId;

impl Endpoints {
    /// Reserves `id`: it takes no request until [`Self::release_reserved`].
    pub(crate) fn reserve(&mut self, id: EndpointId) {
        if let Some(&index) = self.indices.get(&id) {
            self.reserved.push(id);
            self.set_reserved(index, true);
        }
    }

    /// Ends one reservation. Returns whether there was one.
    pub(crate) fn release_reserved(&mut self) -> bool {
        let Some(id) = self.reserved.pop() else { return false };
        if let Some(&index) = self.indices.get(&id) {
            self.set_reserved(index, false);
        }
        true
    }

    /// Keeps the tie, because nothing else about the endpoint changes.
    fn set_reserved(&mut self, index: EndpointIndex, reserved: bool) {
        self.dirty.add(index);
        let endpoint = &mut self.all[index];
        let had_room = endpoint.has_room();
        endpoint.reserved = reserved;
        if had_room != endpoint.has_room() {
            self.changed.push_back(endpoint.id);
        }
        self.update_with_room(index);
    }
}
