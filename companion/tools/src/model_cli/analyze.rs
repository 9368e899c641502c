//! `penstock model analyze`: the variants of a model as they are at a moment, and what follows for their replicas.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use penstock_config::SloKeys;
use penstock_model::analysis::{self, Analysis, Variant, VariantAnalysis};
use penstock_model::workload::Observed;
use penstock_model::{Parameters, Traffic};
use serde::{Deserialize, Serialize};

use super::number::{AtLeast0, Batch, Three};
use super::{Error, answer};

/// Bytes of a snapshot.
const SNAPSHOT_BYTES_MAX: u64 = 64 << 20;
/// Requests in one batch of a variant that doesn't say.
const MAX_BATCH: Batch = Batch(256.0);

/// What `penstock model analyze` is told.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The variants, as JSON.
    #[arg(value_name = "SNAPSHOT.json")]
    snapshot: PathBuf,
}

/// The document.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Snapshot {
    #[serde(default)]
    slo: Option<SloKeys>,
    #[serde(default)]
    total_rate: Option<AtLeast0>,
    variants: Variants,
}

/// Of different names.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Vec<Entry>")]
struct Variants(Vec<Entry>);

impl TryFrom<Vec<Entry>> for Variants {
    type Error = String;
    fn try_from(entries: Vec<Entry>) -> Result<Self, String> {
        let mut names = BTreeSet::new();
        match entries.iter().find(|it| !names.insert(&it.name)) {
            Some(twice) => Err(format!("the variant `{}` is listed twice", twice.name)),
            None => Ok(Self(entries)),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    /// Absent: as many as there are pods.
    #[serde(default)]
    replicas: Option<u64>,
    #[serde(default)]
    pending: u64,
    /// `null`: not limited.
    #[serde(default = "max_batch")]
    max_batch: Option<Batch>,
    #[serde(default)]
    params: Option<Three>,
    #[serde(default)]
    pods: Vec<Pod>,
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "what stands for an absent key, beside null"
)]
const fn max_batch() -> Option<Batch> {
    Some(MAX_BATCH)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, try_from = "RawPod")]
struct Pod(Observed);

