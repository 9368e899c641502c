//! `penstock import`: converts another system's queueing policy into a Penstock configuration.
//!
//! Each converted key has a note with its origin. A key without an equivalent becomes a comment, so nothing is dropped silently.
//! The result is checked before it is printed. It is a valid configuration with a placeholder for the endpoints.

mod dynamo;
mod gie;
mod kthena;
mod nexus;
mod page;
mod picker;
mod section;
mod sole;
#[cfg(test)]
mod tests;
mod tree;
mod wva;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use penstock_config::{self as config, Document, yaml};
use penstock_errors::{Failure, is_wrong_path};

use self::page::Block;

const SOURCE_BYTES_MAX: u64 = 4 << 20;
/// The endpoints of the result, to be replaced by the user.
const PLACEHOLDER: &str = "[\"127.0.0.1:8000\"]";
/// Tokens in one iteration of a model server; vLLM's default for most accelerators.
const BATCHED_TOKENS: u64 = 8_192;
/// The capacity of a queue that has no limit in the source.
const UNLIMITED: &str = "100000";

/// Arguments of `penstock import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The system that the file configures.
    #[arg(value_enum, value_name = "SOURCE")]
    source: Source,
    /// The file to convert; `-` reads standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Of dynamo only: the most tokens that a model server computes in one iteration, as `endpoints.defaults.max_batched_tokens`
    /// of the result; vLLM's `--max-num-batched-tokens` [default: 8192]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    max_batched_tokens: Option<u64>,
}

/// Systems with policies that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// Dynamo's router policy file (YAML): policy classes.
    Dynamo,
    /// The ConfigMap of llm-d's Workload Variant Autoscaler: latency targets by model.
    Wva,
    /// The nexus.toml of the Nexus gateway: its queue.
    Nexus,
    /// The environment variables of Kthena's router (KEY=VALUE or a manifest): fairness between users.
    Kthena,
    /// The queueing configuration of the Gateway API Inference Extension, or an EndpointPickerConfig, of llm-d too (YAML).
    Gie,
}

/// A source that can't be converted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line of the file is wrong.
    #[error("{file}:{line}: {message}")]
    Line {
        /// The file.
        file: String,
        /// From 1.
        line: u64,
        /// What is wrong, and the values that are allowed.
        message: String,
    },
    /// A flag that the source doesn't have.
    #[error("--max-batched-tokens applies to dynamo only; leave it out")]
    BatchedTokens,
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        match self {
            Self::Line { .. } | Self::BatchedTokens => true,
            Self::Read { source, .. } => is_wrong_path(source),
        }
    }

    fn has_place(&self) -> bool {
        matches!(self, Self::Line { .. })
    }
}

/// A line of the source that can't be converted.
#[derive(Debug)]
struct SourceError {
    /// From 1.
    line: u64,
    message: String,
}

impl SourceError {
    fn new(line: u64, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

struct Imported {
    page: Block,
    /// Finds the line of the source that a key of the page comes from; 1 if that is unknown.
    line_of: Box<dyn Fn(&str) -> u64>,
}

impl From<Block> for Imported {
    fn from(page: Block) -> Self {
        Self { page, line_of: Box::new(|_| 1) }
    }
}

/// Reads the file and converts it into Penstock's YAML, ready to be printed.
///
/// # Errors
/// When the file can't be read, isn't a configuration of that system, or has a value that the system or Penstock doesn't allow.
pub fn run(args: &Args) -> Result<String, Error> {
    if args.max_batched_tokens.is_some() && args.source != Source::Dynamo {
        return Err(Error::BatchedTokens);
    }
    let (text, name) = read(&args.file)?;
    let batched_tokens = args.max_batched_tokens.unwrap_or(BATCHED_TOKENS);
    convert(args.source, &text, &name, batched_tokens)
}

/// Converts a text. `file` names it in errors. `batched_tokens`: see [`Args`].
///
/// # Errors
/// As [`run`], except for reading.
fn convert(source: Source, text: &str, file: &str, batched_tokens: u64) -> Result<String, Error> {
    let in_file = |SourceError { line, message }| Error::Line { file: file.to_owned(), line, message };
    let imported = match source {
        Source::Dynamo => dynamo::import(text, batched_tokens),
        Source::Wva => wva::import(text),
        Source::Nexus => nexus::import(text),
        Source::Kthena => kthena::import(text),
        Source::Gie => gie::import(text),
    }
    .map_err(in_file)?;
    let page = format!("{}{}", opening(source, file), imported.page.render());
    match Document::parse(&page, file) {
        Ok(_) => Ok(page),
        Err(config::Error::Document { key, message, .. }) => Err(in_file(SourceError::new(
            (imported.line_of)(&key),
            format!("this has no valid form in Penstock: {key}: {message}"),
        ))),
        Err(error @ (config::Error::Read { .. } | config::Error::Value { .. })) => {
            Err(in_file(SourceError::new(1, error.to_string())))
        }
    }
}

fn opening(source: Source, file: &str) -> String {
    let title = match source {
        Source::Dynamo => "Dynamo's router policy",
        Source::Wva => "the ConfigMap of llm-d's Workload Variant Autoscaler",
        Source::Nexus => "Nexus' [queue]",
        Source::Kthena => "the environment of Kthena's router",
        Source::Gie => "the queueing configuration of the Gateway API Inference Extension",
    };
    let name = Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
    let mut block = Block::default();
    block.comment(format!("Converted from {title} in {name}."));
    block.comment(
        "Replace the endpoints with those of your model servers, then run: penstock validate --config FILE",
    );
    block.render()
}

fn read(path: &Path) -> Result<(String, String), Error> {
    let failed = |source| Error::Read { path: path.into(), source };
    let mut bytes = Vec::new();
    let name = if path == Path::new("-") {
        io::stdin().lock().take(SOURCE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        "stdin".to_owned()
    } else {
        let file = File::open(path).map_err(failed)?;
        file.take(SOURCE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        path.display().to_string()
    };
    if bytes.len() as u64 > SOURCE_BYTES_MAX {
        return Err(Error::Line {
            file: name,
            line: 1,
            message: format!("the file is longer than {} MiB", SOURCE_BYTES_MAX >> 20),
        });
    }
    match yaml::utf8(bytes) {
        Ok(text) => Ok((text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned(), name)),
        Err(error) => Err(Error::Line { file: name, line: error.line, message: error.message }),
    }
}

/// A pool with placeholders for its endpoints.
fn pool(name: &str) -> Block {
    pool_with(name, "")
}

/// A pool with further keys of `endpoints`, each after a comma.
fn pool_with(name: &str, more: &str) -> Block {
    let mut pool = Block::default();
    pool.pair("name", page::text(name), "");
    pool.pair(
        "endpoints",
        format!("{{static: {PLACEHOLDER}{more}}}"),
        "replace: the source has no addresses of model servers",
    );
    pool
}
