//! The disciplines by which flows share.

/// The rule by which flows share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize), serde(rename_all = "snake_case"))]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema), schemars(inline))]
pub enum Discipline {
    /// Weighted fair queueing by virtual finish times, corrected by the tokens that were really used. What a flow runs because it came
    /// before all others counts.
    Wfq,
    /// The flow with the least usage per weight within `usage.window` is first. Usage of a model counts in all bands and
    /// classes of the pool. Requests without an identity are last.
    Usage,
    /// Virtual token counters: like `usage` without a window. A flow that was idle in a band and class is lifted to the
    /// least of the flows that wait there. What its tenant is served in other bands and classes counts as well, while
    /// another flow waits there.
    Vtc,
    /// Deficit round robin, with a quantum of 1024 tokens (or 1 request) per weight.
    Drr,
    /// One request each in turn: weighted fair queueing where every request costs 1.
    RoundRobin,
    /// First come, first served over all flows.
    Fifo,
}

impl Discipline {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Wfq, Self::Usage, Self::Vtc, Self::Drr, Self::RoundRobin, Self::Fifo];

    /// The discipline's name in a configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wfq => "wfq",
            Self::Usage => "usage",
            Self::Vtc => "vtc",
            Self::Drr => "drr",
            Self::RoundRobin => "round_robin",
            Self::Fifo => "fifo",
        }
    }
}
