//! The simulated servers and the targets.

use penstock_engine::input::Role;
use penstock_engine::units::Decimal;
use penstock_model::Targets;
use penstock_model_server::Hardware;
use penstock_simulate::closed_loop::ServerSpec;
use penstock_simulate::goal::Goal;

/// The servers of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fleet {
    /// Four equal servers.
    Equal,
    /// Two of them, and two that are half as fast.
    Mixed,
}

impl Fleet {
    pub(crate) const ALL: [Self; 2] = [Self::Equal, Self::Mixed];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Equal => "equal servers",
            Self::Mixed => "two kinds of servers",
        }
    }

    /// The servers. Each request decodes at a pace of its own.
    pub(crate) fn servers(self) -> Vec<ServerSpec> {
        let server = |variant: &str, times: f64| {
            let hardware = Hardware::default();
            ServerSpec {
                variant: variant.into(),
                hardware: Hardware {
                    alpha_ms: times * hardware.alpha_ms,
                    beta_ms: times * hardware.beta_ms,
                    gamma_ms: times * hardware.gamma_ms,
                    ..hardware
                },
                weight: Decimal::whole(1),
                request_noise: 0.05,
                role: Role::Both,
            }
        };
        let (fast, slow) = (server("fast", 1.0), server("slow", 2.0));
        match self {
            Self::Equal => vec![fast; 4],
            Self::Mixed => vec![fast.clone(), fast, slow.clone(), slow],
        }
    }
}

/// The targets of every request: 2 s to the first token, 50 ms between tokens.
pub(crate) const TARGETS: Targets = Targets { ttft_ms: Some(2_000.0), itl_ms: Some(50.0) };

/// The targets as the measure of goodput.
pub(crate) const GOAL: Goal = Goal::Targets(TARGETS);
