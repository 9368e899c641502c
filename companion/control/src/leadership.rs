//! Which of several companions leads, as this one knows it.

use core::time::Duration;
use hashbrown::{HashMap, HashSet};
use penstock_election::{KnownEnvoy, Role, RoleStatus};
use penstock_engine::Instant;

use crate::ids::{Epoch, Origin};

/// What a control knows about the leader.
#[derive(Debug)]
pub(crate) struct Leadership {
    /// The role of this companion, its term, and the leader that a standby knows.
    pub(crate) known: RoleStatus,
    /// While it has the lease.
    pub(crate) lease: Option<Lease>,
    /// While it is taking over.
    pub(crate) takeover: Option<Takeover>,
    /// The root contexts that asked for the leader when this companion became it, and haven't sent their Hello.
    pub(crate) awaited: HashSet<Epoch>,
    /// When it stops to wait for them.
    pub(crate) awaited_until: Instant,
    /// The Envoys with sessions here have changed since the last [`crate::Control::take_known_envoys`].
    pub(crate) has_changed: bool,
}

impl Leadership {
    /// `term`: that of a companion without replicas.
    pub(crate) fn new(is_replicated: bool, term: u64) -> Self {
        let alone = RoleStatus { role: Role::Alone, term, leader: None };
        Self {
            known: if is_replicated { RoleStatus::default() } else { alone },
            lease: None,
            takeover: None,
            awaited: HashSet::new(),
            awaited_until: Instant::ZERO,
            has_changed: false,
        }
    }

    /// Sessions may be established here.
    pub(crate) fn leads(&self) -> bool {
        self.known.is_leader() && self.may_grant()
    }

    /// The lease hasn't lapsed.
    pub(crate) fn may_grant(&self) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.lapsed.is_none())
    }

    /// This companion may go on without the store of leases.
    pub(crate) fn is_without_store(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.recorded.is_some())
    }

    /// The store of leases doesn't answer, and its record doesn't name this Envoy: another companion could lead without the Envoy's filters,
    /// while this one grants to them. That doesn't hold for an
    /// endpoint picker: its workers ask the companion of their own process first, whoever leads.
    pub(crate) fn is_unrecorded(&self, origin: Origin, envoy: u64) -> bool {
        let recorded = self.lease.as_ref().and_then(|lease| lease.recorded.as_ref());
        origin == Origin::Filter && recorded.is_some_and(|recorded| !recorded.contains(&envoy))
    }

    /// The lease must be checked at this time or later; `None`: there is none to check.
    pub(crate) fn lease_check_at(&self) -> Option<Instant> {
        let lease = self.lease.as_ref()?;
        lease.lapsed.is_none().then_some(lease.check_at)
    }
}

/// The right to grant.
#[derive(Debug)]
pub(crate) struct Lease {
    /// When it must be checked whether this companion may still grant.
    pub(crate) check_at: Instant,
    /// The Envoys that the record in the store of leases names, while the store doesn't answer. `None`: the store answers, or its record may
    /// differ from the filters here.
    pub(crate) recorded: Option<HashSet<u64>>,
    /// When a filter first left this companion while the store didn't answer. It, or another filter of its Envoy, may ask another companion.
    pub(crate) left_at: Option<Instant>,
    /// Why this companion may not grant; `None`: it may.
    pub(crate) lapsed: Option<Lapse>,
}

/// Why a leader stops granting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lapse {
    /// The lease wasn't renewed in time, and it isn't known whether the store is reachable.
    Expired,
    /// The store is unreachable, and a filter may follow another leader.
    Unfollowed,
    /// A filter follows a later leader.
    Superseded,
}

/// The time between getting the lease and leading.
#[derive(Debug)]
pub(crate) struct Takeover {
    pub(crate) since: Instant,
    /// The last leader's Envoys.
    pub(crate) known: HashMap<u64, KnownEnvoy>,
    /// The endpoint pickers that outlive it. They are waited for, too, but prove nothing about who leads.
    pub(crate) pickers: HashMap<u64, KnownEnvoy>,
    /// Sum of the root contexts of both.
    pub(crate) known_contexts: usize,
    /// The last leader has ended for certain.
    pub(crate) is_last_leader_gone: bool,
    /// Where the last leader listened for filters.
    pub(crate) last_leader: Option<String>,
}

impl Takeover {
    /// `known`: the last leader's Envoys. `pickers`: the endpoint pickers that outlive it.
    pub(crate) fn new(
        now: Instant,
        known: &[KnownEnvoy],
        pickers: &[KnownEnvoy],
        is_last_leader_gone: bool,
    ) -> Self {
        let by_process = |known: &[KnownEnvoy]| known.iter().map(|known| (known.envoy, *known)).collect();
        let contexts = known.iter().chain(pickers).map(|known| known.contexts as usize);
        Self {
            since: now,
            known_contexts: contexts.sum(),
            known: by_process(known),
            pickers: by_process(pickers),
            is_last_leader_gone,
            last_leader: None,
        }
    }
}

/// A filter that doesn't know the leader.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) epoch: Epoch,
    /// The id of its Envoy process; 0: unknown.
    pub(crate) envoy: u64,
    pub(crate) since: Instant,
    /// The filter was told to send its Hello here.
    pub(crate) is_called: bool,
}

/// How long a leader without a store of leases takes a filter for its own since the last proof.
pub(crate) const FOLLOWED_MAX: Duration = Duration::from_secs(5);
/// How long filters of the last leader must be here, if others are missing, before this companion leads: longer than the last
/// leader would take them for its own, even if its clock is slower by a tenth.
pub(crate) const TAKEOVER_WAIT: Duration = Duration::from_secs(6);
/// How long filters that the last leader didn't know must ask before this companion leads, if all others are missing.
pub(crate) const STRANGERS_WAIT: Duration = Duration::from_secs(30);
/// How long an endpoint picker must ask, if no filter does, before this companion leads although the record names filters.
/// They may be gone for ever; or the last leader is cut off from the store, goes on with them, and both grant from then on.
pub(crate) const PICKER_WAIT: Duration = Duration::from_secs(120);
/// The longest wait for the Hellos of all filters that asked for the leader.
pub(crate) const HELLOS_WAIT_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(FOLLOWED_MAX.as_millis() * 11 < TAKEOVER_WAIT.as_millis() * 10);
const _: () = assert!(TAKEOVER_WAIT.as_millis() > penstock_wire::limits::SESSION_GRACE.as_millis());
// Filters stay at a companion that takes over for longer, even if their clocks are faster by a tenth.
const _: () = assert!(TAKEOVER_WAIT.as_millis() * 11 < penstock_wire::limits::TAKEOVER_WAIT.as_millis() * 10);
const _: () = assert!(TAKEOVER_WAIT.as_millis() < STRANGERS_WAIT.as_millis());
const _: () = assert!(STRANGERS_WAIT.as_millis() < PICKER_WAIT.as_millis());
