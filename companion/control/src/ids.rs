//! Identifiers of connections, root contexts, Envoys, pools and requests.

use penstock_engine::RequestId;

/// One gRPC stream, as the control's owner numbers it. A number is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// 128 random bits that name one root context of a filter. All streams of the root context carry the same epoch.
///
/// In two halves, because a `u128` would align every request to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Epoch {
    pub(crate) high: u64,
    pub(crate) low: u64,
}

impl Epoch {
    pub(crate) const fn new(high: u64, low: u64) -> Self {
        Self { high, low }
    }

    pub(crate) const fn from_bits(bits: u128) -> Self {
        Self::new((bits >> 64) as u64, bits as u64)
    }
}

/// A request as its filter names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RequestKey {
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u64,
}

/// A credit, as a message names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CreditId {
    pub(crate) epoch: Epoch,
    pub(crate) number: u64,
}

/// One Envoy process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum EnvoyId {
    /// The number that the filters of the process share.
    Process(u64),
    /// A root context without such a number in its Hello. It counts as a separate Envoy.
    RootContext(Epoch),
}

impl EnvoyId {
    /// From the `envoy` field of a Hello, where 0 means that the filter doesn't know its process.
    pub(crate) const fn new(process: u64, epoch: Epoch) -> Self {
        match process {
            0 => Self::RootContext(epoch),
            process => Self::Process(process),
        }
    }

    /// The number of the process, as [`Self::new`] takes it.
    pub(crate) const fn process(self) -> u64 {
        match self {
            Self::RootContext(_) => 0,
            Self::Process(process) => process,
        }
    }
}

/// The filter that holds a request, as far as its pool needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) envoy: EnvoyId,
    /// The filter queues a request again that no server took: its Envoy has a requeue listener or restarts the stream.
    pub(crate) can_requeue: bool,
}

/// The way by which requests come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    /// A filter inside Envoy.
    #[default]
    Filter,
    /// A gateway asks the companion as the endpoint picker of an InferencePool.
    Picker,
}

impl Door {
    /// The value of metrics' label `door`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Picker => "picker",
        }
    }
}

/// Where a session comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A filter, which can follow another leader.
    Filter,
    /// The endpoint picker of this companion.
    OwnPicker,
    /// The endpoint picker of an earlier leader that has requests left.
    EarlierPicker,
}

impl Origin {
    pub(crate) const fn door(self) -> Door {
        match self {
            Self::Filter => Door::Filter,
            Self::OwnPicker | Self::EarlierPicker => Door::Picker,
        }
    }
}

impl From<Door> for Origin {
    /// That of a stream before its Hello.
    fn from(door: Door) -> Self {
        match door {
            Door::Filter => Self::Filter,
            Door::Picker => Self::OwnPicker,
        }
    }
}

/// A pool. It keeps its id over every reload until its last request has ended; later another pool may get the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolId(pub(crate) u32);

impl PoolId {
    pub(crate) fn new(index: usize) -> Self {
        Self(u32::try_from(index).expect("invariant: pools are fewer than 2^32"))
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a request is: its pool, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) pool: PoolId,
    pub(crate) id: RequestId,
}
