//! `penstock model analyze`: latency targets, capacity and needed replicas of a model's variants, from a snapshot.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use penstock_config::SloKeys;
use penstock_model::analysis::{self, Analysis, Variant, VariantAnalysis};
use penstock_model::workload::Observed;
use penstock_model::{Parameters, Traffic};
use serde::{Deserialize, Serialize};

use super::{Error, print};
use crate::number::{AtLeast0, Batch, ParameterTriple};

/// The largest accepted snapshot.
const SNAPSHOT_BYTES_MAX: u64 = 64 << 20;
/// The default for a variant's largest batch.
const MAX_BATCH: Batch = Batch(256.0);

/// Arguments of `penstock model analyze`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The snapshot of the variants, as JSON.
    #[arg(value_name = "SNAPSHOT.json")]
    snapshot: PathBuf,
}

/// The snapshot document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    #[serde(default)]
    slo: Option<SloKeys>,
    #[serde(default)]
    total_rate: Option<AtLeast0>,
    variants: Variants,
}

/// Variants with different names.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<Entry>")]
struct Variants(Vec<Entry>);

impl TryFrom<Vec<Entry>> for Variants {
    type Error = String;
    fn try_from(entries: Vec<Entry>) -> Result<Self, String> {
        let mut names = BTreeSet::new();
        match entries.iter().find(|entry| !names.insert(&entry.name)) {
            Some(duplicate) => Err(format!("the variant `{}` is listed twice", duplicate.name)),
            None => Ok(Self(entries)),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    /// Default: the number of pods.
    #[serde(default)]
    replicas: Option<u64>,
    #[serde(default)]
    pending: u64,
    /// `null`: no limit.
    #[serde(default = "max_batch")]
    max_batch: Option<Batch>,
    #[serde(default)]
    params: Option<ParameterTriple>,
    #[serde(default)]
    pods: Vec<Pod>,
}

#[expect(clippy::unnecessary_wraps, reason = "the default of an absent key; null is None")]
const fn max_batch() -> Option<Batch> {
    Some(MAX_BATCH)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, try_from = "RawPod")]
struct Pod(Observed);

/// A mean that is null or absent wasn't observed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPod {
    rate: AtLeast0,
    #[serde(default)]
    input: Option<AtLeast0>,
    #[serde(default)]
    output: Option<AtLeast0>,
    #[serde(default)]
    ttft: Option<AtLeast0>,
    #[serde(default)]
    itl: Option<AtLeast0>,
}

impl TryFrom<RawPod> for Pod {
    type Error = &'static str;
    fn try_from(raw: RawPod) -> Result<Self, &'static str> {
        let value = |number: Option<AtLeast0>| number.map_or(0.0, |number| number.0);
        if raw.rate.0 > 0.0 && (raw.input.is_none() || raw.output.is_none()) {
            return Err("a pod with a rate above 0 needs an input and an output");
        }
        Ok(Self(Observed {
            traffic: Traffic { rate: raw.rate.0, input: value(raw.input), output: value(raw.output) },
            ttft_ms: value(raw.ttft),
            itl_ms: value(raw.itl),
            busy: usize::from(raw.rate.0 > 0.0),
        }))
    }
}

impl From<Entry> for Variant {
    fn from(entry: Entry) -> Self {
        Self {
            name: entry.name,
            replicas: entry.replicas.unwrap_or(entry.pods.len() as u64),
            pending: entry.pending,
            max_batch: entry.max_batch.map(|batch| batch.0),
            parameters: entry.params.map(ParameterTriple::parameters),
            sizes_by_bootstrap: false,
            ttft_bias: 1.0,
            windows: entry.pods.into_iter().map(|pod| pod.0).collect(),
        }
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    slo: Slo,
    variants: Vec<VariantAnswer<'a>>,
}

#[derive(Serialize)]
struct Slo {
    ttft: Option<f64>,
    itl: Option<f64>,
    source: &'static str,
}

#[derive(Serialize)]
struct VariantAnswer<'a> {
    name: &'a str,
    bootstrap: Option<[f64; 3]>,
    lambda_star: f64,
    n_star: Option<f64>,
    required: Option<u64>,
    capacity: f64,
    demand: f64,
    utilization: f64,
    error: Option<String>,
}

impl<'a> From<&'a Analysis> for Answer<'a> {
    fn from(analysis: &'a Analysis) -> Self {
        Self {
            slo: Slo {
                ttft: analysis.slo.targets.ttft_ms,
                itl: analysis.slo.targets.itl_ms,
                source: analysis.slo.source.as_str(),
            },
            variants: analysis.variants.iter().map(VariantAnswer::from).collect(),
        }
    }
}

impl<'a> From<&'a VariantAnalysis> for VariantAnswer<'a> {
    fn from(variant: &'a VariantAnalysis) -> Self {
        let list = |parameters: Parameters| [parameters.alpha_ms, parameters.beta_ms, parameters.gamma_ms];
        Self {
            name: &variant.name,
            bootstrap: variant.bootstrap.map(list),
            lambda_star: variant.lambda_star,
            n_star: variant.n_star,
            required: variant.required,
            capacity: variant.capacity,
            demand: variant.demand,
            utilization: variant.utilization,
            error: variant.error.map(|error| error.to_string()),
        }
    }
}

