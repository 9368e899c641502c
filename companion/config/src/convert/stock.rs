//! `stock`: limits of the work that runs at a pool's endpoints, as the engine's gate.
//!
//! Bounds are exact decimals. A key that has no effect beside the chosen watermark is an error.

use penstock_engine::policy::{Gate, StockUnit};
use penstock_engine::units::Decimal;

use crate::error::Violation;
use crate::raw;

/// Checks `stock`; `path` is the pool's.
pub(super) fn convert(stock: &raw::Stock, path: &str) -> Result<Gate, Violation> {
    let deviation = stock.deviation.0.0.billionths();
    if deviation == 0 || deviation >= Decimal::ONE {
        return Err(Violation::new(format!("{path}.stock.deviation"), "a deviation is above 0 and below 1"));
    }
    match (stock.watermark_per_backend, stock.unit) {
        (Some(raw::Watermark::None), _) => Ok(Gate::Open),
        (Some(raw::Watermark::Auto), StockUnit::Requests) => convert_auto(stock, path),
        (Some(raw::Watermark::Fixed(watermark)), _) => convert_bounded(stock, watermark, path),
        (None, StockUnit::Requests) => convert_bounded(stock, raw::WATERMARK, path),
        (Some(raw::Watermark::Auto) | None, StockUnit::Tokens) => Err(Violation::new(
            format!("{path}.stock.unit"),
            "tokens need a watermark_per_backend: a whole number of tokens that one endpoint works on at a time",
        )),
    }
}

fn convert_bounded(stock: &raw::Stock, watermark: u64, path: &str) -> Result<Gate, Violation> {
    let violation = || {
        // The error is at the bound that was given. If both were, the lower bound is taken to be wrong if it can be.
        let bound = match (stock.lower_bound_per_backend, stock.upper_bound_per_backend) {
            (None, Some(_)) => ".upper_bound_per_backend",
            (Some(lower), _) if lower.0 <= Decimal::whole(watermark) => ".upper_bound_per_backend",
            (Some(_), _) => ".lower_bound_per_backend",
            (None, None) => "",
        };
        Violation::new(
            format!("{path}.stock{bound}"),
            "0 <= lower_bound_per_backend <= watermark_per_backend <= upper_bound_per_backend is required",
        )
    };
    let raw::Bounds { lower, upper, holds_watermark } = stock.bounds(watermark).ok_or_else(violation)?;
    let is_given = stock.watermark_per_backend.is_some();
    if lower > upper || is_given && !holds_watermark {
        return Err(violation());
    }
    Ok(Gate::Bounded {
        unit: stock.unit,
        lower,
        upper,
        watermark: Decimal::whole(watermark).clamp(lower, upper),
    })
}

fn convert_auto(stock: &raw::Stock, path: &str) -> Result<Gate, Violation> {
    for (key, bound) in [
        ("lower_bound_per_backend", stock.lower_bound_per_backend),
        ("upper_bound_per_backend", stock.upper_bound_per_backend),
    ] {
        if bound.is_some() {
            return Err(Violation::new(
                format!("{path}.stock.{key}"),
                "watermark_per_backend: auto sets the bounds itself; leave this out, or give a number as the watermark",
            ));
        }
    }
    Ok(Gate::Auto { initial: Decimal::whole(stock.auto_initial.0) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn gate(stock: &str) -> Result<Gate, String> {
        let text = format!(
            "pools:\n- name: a\n  endpoints: {{static: ['127.0.0.1:8001']}}\n  stock:\n    deviation: 0.5\n    {stock}"
        );
        Config::parse(&text, "f.yaml")
            .map(|config| config.pools[0].policy.gate)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn auto_begins_with_a_number_of_requests() {
        let initial = |count| Ok(Gate::Auto { initial: Decimal::whole(count) });
        assert_eq!(gate("watermark_per_backend: auto"), initial(8));
        assert_eq!(gate("watermark_per_backend: auto\n    auto_initial: 3"), initial(3));
        assert!(matches!(
            gate("auto_initial: 3"),
            Ok(Gate::Bounded { watermark, .. }) if watermark == Decimal::whole(2)
        ));
        assert_eq!(gate("watermark_per_backend: auto\n    lower_bound_per_backend: null"), initial(8));
    }

    #[test]
    fn errors_name_the_line_the_key_and_the_allowed_values() {
        for (stock, line, key, word) in [
            ("unit: tokens", 6, "stock.unit", "watermark_per_backend"),
            ("unit: tokens\n    watermark_per_backend: auto", 6, "stock.unit", "whole number of tokens"),
            ("unit: bytes", 6, "stock.unit", "tokens"),
            ("watermark_per_backend: 0", 6, "stock.watermark_per_backend", "at least 1"),
            ("watermark_per_backend: automatic", 6, "stock.watermark_per_backend", "auto"),
            ("auto_initial: 0", 6, "stock.auto_initial", "at least 1"),
            ("auto_initial: none", 6, "stock.auto_initial", ""),
            (
                "watermark_per_backend: auto\n    upper_bound_per_backend: 9",
                7,
                "stock.upper_bound_per_backend",
                "leave this out",
            ),
        ] {
            let message = gate(stock).expect_err(stock);
            assert!(message.starts_with(&format!("f.yaml:{line}: pools[0].{key}")), "{stock}: {message}");
            assert!(message.contains(word), "{stock}: {message}");
        }
    }
}
