//! Which flows a client of the HTTP API may see by name.

/// Which identities of flows are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlowVisibility {
    /// Identities that came in a header, up to the limit.
    Public,
    /// All, because the request carries the admin token.
    All,
}
