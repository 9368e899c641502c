//! What the leader leaves in the store for its successor.

/// An Envoy that the leader has sessions with.
///
/// As JSON it is an array of the three numbers, because a record may have thousands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(from = "(u64, u32, u64)", into = "(u64, u32, u64)")
)]
pub struct KnownEnvoy {
    /// The random id of the Envoy process, as in its Hello messages.
    pub envoy: u64,
    /// The number of its root contexts with a session.
    pub contexts: u32,
    /// The wrapping sum of the random numbers that identify them: a new leader waits for these root contexts, not for any others
    /// of the Envoy.
    pub digest: u64,
}

impl From<(u64, u32, u64)> for KnownEnvoy {
    fn from((envoy, contexts, digest): (u64, u32, u64)) -> Self {
        Self { envoy, contexts, digest }
    }
}

impl From<KnownEnvoy> for (u64, u32, u64) {
    fn from(known: KnownEnvoy) -> Self {
        (known.envoy, known.contexts, known.digest)
    }
}

/// The endpoint pickers with sessions at a leader. Each of a picker's workers counts as an Envoy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pickers {
    /// The leader's own, which ends with it.
    pub own: Vec<KnownEnvoy>,
    /// Those of earlier leaders that have requests left.
    pub earlier: Vec<KnownEnvoy>,
}

/// What the leader leaves in the store for its successor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Record {
    /// The leader's number: greater than that of any leader before. Filters refuse commands of lower terms.
    pub term: u64,
    /// Where the leader listens for filters, as `IP:PORT`; empty after a release.
    #[cfg_attr(feature = "serde", serde(default))]
    pub leader: String,
    /// The Envoys that had sessions with the leader, at most [`ENVOYS_MAX`](crate::ENVOYS_MAX). A successor counts their
    /// requests before it grants.
    #[cfg_attr(feature = "serde", serde(default))]
    pub envoys: Vec<KnownEnvoy>,
    /// The endpoint pickers that had sessions with the leader and outlive it, those of earlier leaders, at most
    /// [`PICKERS_MAX`](crate::PICKERS_MAX), and its own if it leaves. A successor counts their requests, too, but they prove nothing about who leads.
    #[cfg_attr(feature = "serde", serde(default))]
    pub pickers: Vec<KnownEnvoy>,
    /// The leader gave the lease up and grants nothing any more.
    #[cfg_attr(feature = "serde", serde(default))]
    pub released: bool,
    /// The address of the last leader, until the takeover is complete. The last leader may still be in charge: the
    /// filters decide that by following the new leader or staying.
    #[cfg_attr(feature = "serde", serde(default))]
    pub taking_over_from: Option<String>,
}

impl Record {
    /// No other leader can be in charge: this one released the lease, or had no Envoys.
    pub(crate) fn is_vacant(&self) -> bool {
        self.released || self.envoys.is_empty()
    }

    /// What a leader leaves that gives up its lease. If the takeover wasn't complete, that is the last leader's record: the
    /// filters may have stayed with that leader.
    pub(crate) fn given_up(&self, term: u64) -> Self {
        Self {
            term: self.term.max(term),
            leader: self.taking_over_from.clone().unwrap_or_default(),
            envoys: self.envoys.clone(),
            pickers: self.pickers.clone(),
            released: self.taking_over_from.is_none(),
            taking_over_from: None,
        }
    }
}
