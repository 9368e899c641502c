//! One endpoint in a pool that separates prefill from decoding.
//!
//! An endpoint for prompts takes a prompt of a request that another endpoint answers as far as its bound allows. Of whole requests it takes
//! fewer: these stay for the length of an answer, and would leave no place for prompts. While no endpoint that decodes is ready, it is
//! an endpoint like any other.

use super::Endpoint;
use crate::input::Role;
use crate::load::Load;
use crate::policy::Gate;

impl Endpoint {
    /// It answers requests.
    pub(crate) const fn decodes(&self) -> bool {
        !matches!(self.role, Role::Prefill)
    }

    /// It computes prompts for others, and whole requests only where these have no room.
    pub(crate) const fn prefills_for_others(&self) -> bool {
        self.prefills_for_others
    }

    /// `any_decodes`: an endpoint that answers requests is ready.
    pub(crate) const fn update_role(&mut self, any_decodes: bool) {
        self.prefills_for_others = any_decodes && !self.decodes();
    }

    /// It takes one prompt more of a request that another endpoint answers; under an allowance, one that fits.
    pub(crate) fn has_prefill_room(&self) -> bool {
        self.prefills_for_others && self.has_place()
    }

    /// A prompt with this load fits beside what runs here, at an endpoint that [has room for one](Self::has_prefill_room).
    pub(crate) fn takes_prefill(&self, load: &Load, gate: Gate) -> bool {
        let allowance = self.allowance_in(gate);
        allowance.is_none_or(|allowance| allowance.rank(&self.in_flight(), load, self.tie).is_some())
    }
}
