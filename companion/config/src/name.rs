//! Names in the document: which letters they have, and how long they may be.

/// Bytes of a host name, by DNS.
pub(crate) const HOST_BYTES_MAX: usize = 253;
/// Bytes of the names of pools, variants and taints, which are used in labels, paths and files.
pub(crate) const LABEL_BYTES_MAX: usize = 63;

/// Whether a name has 1 to `max` letters, digits, `-`, `_` or `.`.
pub(crate) fn is_name(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}
