//! Limits of an identity's own: the most requests that it may run, and a budget that holds it.
//!
//! An identity at such a limit is blocked, whatever room endpoints have.

use super::Tree;
use super::identities::Identity;
use crate::band::TreeBand;
use crate::endpoints::Endpoints;
use crate::ids::FlowId;
use crate::input::Band;

impl Tree {
    /// Whether the identity of `flow` runs the most requests that it may, or is held.
    pub(crate) fn is_at_limit(&self, flow: FlowId) -> bool {
        self.is_identity_at_limit(self.identity_of(flow))
    }

    /// Whether `identity` runs the most requests that it may, or is held.
    pub(crate) fn is_identity_at_limit(&self, identity: &Identity) -> bool {
        let limit = self.config.max_in_flight;
        limit.is_some_and(|limit| identity.in_flight >= limit) || self.config.holds && identity.held
    }

    /// Requests that are shown as waiting in `shown`, of identities that run the most requests that they may, or are held. In time
    /// proportional to the number of identities, if these have limits.
    pub(crate) fn waiting_at_limits(&self, shown: Band) -> u64 {
        if self.config.max_in_flight.is_none() && !self.config.holds {
            return 0;
        }
        let limited = self.identities().filter(|identity| self.is_identity_at_limit(identity));
        let of_band = |identity: &Identity| {
            let bands = TreeBand::shown_as(shown).iter();
            bands.map(|&band| identity.bands[band as usize].waiting.requests).sum::<u64>()
        };
        limited.map(of_band).sum()
    }

    /// The budget of the identity of `flow` holds it, or no longer.
    pub(crate) fn set_held(&mut self, flow: FlowId, held: bool, endpoints: &Endpoints) {
        let identity = self.flows[flow].identity;
        self.identities.get_mut(identity).held = held;
        self.update_heads(identity, endpoints);
    }
}
