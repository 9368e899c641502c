//! The arguments of `penstock simulate`.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use penstock_model_server::Hardware;
use penstock_simulate::limits::{ARRIVALS_MAX, SERVERS_MAX, TENANTS_MAX};
use penstock_simulate::{scenarios, trace};

use crate::number::AtLeast0;

/// Arguments of `penstock simulate`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("traffic").required(true))]
pub struct Args {
    /// The configuration; its first pool is simulated.
    #[arg(long, value_name = "FILE")]
    pub(super) config: PathBuf,
    /// Another configuration to compare with, may be repeated.
    #[arg(long, value_name = "FILE2")]
    pub(super) compare: Vec<PathBuf>,
    /// The trace: when requests arrive, and the sizes of their prompts and answers.
    #[arg(long, value_name = "TRACE", group = "traffic")]
    pub(super) trace: Option<PathBuf>,
    /// The format of the trace; by default its first line tells it.
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "scenario")]
    pub(super) trace_format: Option<TraceFormat>,
    /// Made-up traffic instead of a trace.
    #[arg(long, value_enum, value_name = "SCENARIO", group = "traffic")]
    pub(super) scenario: Option<Scenario>,
    /// Multiplies the rate of arrivals.
    #[arg(long, value_name = "X", default_value = "1", allow_negative_numbers = true)]
    pub(super) scale: Scale,
    /// The number of servers, or a range of numbers to try, like 2..8; by default the endpoints of each configuration.
    #[arg(long, value_name = "N|N..M", allow_negative_numbers = true)]
    pub(super) servers: Option<ServerCounts>,
    /// Milliseconds that every iteration of a server takes.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = Hardware::default().alpha_ms)]
    pub(super) alpha: f64,
    /// Milliseconds per token processed in an iteration.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = Hardware::default().beta_ms)]
    pub(super) beta: f64,
    /// Milliseconds per token resident in the KV cache.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = Hardware::default().gamma_ms)]
    pub(super) gamma: f64,
    /// Sequences in one batch of a server; by default max_batch of the configuration.
    #[arg(long, value_name = "N")]
    pub(super) max_num_seqs: Option<usize>,
    /// Tokens that the KV cache of a server holds.
    #[arg(long, value_name = "N", default_value_t = Hardware::default().kv_tokens)]
    pub(super) kv_tokens: u64,
    /// Target for the time from the arrival to the first token, instead of slo.target_ttft; 0: none.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    pub(super) slo_ttft: Option<AtLeast0>,
    /// Target for the time between tokens, instead of slo.target_itl; 0: none.
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    pub(super) slo_itl: Option<AtLeast0>,
    /// Deals the requests to K tenants t1, t2 and so on, the first the heaviest (Zipf); by default a trace has one tenant,
    /// and a scenario its own.
    #[arg(long, value_name = "K", value_parser = value_parser!(u64).range(1..=TENANTS_MAX as u64))]
    pub(super) tenants: Option<u64>,
    /// Seed of the random numbers; the same seed and input give the same output.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,
    /// The simulated time in which requests arrive; by default the whole trace, or 10m of a scenario.
    #[arg(long = "for", value_name = "TIME", value_parser = arrivals)]
    pub(super) length: Option<Duration>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(super) json: bool,
    /// Write report.html and results.json to this directory, which is made if it doesn't exist.
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

/// The format of a trace.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum TraceFormat {
    /// Azure's traces of 2023 and 2024: CSV with TIMESTAMP, ContextTokens, GeneratedTokens.
    Azure,
    /// BurstGPT: CSV with Timestamp, Request tokens, Response tokens.
    Burstgpt,
    /// Mooncake: JSON lines with timestamp, input_length, output_length.
    Mooncake,
}

impl From<TraceFormat> for trace::Format {
    fn from(format: TraceFormat) -> Self {
        match format {
            TraceFormat::Azure => Self::Azure,
            TraceFormat::Burstgpt => Self::Burstgpt,
            TraceFormat::Mooncake => Self::Mooncake,
        }
    }
}

/// Made-up traffic.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Scenario {
    /// Four equal tenants with chats at 80 % of the capacity.
    Steady,
    /// Four equal tenants with chats at 50 %, and at 300 % for the first 10 s of each minute.
    Burst,
    /// A minute of chats and a minute of long prompts in turn, each at 90 % of its own capacity.
    Alternate,
    /// One tenant at 150 % of the capacity beside nine tenants at 5 % each.
    Greedy,
}

impl From<Scenario> for scenarios::Kind {
    fn from(scenario: Scenario) -> Self {
        match scenario {
            Scenario::Steady => Self::Steady,
            Scenario::Burst => Self::Burst,
            Scenario::Alternate => Self::Alternate,
            Scenario::Greedy => Self::Greedy,
        }
    }
}

/// A factor for rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale(pub(super) f64);

impl FromStr for Scale {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let scale = text.parse().ok().filter(|scale| (0.001..=1_000.0).contains(scale));
        scale.map(Self).ok_or_else(|| format!("expected a number from 0.001 to 1000, not `{text}`"))
    }
}

/// The numbers of servers to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerCounts(pub(super) RangeInclusive<usize>);

impl FromStr for ServerCounts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let number = text.trim().parse().ok();
            number.filter(|number| (1..=SERVERS_MAX).contains(number)).ok_or_else(|| {
                format!(
                    "expected a whole number from 1 to {SERVERS_MAX}, or two of them like 2..8, not `{text}`"
                )
            })
        };
        let (first, last) = match text.split_once("..") {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(text)?, number(text)?),
        };
        if first > last {
            return Err(format!("the range is reversed: write {last}..{first}, the smaller number first"));
        }
        Ok(Self(first..=last))
    }
}

/// How long requests arrive.
fn arrivals(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if time.is_zero() || time > ARRIVALS_MAX {
        let days = ARRIVALS_MAX.as_secs() / 86_400;
        return Err(format!("expected a time above 0 and up to {days}d, not `{text}`"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_counts_are_a_number_or_a_rising_range() {
        let parsed = |text: &str| text.parse::<ServerCounts>().map(|counts| counts.0);
        assert_eq!(parsed("3"), Ok(3..=3));
        assert_eq!(parsed("2..8"), Ok(2..=8));
        for text in ["0", "0..3", "-1", "2..", "..3", "1001", "x", "", "1..2..3", "2.5"] {
            let error = parsed(text).expect_err(text);
            assert!(error.contains("from 1 to 1000"), "{text}: {error}");
        }
        assert!(parsed("8..2").expect_err("reversed").contains("2..8"));
    }

    #[test]
    fn scales_and_times_are_in_their_ranges() {
        assert_eq!("2.5".parse(), Ok(Scale(2.5)));
        for text in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(text.parse::<Scale>().is_err(), "{text}");
        }
        assert_eq!(arrivals("90s"), Ok(Duration::from_secs(90)));
        for text in ["0s", "32d", "-1s", "90", "x"] {
            assert!(arrivals(text).is_err(), "{text}");
        }
    }
}
