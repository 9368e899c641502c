//! Hardware, traffic, and the true sizes that follow from both.

use penstock_engine::input::Role;
use penstock_engine::units::Decimal;
use penstock_model::{Parameters, Sizing, Traffic, sizing, slo};
use penstock_model_server::Hardware;
use penstock_simulate::closed_loop::{Mix, ServerSpec};

/// The default multiplier of inferred targets.
pub(crate) const MULTIPLIER: f64 = 3.0;

/// Servers: name; alpha, beta and gamma in milliseconds.
pub(crate) const HARDWARE: [(&str, f64, f64, f64); 3] =
    [("fast", 5.0, 0.02, 0.0001), ("middle", 8.0, 0.05, 0.0005), ("slow", 20.0, 0.12, 0.0008)];

pub(crate) fn mixes() -> [Mix; 4] {
    [Mix::chat(), Mix::long(), Mix::code(), Mix::mixed()]
}

pub(crate) fn hardware(index: usize) -> Hardware {
    let (_, alpha_ms, beta_ms, gamma_ms) = HARDWARE[index];
    Hardware { alpha_ms, beta_ms, gamma_ms, ..Hardware::default() }
}

pub(crate) fn parameters(hardware: &Hardware) -> Parameters {
    Parameters { alpha_ms: hardware.alpha_ms, beta_ms: hardware.beta_ms, gamma_ms: hardware.gamma_ms }
}

pub(crate) fn server(hardware: Hardware, request_noise: f64) -> ServerSpec {
    ServerSpec {
        variant: "default".into(),
        hardware,
        weight: Decimal::whole(1),
        request_noise,
        role: Role::Both,
    }
}

/// n* and lambda* of a server with these parameters, at the targets inferred from them.
pub(crate) fn inferred_size(parameters: &Parameters, traffic: &Traffic) -> Sizing {
    let targets = slo::inferred(parameters, traffic, MULTIPLIER);
    sizing::size(parameters, traffic, &targets, Some(256.0), 1.0)
}
