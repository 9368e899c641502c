//! What an endpoint takes where a model of its server sets the gate: the time that an iteration may take.
//!
//! The engine knows of the model only these numbers. Source: QUEUEING.md's `auto`.

/// The budget of one endpoint. Milliseconds and tokens; finite and not negative, but where said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// What every iteration takes; above 0.
    pub alpha_ms: f64,
    /// Per token processed in it.
    pub beta_ms: f64,
    /// Per token resident during it.
    pub gamma_ms: f64,
    /// What an iteration may take, so that what decodes meets its target; may be infinite.
    pub iteration_ms_max: f64,
    /// What the first token of the newcomer may take from its dispatch, before the bias of such predictions; may be
    /// infinite.
    pub first_token_ms_max: f64,
    /// Observed over predicted time to the first token; above 0.
    pub ttft_bias: f64,
    /// Resident tokens at most; `None`: not known.
    pub kv_tokens_max: Option<u64>,
    /// Requests at most; `None`: not limited.
    pub requests_max: Option<u64>,
    /// Requests that fit, if all are like the mean of those served lately: shown, and what ceilings are parts of. It
    /// doesn't gate. At least 1.
    pub typical: u64,
    /// Requests per second that the endpoint serves at that; `None`: not known.
    pub rate: Option<f64>,
}
