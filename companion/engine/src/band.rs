//! The bands of the tree: those of requests, and one below for requests of flows that have used up their budgets.

use crate::input::Band;

/// A band of the tree, the first to be dispatched first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TreeBand {
    Critical,
    Default,
    Sheddable,
    /// Below all others, whatever their weights. It is shown as sheddable, shares the ceiling of sheddable requests, and is the first
    /// from which requests are displaced.
    Demoted,
}

impl TreeBand {
    /// The number of bands.
    pub(crate) const COUNT: usize = 4;
    /// All of them, in order.
    pub(crate) const ALL: [Self; Self::COUNT] =
        [Self::Critical, Self::Default, Self::Sheddable, Self::Demoted];

    /// The band of requests that it is, or is shown as.
    pub(crate) const fn shown(self) -> Band {
        match self {
            Self::Critical => Band::Critical,
            Self::Default => Band::Default,
            Self::Sheddable | Self::Demoted => Band::Sheddable,
        }
    }

    /// The bands that are shown as `band`.
    pub(crate) const fn shown_as(band: Band) -> &'static [Self] {
        match band {
            Band::Critical => &[Self::Critical],
            Band::Default => &[Self::Default],
            Band::Sheddable => &[Self::Sheddable, Self::Demoted],
        }
    }
}

impl From<Band> for TreeBand {
    fn from(band: Band) -> Self {
        match band {
            Band::Critical => Self::Critical,
            Band::Default => Self::Default,
            Band::Sheddable => Self::Sheddable,
        }
    }
}
