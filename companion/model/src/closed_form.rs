//! The closed forms: the duration of an iteration, and the TTFT and ITL that follow from it.
//!
//! A server that batches takes T(n) = alpha + n*delta for an iteration with n requests in flight. delta is the work
//! that one request adds to an iteration, averaged over the o+1 iterations of its life. Source: the queueing model
//! analyzer of the llm-d workload variant autoscaler. The closed form of TTFT leaves out the rest of the running
//! iteration and the variance of the batch, so a real server's TTFT is 5 to 60 % higher; ITL is right within a few
//! per cent.

/// Costs of an iteration on one kind of server, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// alpha, the fixed cost of an iteration; finite, above 0.
    pub alpha_ms: f64,
    /// beta, the cost per token that an iteration processes; finite, 0 or more.
    pub beta_ms: f64,
    /// gamma, the cost per token in the KV cache; finite, 0 or more.
    pub gamma_ms: f64,
}

/// The load of a server, described by its average request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Requests per second; 0 or more.
    pub rate: f64,
    /// Prompt tokens; 0 or more.
    pub input: f64,
    /// Output tokens; 0 or more.
    pub output: f64,
}

/// The operating point of a server under its traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// delta, the work that one request adds to an iteration, in milliseconds.
    pub delta_ms: f64,
    /// rho, the demanded share of the capacity; at 1 or above there is no steady state.
    pub rho: f64,
    /// The steady state; `None` if there is none.
    pub steady: Option<Steady>,
}

/// A steady state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// T, the duration of an iteration, in milliseconds.
    pub iteration_ms: f64,
    /// Mean time to the first token, in milliseconds.
    pub ttft_ms: f64,
    /// Mean time between two tokens, in milliseconds.
    pub itl_ms: f64,
    /// n, the requests in flight.
    pub in_flight: f64,
}

impl Parameters {
    /// delta: the work that one request of this traffic adds to an iteration, in milliseconds.
    #[must_use]
    pub fn delta_ms(&self, traffic: &Traffic) -> f64 {
        let (i, o) = (traffic.input, traffic.output);
        self.beta_ms * (i + o) / (o + 1.0) + self.gamma_ms * (i + o / 2.0)
    }

    /// Time that a request's own prompt adds to its time to the first token, in milliseconds.
    #[must_use]
    pub fn own_prefill_ms(&self, traffic: &Traffic) -> f64 {
        (self.beta_ms + self.gamma_ms) * traffic.input
    }

    /// Time that a request's own tokens add to its mean time between tokens, in milliseconds.
    #[must_use]
    pub fn own_decode_ms(&self, traffic: &Traffic) -> f64 {
        self.beta_ms + self.gamma_ms * (traffic.input + (traffic.output + 1.0) / 2.0)
    }

    /// Whether all parameters are finite, alpha is above 0, and beta and gamma are 0 or more.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let Self { alpha_ms, beta_ms, gamma_ms } = *self;
        alpha_ms.is_finite()
            && beta_ms.is_finite()
            && gamma_ms.is_finite()
            && alpha_ms > 0.0
            && beta_ms >= 0.0
            && gamma_ms >= 0.0
    }

    /// T(n): the duration of an iteration with `in_flight` requests of this traffic, in milliseconds.
    #[must_use]
    pub fn iteration_ms(&self, traffic: &Traffic, in_flight: f64) -> f64 {
        self.alpha_ms + in_flight * self.delta_ms(traffic)
    }

    /// The operating point under this traffic.
    #[must_use]
    pub fn solve(&self, traffic: &Traffic) -> Operation {
        let delta_ms = self.delta_ms(traffic);
        let iterations_per_ms = traffic.rate / 1_000.0 * (traffic.output + 1.0);
        let rho = iterations_per_ms * delta_ms;
        // An overflow has no steady state either.
        let rho = if rho.is_nan() { f64::INFINITY } else { rho };
        let steady = (rho < 1.0).then(|| {
            let iteration_ms = self.alpha_ms / (1.0 - rho);
            Steady {
                iteration_ms,
                ttft_ms: iteration_ms + self.own_prefill_ms(traffic),
                itl_ms: iteration_ms + self.own_decode_ms(traffic),
                in_flight: iterations_per_ms * iteration_ms,
            }
        });
        Operation { delta_ms, rho, steady }
    }
}
