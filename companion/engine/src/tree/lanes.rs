//! The lanes of a flow: its active requests that have endpoints of their own, one lane for each set of endpoints. A lane
//! keeps its order; a lane whose endpoints have no room doesn't hold up the others.
//!
//! The number of lanes is bounded, and so is the work that a change of the flow's head costs. Past the bound requests share
//! the last lane, whatever their endpoints.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::ids::JobId;
use crate::input::EndpointId;
use crate::limits::LANES_MAX;
use crate::pairing_heap::Root;

const SHARED: usize = LANES_MAX - 1;

#[derive(Debug)]
struct Lane {
    /// The endpoints of its requests; those of the shared lane have their own.
    eligible: Box<[EndpointId]>,
    requests: Root<JobId>,
}

impl Lane {
    const fn is_empty(&self) -> bool {
        self.requests.least().is_none()
    }
}

/// A lane keeps its number while it has requests.
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<Lane>);

impl Lanes {
    /// The lane of a request that may go to `eligible`. The caller adds it.
    pub(super) fn enter(&mut self, eligible: &[EndpointId]) -> u8 {
        let lane = self.find(eligible).unwrap_or_else(|| {
            let own = &self.0[..self.0.len().min(SHARED)];
            let free = own.iter().position(Lane::is_empty);
            free.unwrap_or(own.len())
        });
        if lane == self.0.len() {
            self.0.push(Lane { eligible: eligible.into(), requests: Root::default() });
        } else if self.0[lane].is_empty() {
            self.0[lane].eligible = eligible.into();
        }
        lane as u8
    }

    fn find(&self, eligible: &[EndpointId]) -> Option<usize> {
        let own = self.0.iter().take(SHARED);
        let is_same = |lane: &Lane| !lane.is_empty() && *lane.eligible == *eligible;
        own.enumerate().find_map(|(number, lane)| is_same(lane).then_some(number))
    }

    /// A request that may go to `eligible` would be the first of its lane.
    pub(super) fn is_empty_for(&self, eligible: &[EndpointId]) -> bool {
        let is_shared = || {
            let mut own = self.0.iter().take(SHARED);
            self.0.len() > SHARED && !self.0[SHARED].is_empty() && own.all(|lane| !lane.is_empty())
        };
        self.find(eligible).is_none() && !is_shared()
    }

    pub(super) fn root(&mut self, lane: u8) -> &mut Root<JobId> {
        &mut self.0[usize::from(lane)].requests
    }

    /// The requests of each lane.
    pub(super) fn roots(&self) -> impl Iterator<Item = &Root<JobId>> {
        self.0.iter().map(|lane| &lane.requests)
    }

    /// A request has left `lane`. Returns whether no lane has a request any more.
    pub(super) fn left(&self, lane: u8) -> bool {
        self.0[usize::from(lane)].is_empty() && self.0.iter().all(Lane::is_empty)
    }
}
