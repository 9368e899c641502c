//! How much a pool's servers work on at a time: `stock`, as the engine's gate.
//!
//! The bounds are exact decimals. What has no meaning beside the watermark that is chosen is refused, rather than left
//! without an effect.

use penstock_engine::policy as engine;
use penstock_engine::units::Decimal;

use crate::{Broken, raw};

/// The bounds of a server's stock around a watermark.
pub(crate) struct Bounds {
    lower: Decimal,
    upper: Decimal,
    /// Is it between them?
    pub(crate) holds_watermark: bool,
}

/// lower = watermark*(1-deviation), upper = watermark*(1+deviation), or the two as given. `None`: more than a decimal
/// holds.
pub(crate) fn bounds(stock: &raw::Stock, watermark: u64) -> Option<Bounds> {
    let deviation = stock.deviation.0.0.billionths();
    let scaled = |by: u128| Some(Decimal::from_billionths(u128::from(watermark).checked_mul(by)?));
    let lower = match stock.lower_bound_per_backend {
        Some(given) => given.0,
        None => scaled(Decimal::ONE.saturating_sub(deviation))?,
    };
    let upper = match stock.upper_bound_per_backend {
        Some(given) => given.0,
        None => scaled(Decimal::ONE.checked_add(deviation)?)?,
    };
    Some(Bounds {
        lower,
        upper,
        holds_watermark: (lower..=upper).contains(&Decimal::whole(watermark)),
    })
}

/// Checks `stock`; `path` is the pool's.
pub(super) fn convert(stock: &raw::Stock, path: &str) -> Result<engine::Gate, Broken> {
    let deviation = stock.deviation.0.0.billionths();
    if deviation == 0 || deviation >= Decimal::ONE {
        return Err(Broken(
            format!("{path}.stock.deviation"),
            "a deviation is above 0 and below 1".into(),
        ));
    }
    let unit = match stock.unit {
        raw::StockUnit::Requests => engine::StockUnit::Requests,
        raw::StockUnit::Tokens => engine::StockUnit::Tokens,
    };
    let watermark = match (stock.watermark_per_backend, unit) {
        (Some(raw::Watermark::None), _) => return Ok(engine::Gate::Open),
        (Some(raw::Watermark::Auto), engine::StockUnit::Requests) => return auto(stock, path),
        (Some(raw::Watermark::Fixed(watermark)), _) => watermark,
        (None, engine::StockUnit::Requests) => raw::WATERMARK,
        (Some(raw::Watermark::Auto) | None, engine::StockUnit::Tokens) => {
            return Err(Broken(
                format!("{path}.stock.unit"),
                "tokens need a watermark_per_backend: a whole number of tokens that one server works on"
                    .into(),
            ));
        }
    };
    // The bound that was given is wrong; of two, the lower.
    let broken = || {
        let bound = match (stock.lower_bound_per_backend, stock.upper_bound_per_backend) {
            (None, Some(_)) => ".upper_bound_per_backend",
            (Some(lower), _) if lower.0 <= Decimal::whole(watermark) => ".upper_bound_per_backend",
            (Some(_), _) => ".lower_bound_per_backend",
            (None, None) => "",
        };
        Broken(
            format!("{path}.stock{bound}"),
            "0 <= lower_bound_per_backend <= watermark_per_backend <= upper_bound_per_backend is needed"
                .into(),
        )
    };
    let Bounds {
        lower,
        upper,
        holds_watermark,
    } = bounds(stock, watermark).ok_or_else(broken)?;
    let given = stock.watermark_per_backend.is_some();
    if lower > upper || given && !holds_watermark {
        return Err(broken());
    }
    let watermark = Decimal::whole(watermark);
    Ok(engine::Gate::Bounded {
        unit,
        lower,
        upper,
        watermark: watermark.clamp(lower, upper),
    })
}

fn auto(stock: &raw::Stock, path: &str) -> Result<engine::Gate, Broken> {
    for (key, bound) in [
        ("lower_bound_per_backend", stock.lower_bound_per_backend),
        ("upper_bound_per_backend", stock.upper_bound_per_backend),
    ] {
        if bound.is_some() {
            return Err(Broken(
                format!("{path}.stock.{key}"),
                "under watermark_per_backend: auto there are no bounds to give: leave it out, or give a number as watermark"
                    .into(),
            ));
        }
    }
    Ok(engine::Gate::Auto {
        initial: Decimal::whole(stock.auto_initial.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn gate(stock: &str) -> Result<engine::Gate, String> {
        let text = format!(
            "pools:\n- name: a\n  endpoints: {{static: ['127.0.0.1:8001']}}\n  stock:\n    deviation: 0.5\n    {stock}"
        );
        Config::parse(&text, "f.yaml")
            .map(|config| config.pools[0].policy.gate)
            .map_err(|why| why.to_string())
    }

    #[test]
    fn auto_begins_with_a_count() {
        let initial = |of| {
            Ok(engine::Gate::Auto {
                initial: Decimal::whole(of),
            })
        };
        assert_eq!(gate("watermark_per_backend: auto"), initial(8));
        assert_eq!(
            gate("watermark_per_backend: auto\n    auto_initial: 3"),
            initial(3)
        );
        assert!(matches!(
            gate("auto_initial: 3"),
            Ok(engine::Gate::Bounded { watermark, .. }) if watermark == Decimal::whole(2)
        ));
        assert_eq!(
            gate("watermark_per_backend: auto\n    lower_bound_per_backend: null"),
            initial(8)
        );
    }

    #[test]
    fn what_is_out_of_range_names_line_path_and_what_is_allowed() {
        for (stock, line, key, word) in [
            ("unit: tokens", 6, "stock.unit", "watermark_per_backend"),
            (
                "unit: tokens\n    watermark_per_backend: auto",
                6,
                "stock.unit",
                "whole number of tokens",
            ),
            ("unit: bytes", 6, "stock.unit", "tokens"),
            (
                "watermark_per_backend: 0",
                6,
                "stock.watermark_per_backend",
                "at least 1",
            ),
            (
                "watermark_per_backend: automatic",
                6,
                "stock.watermark_per_backend",
                "auto",
            ),
            ("auto_initial: 0", 6, "stock.auto_initial", "at least 1"),
            ("auto_initial: none", 6, "stock.auto_initial", ""),
            (
                "watermark_per_backend: auto\n    upper_bound_per_backend: 9",
                7,
                "stock.upper_bound_per_backend",
                "leave it out",
            ),
        ] {
            let message = gate(stock).expect_err(stock);
            assert!(
                message.starts_with(&format!("f.yaml:{line}: pools[0].{key}")),
                "{stock}: {message}"
            );
            assert!(message.contains(word), "{stock}: {message}");
        }
    }
}
