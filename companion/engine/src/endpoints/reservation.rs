//! Endpoints that are reserved for the blocked head under [`crate::policy::Gate::Auto`].

use super::{Changed, Endpoints};
use crate::ids::EndpointIndex;
use crate::input::EndpointId;

impl Endpoints {
    /// Reserves `id`: it takes no request until [`Self::release_reserved`].
    pub(crate) fn reserve(&mut self, id: EndpointId) -> Option<Changed> {
        let &index = self.indices.get(&id)?;
        self.reserved.push(id);
        self.set_reserved(index, true)
    }

    /// Ends one reservation; `None` if there is none.
    pub(crate) fn release_reserved(&mut self) -> Option<Option<Changed>> {
        let id = self.reserved.pop()?;
        let index = self.indices.get(&id).copied();
        Some(index.and_then(|index| self.set_reserved(index, false)))
    }

    /// Keeps the tie, because nothing else about the endpoint changes.
    fn set_reserved(&mut self, index: EndpointIndex, reserved: bool) -> Option<Changed> {
        self.dirty.add(index);
        let endpoint = &mut self.all[index];
        let had_room = endpoint.has_room();
        endpoint.reserved = reserved;
        let changed = Changed { id: endpoint.id, had_room, has_room: endpoint.has_room(), busyness: false };
        self.update_with_room(index);
        changed.noticeable()
    }
}
