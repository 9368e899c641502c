//! The bands of requests, and those of the tree: the same, and one below for requests of flows that have used up their budgets.

/// The criticality of a request, most critical first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
pub enum Band {
    /// Granted before requests of the other levels.
    Critical,
    /// The level of a request without a priority.
    #[default]
    Default,
    /// The first to be rejected or displaced.
    Sheddable,
}

impl Band {
    /// The bands, most critical first.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Default, Self::Sheddable];

    /// The name for clients, in the configuration, metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Default => "default",
            Self::Sheddable => "sheddable",
        }
    }
}

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
