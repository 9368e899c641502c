//! `stock`: limits of the work that runs at the endpoints, which are the engine's gate.
//!
//! Bounds are exact decimals. A key that has no effect beside the chosen watermark is an error.

use std::fmt;

use penstock_engine::policy::{ExtraPlaces, Gate, StockUnit};
use penstock_engine::units::Decimal;
use penstock_model::{Targets, slo};
use schemars::{JsonSchema, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Violation;
use crate::value::{Count, ExactDecimal, LatencyTarget, PositiveDuration, inline_schema};

/// Limits of the work that runs at the endpoints (the stock). While the stock is below the lower bound, waiting requests are
/// granted. While it is below the upper bound, a new request is granted without waiting.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Stock {
    /// The unit of the stock. A request for several choices (`n`, `best_of`), or with a list of prompts, is one request and as many
    /// sequences. Under `auto` the stock counts sequences in any case.
    pub(crate) unit: StockUnit,
    /// The work of one endpoint at a time: a number, 2 requests or sequences by default; `auto`, as much as the endpoint computes at a time,
    /// by measurement, within its latency targets if it has some; or `none`, no limit, so no request waits.
    pub(crate) watermark_per_backend: Option<Watermark>,
    /// The bounds are (1 - deviation) and (1 + deviation) times the watermark. Above 0, below 1.
    pub(crate) deviation: Deviation,
    /// The lower bound itself, at most the watermark. Not allowed with `auto`.
    pub(crate) lower_bound_per_backend: Option<ExactDecimal>,
    /// The upper bound itself, at least the watermark. Not allowed with `auto`.
    pub(crate) upper_bound_per_backend: Option<ExactDecimal>,
    /// Under `auto`: the bound of an endpoint at the start, in sequences. It rises while requests wait and none waits inside the server.
    pub(crate) auto_initial: Count,
    /// Latency targets for the means, which `auto` keeps and by which replicas are sized: one of them, or both. Instead of those of `slo`.
    pub(crate) targets: StockTargets,
    /// For how long a request counts as running, at most, after its client has left before the end of the answer: the server may
    /// compute on. Where the server's metrics say what it runs, the request counts until they show its end, whether or not this is
    /// set. `null`: without such metrics its place is free at once.
    pub(crate) release_after: Option<PositiveDuration>,
    /// Places of each endpoint above its upper bound for flows with nothing running: a part of the bound, at least one place, or a number
    /// of requests, or of sequences where the stock counts these. One number for all flows, the oldest request first. 0: none.
    pub(crate) extra_for_idle_flows: IdleFlowPlaces,
}

/// Latency targets, both of them optional.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StockTargets {
    /// The target for the mean time to the first token, in the server: a duration, or milliseconds.
    pub(crate) ttft: Option<LatencyTarget>,
    /// The target for the mean time between two tokens: a duration, or milliseconds.
    pub(crate) itl: Option<LatencyTarget>,
}

impl StockTargets {
    /// The policy of `slo` with these as the explicit targets, if there are some; `path` is the pool's.
    pub(super) fn added_to(self, slo: slo::Policy, path: &str) -> Result<slo::Policy, Violation> {
        let millis = |target: LatencyTarget| target.0.as_secs_f64() * 1_000.0;
        let targets = Targets { ttft_ms: self.ttft.map(millis), itl_ms: self.itl.map(millis) };
        if targets == Targets::default() {
            return Ok(slo);
        }
        if slo.explicit.is_some() {
            return Err(Violation::new(
                format!("{path}.stock.targets"),
                "slo has targets, too; leave out these or those",
            ));
        }
        Ok(slo::Policy { explicit: Some(targets), ..slo })
    }
}

/// The default of `stock.watermark_per_backend`, in requests or sequences.
pub(crate) const WATERMARK: u64 = 2;
/// The default of `stock.auto_initial`.
const AUTO_INITIAL: Count = Count(8);

impl Default for Stock {
    fn default() -> Self {
        Self {
            unit: StockUnit::Requests,
            watermark_per_backend: None,
            deviation: Deviation(ExactDecimal(Decimal::from_billionths(Decimal::ONE / 10))),
            lower_bound_per_backend: None,
            upper_bound_per_backend: None,
            auto_initial: AUTO_INITIAL,
            targets: StockTargets::default(),
            release_after: None,
            extra_for_idle_flows: IdleFlowPlaces::default(),
        }
    }
}

/// The bounds of one endpoint's stock.
pub(crate) struct Bounds {
    lower: Decimal,
    upper: Decimal,
    /// Whether the watermark is between the bounds.
    pub(crate) holds_watermark: bool,
}

