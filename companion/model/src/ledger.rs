//! What runs at one endpoint over time, and what that was to each request: C, the decodes beside it and the prompts
//! that were computed meanwhile, and M, the tokens that were resident.

/// A request that has ended, as its server saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// When its last token came.
    pub at_ms: f64,
    /// Tokens of its prompt that were computed.
    pub input: f64,
    /// Tokens of its output.
    pub output: f64,
    /// From its dispatch to its first token.
    pub ttft_ms: f64,
    /// The time to the first token that was predicted at its dispatch; `None`: nothing was.
    pub ttft_predicted_ms: Option<f64>,
    /// Its mean time between tokens, and the load it decoded under; `None`: it had one token, or no stream.
    pub decode: Option<Decode>,
}

/// The decoding of one request: `itl_ms = alpha + beta * batch + gamma * resident`, and noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Mean time between its tokens.
    pub itl_ms: f64,
    /// C: decodes in flight, itself included, and prompt tokens computed meanwhile for each of its decodes.
    pub batch: f64,
    /// M: resident tokens, its own included.
    pub resident: f64,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// Its first token; `None`: there was none, or it isn't known.
    pub first_ms: Option<f64>,
    /// Its last token.
    pub last_ms: Option<f64>,
    /// It came token by token.
    pub streamed: bool,
    /// Tokens of its prompt that were computed; `None`: as expected.
    pub input: Option<f64>,
    /// Tokens of its output; `None`: nobody counted.
    pub output: Option<f64>,
}

/// What runs at one endpoint.
#[derive(Clone, Debug, Default)]
pub struct Ledger {}

impl Ledger {
    /// `id` was sent there: with so many prompt tokens to compute, `cached` ones beside, and an expected output. Its
    /// first token is expected after `ttft_ms`.
    pub fn dispatched(
        &mut self,
        _now_ms: f64,
        _id: u64,
        _input: f64,
        _cached: f64,
        _output: f64,
        _ttft_ms: Option<f64>,
    ) {
    }

    /// `id` has ended there.
    pub fn ended(&mut self, _now_ms: f64, _id: u64, _end: &End) -> Option<Observation> {
        None
    }

    /// `id` never ran there, or nobody knows what became of it.
    pub fn dropped(&mut self, _now_ms: f64, _id: u64) {}
}
