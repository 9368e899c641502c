//! Whether a picker decides.

/// Whether gateways should ask this picker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    /// It decides.
    Ready,
    /// It takes requests, and they wait. A gateway that has a choice should ask another picker.
    Unready,
    /// Another companion leads, or none: nothing can be decided here. New streams are refused, and those that wait are ended, so that their
    /// gateways decide about their requests.
    Standby,
}

/// Why a standby ends a stream.
pub(crate) const STANDS_BY: &str = "another companion is the endpoint picker";
