//! What the model learns from: one completed request, as its model server processed it.

/// A completed request, as its model server processed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Time of the last token.
    pub at_ms: f64,
    /// Prompt tokens that the server computed.
    pub input: f64,
    /// Output tokens.
    pub output: f64,
    /// Time from dispatch to the first token; 0 if the time of the first token is not known.
    pub ttft_ms: f64,
    /// Time to the first token that was predicted at dispatch. `None` if nothing was predicted, or if the time of the
    /// first token is not known.
    pub ttft_predicted_ms: Option<f64>,
    /// Mean time between tokens and the load during decoding. `None` if the request had fewer than two tokens, or its
    /// response was not streamed.
    pub decode: Option<Decode>,
}

/// The decoding of one request, which the model explains as `itl_ms = alpha + beta * batch + gamma * resident` and
/// noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Mean time between the tokens of this request.
    pub itl_ms: f64,
    /// C: mean number of decodes in flight, this request included, plus the prompt tokens computed meanwhile for each
    /// of its decodes.
    pub batch: f64,
    /// The prompt tokens in `batch`.
    pub prompts: f64,
    /// M: mean resident tokens in the KV cache, those of this request included.
    pub resident: f64,
    /// Variation of the neighbours while this request decoded: the variance over time of their number, the covariance
    /// of their number with their resident tokens, and the variance of their resident tokens.
    pub neighbor_covariance: [f64; 3],
}

/// How a request ended. Times are of the same clock as `now_ms`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Completion {
    /// Time of the first token; `None` if there was none, or its time is not known.
    pub first_ms: Option<f64>,
    /// Time of the last token.
    pub last_ms: Option<f64>,
    /// The response arrived token by token.
    pub streamed: bool,
    /// Prompt tokens that the server computed; `None`: as expected at dispatch.
    pub input: Option<f64>,
    /// Prompt tokens that the server had cached; `None`: as expected at dispatch.
    pub cached: Option<f64>,
    /// Output tokens; `None` if they were not counted.
    pub output: Option<f64>,
}
