//! Whether a picker decides.

/// Whether gateways should ask this picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It decides.
    Ready,
    /// It takes requests, and they wait. A gateway that has a choice should ask another picker.
    Unready,
    /// Another companion leads, or none: new streams are refused. The leader decides about the requests of present streams: the workers
    /// open sessions with the leader's companion, as filters do.
    Standby,
}

/// Why a standby refuses a stream.
pub(crate) const STANDS_BY: &str = "another companion is the endpoint picker";