/// Analyzes the snapshot and prints the result.
pub(super) fn run(args: &Args) -> Result<(), Error> {
    let path = &args.snapshot;
    let reading = Error::reading(path);
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(&reading)?;
    io::Read::read_to_end(&mut io::Read::take(file, SNAPSHOT_BYTES_MAX + 1), &mut text).map_err(&reading)?;
    if text.len() as u64 > SNAPSHOT_BYTES_MAX {
        let why = format!("the snapshot is longer than {SNAPSHOT_BYTES_MAX} bytes");
        return Err(Error::at(path, 1, why));
    }
    let snapshot = parse(&text).map_err(|(line, why)| Error::at(path, line, why))?;
    let policy = snapshot.slo.unwrap_or_default().0;
    let total_rate = snapshot.total_rate.map(|rate| rate.0);
    let variants: Vec<Variant> = snapshot.variants.0.into_iter().map(Variant::from).collect();
    let analysis = analysis::analyze(&policy, total_rate, &variants);
    print(&mut io::stdout().lock(), &Answer::from(&analysis))
}

/// Parses a document. An error has its line, and names the key.
fn parse(text: &[u8]) -> Result<Snapshot, (u64, String)> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let result = serde_path_to_error::deserialize(&mut deserializer);
    let snapshot: Snapshot = result.map_err(|error| {
        let path = error.path().to_string();
        let (line, why) = place(&error.into_inner());
        match &*path {
            "" | "." | "?" => (line, why),
            path => (line, format!("{path}: {why}")),
        }
    })?;
    deserializer.end().map_err(|error| place(&error))?;
    Ok(snapshot)
}

/// An error's line, from 1, and its message without the place.
fn place(error: &serde_json::Error) -> (u64, String) {
    let message = error.to_string();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    (error.line().max(1) as u64, message[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(keys: &str) -> Result<Variant, (u64, String)> {
        parse(format!(r#"{{"variants":[{{"name":"a"{keys}}}]}}"#).as_bytes())
            .map(|snapshot| snapshot.variants.0.into_iter().next().expect("one").into())
    }

    #[test]
    fn absent_and_null_keys_have_their_defaults() {
        let minimal = variant("").expect("a name is enough");
        assert_eq!((minimal.replicas, minimal.pending), (0, 0));
        assert_eq!((minimal.max_batch, minimal.parameters), (Some(256.0), None));
        let nulls = r#","replicas":null,"max_batch":null,"params":null,"pods":[{"rate":0}]"#;
        let variant = variant(nulls).expect("nulls");
        assert_eq!((variant.replicas, variant.max_batch), (1, None));
        assert_eq!(variant.windows[0].busy, 0);
        let bare = parse(br#"{"slo":null,"total_rate":null,"variants":[]}"#).expect("nulls");
        assert!(bare.slo.is_none() && bare.total_rate.is_none());
    }

    #[test]
    fn targets_have_the_same_keys_as_in_a_pool() {
        let policy = |slo: &str| {
            parse(format!(r#"{{"slo":{slo},"variants":[]}}"#).as_bytes())
                .map(|snapshot| snapshot.slo.unwrap_or_default().0)
        };
        let explicit = policy(r#"{"target_ttft":"500ms","target_itl":49.5}"#).expect("both");
        let targets = explicit.explicit.expect("targets");
        assert_eq!((targets.ttft_ms, targets.itl_ms), (Some(500.0), Some(49.5)));
        for (multiplier, value) in [("0", 3.0), ("1.01", 1.01)] {
            let read = policy(&format!(r#"{{"slo_multiplier":{multiplier}}}"#)).expect(multiplier);
            assert_eq!((read.multiplier(), read.explicit), (value, None));
        }
        let invalid = [
            r#"{"slo_multiplier":1.0}"#,
            r#"{"slo_multiplier":0.5}"#,
            r#"{"target_ttft":500}"#,
            r#"{"target_itl":50}"#,
            r#"{"target_ttft":-1,"target_itl":50}"#,
            r#"{"target_ttft":0,"target_itl":50}"#,
            r#"{"targetTTFT":500,"targetITL":50}"#,
        ];
        for slo in invalid {
            assert!(policy(slo).is_err(), "{slo}");
        }
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        let (line, why) =
            parse(b"{\"variants\":[\n{\"name\":\"a\",\n\"pods\":[{\"rate\":-1}]}]}").expect_err("negative");
        assert_eq!(line, 3);
        assert!(why.contains("variants[0].pods[0]") && why.contains("-1"), "{why}");
        for (keys, why) in [
            (r#","params":[8,0.05]"#, "params"),
            (r#","params":[0,0.05,0]"#, "above 0"),
            (r#","max_batch":0"#, "max_batch"),
            (r#","replicas":-1"#, "replicas"),
            (r#","pods":[{"rate":1,"input":5}]"#, "an output"),
            (r#","speed":1"#, "speed"),
        ] {
            let (_, message) = variant(keys).expect_err(keys);
            assert!(message.contains(why), "{keys}: {message}");
        }
        let (_, message) = parse(br#"{"variants":[{"name":"a"},{"name":"a"}]}"#).expect_err("twice");
        assert!(message.contains("listed twice"), "{message}");
        assert!(parse(br#"{"variants":[]} x"#).is_err());
        assert!(parse(b"").is_err());
    }
}