impl Stock {
    /// The bounds as they are given, or else the watermark times (1 - deviation) and (1 + deviation). `None` if a bound is
    /// larger than a decimal can be.
    pub(crate) fn bounds(&self, watermark: u64) -> Option<Bounds> {
        let deviation = self.deviation.0.0.billionths();
        let scaled =
            |factor: u128| Some(Decimal::from_billionths(u128::from(watermark).checked_mul(factor)?));
        let lower = match self.lower_bound_per_backend {
            Some(given) => given.0,
            None => scaled(Decimal::ONE.saturating_sub(deviation))?,
        };
        let upper = match self.upper_bound_per_backend {
            Some(given) => given.0,
            None => scaled(Decimal::ONE.checked_add(deviation)?)?,
        };
        Some(Bounds { lower, upper, holds_watermark: (lower..=upper).contains(&Decimal::whole(watermark)) })
    }
}

/// Above 0, below 1; `convert` checks the range.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Deviation(pub(crate) ExactDecimal);

inline_schema!(Deviation, |_| json_schema!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}));

/// `extra_for_idle_flows`: a whole number, or a percentage as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdleFlowPlaces(pub(crate) ExtraPlaces);

const HUNDREDTH_OF_PERCENT: u128 = Decimal::ONE / 10_000;

impl Default for IdleFlowPlaces {
    fn default() -> Self {
        Self(ExtraPlaces::TENTH)
    }
}

impl<'de> Deserialize<'de> for IdleFlowPlaces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IdleFlowPlacesVisitor).map(Self)
    }
}

struct IdleFlowPlacesVisitor;

impl Visitor<'_> for IdleFlowPlacesVisitor {
    type Value = ExtraPlaces;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a whole number of at least 0, or a part of the bound from 0% to 100%, like 10%")
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<ExtraPlaces, E> {
        Ok(ExtraPlaces::Count(count))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ExtraPlaces, E> {
        let percent = text.strip_suffix('%').and_then(hundredths);
        match percent.filter(|percent| *percent <= 10_000) {
            Some(0) => Ok(ExtraPlaces::NONE),
            Some(percent) => {
                let part = Decimal::from_billionths(u128::from(percent) * HUNDREDTH_OF_PERCENT);
                Ok(ExtraPlaces::Part(part))
            }
            None => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

/// A number with at most two decimal places, in hundredths.
fn hundredths(text: &str) -> Option<u64> {
    let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(places) || places.len() > 2 {
        return None;
    }
    let fraction: u64 = format!("{places:0<2}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(fraction)
}

impl Serialize for IdleFlowPlaces {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            ExtraPlaces::Count(count) => serializer.serialize_u64(count),
            ExtraPlaces::Part(part) => {
                let hundredths = part.billionths() / HUNDREDTH_OF_PERCENT;
                let (whole, places) = (hundredths / 100, hundredths % 100);
                match places {
                    0 => serializer.collect_str(&format_args!("{whole}%")),
                    _ => serializer.collect_str(&format_args!("{whole}.{places:02}%")),
                }
            }
        }
    }
}

inline_schema!(
    IdleFlowPlaces,
    |_| json_schema!({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,2})?%$"}]})
);

/// `watermark_per_backend`: a whole number of at least 1, `auto`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watermark {
    Fixed(u64),
    Auto,
    None,
}

impl<'de> Deserialize<'de> for Watermark {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WatermarkVisitor)
    }
}

struct WatermarkVisitor;

impl Visitor<'_> for WatermarkVisitor {
    type Value = Watermark;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a whole number of at least 1, auto, or none")
    }

    fn visit_u64<E: de::Error>(self, watermark: u64) -> Result<Watermark, E> {
        match watermark {
            0 => Err(E::invalid_value(Unexpected::Unsigned(0), &self)),
            watermark => Ok(Watermark::Fixed(watermark)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Watermark, E> {
        match text {
            "auto" => Ok(Watermark::Auto),
            "none" => Ok(Watermark::None),
            other => Err(E::invalid_value(Unexpected::Str(other), &self)),
        }
    }
}

impl Serialize for Watermark {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(watermark) => serializer.serialize_u64(*watermark),
            Self::Auto => serializer.serialize_str("auto"),
            Self::None => serializer.serialize_str("none"),
        }
    }
}

