//! Typed indices: one type for each table of the engine.
//!
//! An id is the position of an entry in its [`crate::slab::Slab`] plus one, so that `Option` of an id takes four bytes.
//! Ids of removed entries are used again.

use core::num::NonZeroU32;

/// The index of an entry in a table of one kind.
pub(crate) trait Id: Copy + Eq {
    /// The least id.
    const MIN: Self;
    /// An id past those of every table.
    const MAX: Self;

    /// The id of the entry at `index`.
    ///
    /// # Panics
    /// If `index` is 2^32 - 1 or more. Every table has a limit far below.
    fn from_index(index: usize) -> Self;

    /// The position of the entry in its table.
    fn index(self) -> usize;

    /// The place of the entry in a vector by id, whose first place stays unused: this saves a subtraction in every
    /// access.
    fn slot(self) -> usize;
}

fn position(index: usize) -> NonZeroU32 {
    let index = u32::try_from(index).expect("invariant: tables have limits far below 2^32");
    NonZeroU32::MIN.saturating_add(index)
}

macro_rules! ids {
    ($($(#[$documentation:meta])* $name:ident;)+) => {$(
        $(#[$documentation])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(NonZeroU32);

        impl Id for $name {
            const MIN: Self = Self(NonZeroU32::MIN);
            const MAX: Self = Self(NonZeroU32::MAX);

            fn from_index(index: usize) -> Self {
                Self(position(index))
            }

            fn index(self) -> usize {
                self.0.get() as usize - 1
            }

            fn slot(self) -> usize {
                self.0.get() as usize
            }
        }
    )+};
}

ids! {
    /// A request inside the engine, from its registration to its end.
    JobId;
    /// The state of a request that runs.
    RunningId;
    /// An endpoint's entry in the engine. [`crate::EndpointId`] is the owner's name for the endpoint.
    EndpointIndex;
    /// A fairness identity, over all bands, models and classes.
    IdentityId;
    /// An identity's queue in one leaf of the tree.
    FlowId;
    /// The flows of one band, model and class.
    LeafId;
    /// The classes of one model in one band.
    ModelTreeId;
    /// A policy class, by its position in the ring.
    ClassId;
    /// A model's name.
    ModelId;
    /// A set of endpoints that some requests may go to.
    EligibilityId;
    /// A child of one level of the tree, as that level numbers its children.
    ChildId;
    /// A queue of a virtual time scheduler.
    QueueId;
}

impl EligibilityId {
    /// Every endpoint of the pool. This set always exists.
    pub(crate) const ANY: Self = Self(NonZeroU32::MIN);
}

impl ModelId {
    /// Stands for all models together where they share one tree.
    pub(crate) const FIRST: Self = Self(NonZeroU32::MIN);
}

impl ChildId {
    /// The only child of a level that has one.
    pub(crate) const ONLY: Self = Self(NonZeroU32::MIN);

    /// The child that stands for `class` in a ring of classes.
    pub(crate) const fn of_class(class: ClassId) -> Self {
        Self(class.0)
    }

    /// The class that this child of a ring of classes stands for.
    pub(crate) const fn class(self) -> ClassId {
        ClassId(self.0)
    }
}