/// An average that is null or absent wasn't observed.
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
        let number = |it: Option<AtLeast0>| it.map_or(0.0, |it| it.0);
        if raw.rate.0 > 0.0 && (raw.input.is_none() || raw.output.is_none()) {
            return Err("a pod of a rate above 0 has an input and an output");
        }
        Ok(Self(Observed {
            traffic: Traffic {
                rate: raw.rate.0,
                input: number(raw.input),
                output: number(raw.output),
            },
            ttft_ms: number(raw.ttft),
            itl_ms: number(raw.itl),
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
            max_batch: entry.max_batch.map(|it| it.0),
            parameters: entry.params.map(Three::parameters),
            ttft_bias: 1.0,
            windows: entry.pods.into_iter().map(|it| it.0).collect(),
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
        let list = |it: Parameters| [it.alpha_ms, it.beta_ms, it.gamma_ms];
        Self {
            name: &variant.name,
            bootstrap: variant.bootstrap.map(list),
            lambda_star: variant.lambda_star,
            n_star: variant.n_star,
            required: variant.required,
            capacity: variant.capacity,
            demand: variant.demand,
            utilization: variant.utilization,
            error: variant.error.map(|it| it.to_string()),
        }
    }
}

/// Analyses the snapshot and answers on stdout.
pub(super) fn run(args: &Args) -> Result<(), Error> {
    let path = &args.snapshot;
    let reading = Error::reading(path);
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(&reading)?;
    io::Read::read_to_end(&mut io::Read::take(file, SNAPSHOT_BYTES_MAX + 1), &mut text).map_err(&reading)?;
    if text.len() as u64 > SNAPSHOT_BYTES_MAX {
        let why = format!("a snapshot has up to {SNAPSHOT_BYTES_MAX} bytes");
        return Err(Error::at(path, 1, why));
    }
    let snapshot = read(&text).map_err(|(line, why)| Error::at(path, line, why))?;
    let policy = snapshot.slo.unwrap_or_default().0;
    let total_rate = snapshot.total_rate.map(|it| it.0);
    let variants: Vec<Variant> = snapshot.variants.0.into_iter().map(Variant::from).collect();
    let analysis = analysis::analyze(&policy, total_rate, &variants);
    answer(&mut io::stdout().lock(), &Answer::from(&analysis))
}

/// Reads a document; an error comes with its line, and names the key.
fn read(text: &[u8]) -> Result<Snapshot, (u64, String)> {
    let mut from = serde_json::Deserializer::from_slice(text);
    let read = serde_path_to_error::deserialize(&mut from);
    let read: Snapshot = read.map_err(|error| {
        let path = error.path().to_string();
        let (line, why) = place(&error.into_inner());
        match &*path {
            "" | "." | "?" => (line, why),
            path => (line, format!("{path}: {why}")),
        }
    })?;
    from.end().map_err(|error| place(&error))?;
    Ok(read)
}

/// Where, from 1, and what.
fn place(error: &serde_json::Error) -> (u64, String) {
    let message = error.to_string();
    let end = message.rfind(" at line ").unwrap_or(message.len());
    (error.line().max(1) as u64, message[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(keys: &str) -> Result<Variant, (u64, String)> {
        read(format!(r#"{{"variants":[{{"name":"a"{keys}}}]}}"#).as_bytes())
            .map(|it| it.variants.0.into_iter().next().expect("one").into())
    }

    #[test]
    fn absent_and_null_mean_what_they_should() {
        let variant = one("").expect("a name is enough");
        assert_eq!((variant.replicas, variant.pending), (0, 0));
        assert_eq!((variant.max_batch, variant.parameters), (Some(256.0), None));
        let nulls = r#","replicas":null,"max_batch":null,"params":null,"pods":[{"rate":0}]"#;
        let variant = one(nulls).expect("nulls");
        assert_eq!((variant.replicas, variant.max_batch), (1, None));
        assert_eq!(variant.windows[0].busy, 0);
        let bare = read(br#"{"slo":null,"total_rate":null,"variants":[]}"#).expect("nulls");
        assert!(bare.slo.is_none() && bare.total_rate.is_none());
    }

    #[test]
    fn targets_are_written_as_in_a_pool() {
        let policy = |slo: &str| {
            read(format!(r#"{{"slo":{slo},"variants":[]}}"#).as_bytes())
                .map(|it| it.slo.unwrap_or_default().0)
        };
        let explicit = policy(r#"{"target_ttft":"500ms","target_itl":49.5}"#).expect("both");
        let targets = explicit.explicit.expect("targets");
        assert_eq!((targets.ttft_ms, targets.itl_ms), (Some(500.0), Some(49.5)));
        for (multiplier, value) in [("0", 3.0), ("1.01", 1.01)] {
            let read = policy(&format!(r#"{{"slo_multiplier":{multiplier}}}"#)).expect(multiplier);
            assert_eq!((read.multiplier, read.explicit), (value, None));
        }
        let refused = [
            r#"{"slo_multiplier":1.0}"#,
            r#"{"slo_multiplier":0.5}"#,
            r#"{"target_ttft":500}"#,
            r#"{"target_itl":50}"#,
            r#"{"target_ttft":-1,"target_itl":50}"#,
            r#"{"target_ttft":0,"target_itl":50}"#,
            r#"{"targetTTFT":500,"targetITL":50}"#,
        ];
        for slo in refused {
            assert!(policy(slo).is_err(), "{slo}");
        }
    }

    #[test]
    fn an_error_names_line_and_key() {
        let (line, why) =
            read(b"{\"variants\":[\n{\"name\":\"a\",\n\"pods\":[{\"rate\":-1}]}]}").expect_err("negative");
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
            let (_, said) = one(keys).expect_err(keys);
            assert!(said.contains(why), "{keys}: {said}");
        }
        let (_, said) = read(br#"{"variants":[{"name":"a"},{"name":"a"}]}"#).expect_err("twice");
        assert!(said.contains("listed twice"), "{said}");
        assert!(read(br#"{"variants":[]} x"#).is_err());
        assert!(read(b"").is_err());
    }
}