inline_schema!(
    Watermark,
    |_| json_schema!({"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["auto", "none"]}]})
);

/// Checks `stock`; `path` is the pool's.
pub(super) fn convert(stock: &Stock, path: &str) -> Result<Gate, Violation> {
    let deviation = stock.deviation.0.0.billionths();
    if deviation == 0 || deviation >= Decimal::ONE {
        return Err(Violation::new(format!("{path}.stock.deviation"), "a deviation is above 0 and below 1"));
    }
    if !matches!(stock.watermark_per_backend, Some(Watermark::Auto)) && stock.auto_initial != AUTO_INITIAL {
        return Err(Violation::new(
            format!("{path}.stock.auto_initial"),
            "this has no effect without watermark_per_backend: auto; leave it out",
        ));
    }
    match (stock.watermark_per_backend, stock.unit) {
        (Some(Watermark::None), _) => {
            refuse_bounds(stock, path, "watermark_per_backend: none has no bounds; leave this out")?;
            let extra = stock.extra_for_idle_flows;
            if ![ExtraPlaces::NONE, ExtraPlaces::TENTH].contains(&extra.0) {
                return Err(Violation::new(
                    format!("{path}.stock.extra_for_idle_flows"),
                    "watermark_per_backend: none has no bounds, so nothing is above them; leave this out",
                ));
            }
            Ok(Gate::Open)
        }
        (Some(Watermark::Auto), StockUnit::Requests | StockUnit::Sequences) => convert_auto(stock, path),
        (Some(Watermark::Fixed(watermark)), _) => convert_bounded(stock, watermark, path),
        (None, StockUnit::Requests | StockUnit::Sequences) => convert_bounded(stock, WATERMARK, path),
        (Some(Watermark::Auto) | None, StockUnit::Tokens) => Err(Violation::new(
            format!("{path}.stock.unit"),
            "tokens need a watermark_per_backend: a whole number of tokens that one endpoint works on at a time",
        )),
    }
}

fn convert_bounded(stock: &Stock, watermark: u64, path: &str) -> Result<Gate, Violation> {
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
    let Bounds { lower, upper, holds_watermark } = stock.bounds(watermark).ok_or_else(violation)?;
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

fn convert_auto(stock: &Stock, path: &str) -> Result<Gate, Violation> {
    let message = "watermark_per_backend: auto sets the bounds itself; leave this out, or give a number as the watermark";
    refuse_bounds(stock, path, message)?;
    Ok(Gate::Auto { initial: Decimal::whole(stock.auto_initial.0) })
}

/// Refuses bounds beside a watermark that doesn't use them.
fn refuse_bounds(stock: &Stock, path: &str, message: &str) -> Result<(), Violation> {
    for (key, bound) in [
        ("lower_bound_per_backend", stock.lower_bound_per_backend),
        ("upper_bound_per_backend", stock.upper_bound_per_backend),
    ] {
        if bound.is_some() {
            return Err(Violation::new(format!("{path}.stock.{key}"), message));
        }
    }
    Ok(())
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
    fn sequences_have_the_bounds_of_requests() {
        let in_requests = gate("unit: requests").expect("valid");
        let Gate::Bounded { lower, upper, watermark, .. } = in_requests else { panic!("{in_requests:?}") };
        let in_sequences = Gate::Bounded { unit: StockUnit::Sequences, lower, upper, watermark };
        assert_eq!(gate("unit: sequences"), Ok(in_sequences));
        let auto = gate("unit: sequences\n    watermark_per_backend: auto");
        assert_eq!(auto, gate("watermark_per_backend: auto"));
    }

    #[test]
    fn extra_places_are_a_number_or_a_part() {
        let places = |value: &str| {
            let text = format!(
                "pools:\n- name: a\n  endpoints: {{static: ['127.0.0.1:8001']}}\n  stock: {{extra_for_idle_flows: {value}}}"
            );
            let config = Config::parse(&text, "f.yaml").ok()?;
            let places = config.pools[0].policy.extra_for_idle_flows;
            let shown = serde_json::to_value(IdleFlowPlaces(places)).expect("a value");
            let again: IdleFlowPlaces = serde_json::from_value(shown).expect("it is valid again");
            assert_eq!(again.0, places);
            Some(places)
        };
        let part = |billionths| Some(ExtraPlaces::Part(Decimal::from_billionths(billionths)));
        assert_eq!(places("0"), Some(ExtraPlaces::NONE));
        assert_eq!(places("0%"), Some(ExtraPlaces::NONE));
        assert_eq!(places("3"), Some(ExtraPlaces::Count(3)));
        assert_eq!(places("10%"), part(Decimal::ONE / 10));
        assert_eq!(places("100%"), part(Decimal::ONE));
        assert_eq!(places("2.5%"), part(Decimal::ONE / 40));
        assert_eq!(places("0.01%"), part(Decimal::ONE / 10_000));
        for wrong in ["-1", "0.1", "101%", "'10'", "ten%", "'%'", "+1%", "1.234%", "1.%", "null", "10 %"] {
            assert_eq!(places(wrong), None, "{wrong}");
        }
        assert_eq!(Some(Stock::default().extra_for_idle_flows.0), part(Decimal::ONE / 10));
    }

    #[test]
    fn auto_begins_with_a_number_of_requests() {
        let initial = |count| Ok(Gate::Auto { initial: Decimal::whole(count) });
        assert_eq!(gate("watermark_per_backend: auto"), initial(8));
        assert_eq!(gate("watermark_per_backend: auto\n    auto_initial: 3"), initial(3));
        assert!(matches!(
            gate("auto_initial: 8"),
            Ok(Gate::Bounded { watermark, .. }) if watermark == Decimal::whole(2)
        ));
        assert_eq!(gate("watermark_per_backend: auto\n    lower_bound_per_backend: null"), initial(8));
    }
}
