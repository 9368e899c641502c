//! `penstock import`: another system's queueing policy as a Penstock configuration.
//!
//! What has an equal is written with where it came from; what has none becomes a comment that says so, never nothing.
//! What is printed is checked before it is: it is valid as it stands, with a placeholder where the servers go.

mod dynamo;
mod gie;
mod kthena;
mod nexus;
mod page;
mod section;
mod sole;
#[cfg(test)]
mod tests;
mod tree;
mod wva;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use page::Block;
use penstock_config::{self as config, Document};
use penstock_errors::EXIT_USAGE;

/// Bytes of a source.
const SOURCE_BYTES_MAX: u64 = 4 << 20;
/// Where the servers go.
const PLACEHOLDER: &str = "{static: [\"127.0.0.1:8000\"]}";
/// As much as waits of what the source lets wait without a limit.
const UNLIMITED: &str = "100000";

/// What `penstock import` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What the file is for.
    #[arg(value_enum, value_name = "SOURCE")]
    source: Source,
    /// The file; `-` reads stdin.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Systems whose policies are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Source {
    /// Dynamo's router policy, YAML: policy classes.
    Dynamo,
    /// The ConfigMap of llm-d's Workload Variant Autoscaler: targets by model.
    Wva,
    /// nexus.toml of the Nexus gateway: its queue.
    Nexus,
    /// The environment of Kthena's router, KEY=VALUE: fairness between users.
    Kthena,
    /// The queueing design of the Gateway API Inference Extension, YAML.
    Gie,
}

/// Why nothing is printed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is wrong at a line.
    #[error("{file}:{line}: {why}")]
    Line {
        /// Which file.
        file: String,
        /// From 1.
        line: u64,
        /// What is wrong, and what is allowed.
        why: String,
    },
}

impl Error {
    /// 2 for what its user must change, 1 for what failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Line { .. } => EXIT_USAGE,
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => {
                    EXIT_USAGE
                }
                _ => 1,
            },
        }
    }

    /// It begins with a place in a file, as a compiler's would.
    #[must_use]
    pub const fn has_place(&self) -> bool {
        matches!(self, Self::Line { .. })
    }
}

/// What is wrong at a line of a source.
#[derive(Debug)]
struct Wrong {
    line: u64,
    why: String,
}

impl Wrong {
    fn new(line: u64, why: impl Into<String>) -> Self {
        Self {
            line,
            why: why.into(),
        }
    }
}

/// A page, and where the source says what stands at a key of it.
struct Imported {
    page: Block,
    /// The line of the source that a key of the page comes from, as far as it is known.
    line: Box<dyn Fn(&str) -> u64>,
}

impl From<Block> for Imported {
    fn from(page: Block) -> Self {
        Self {
            page,
            line: Box::new(|_| 1),
        }
    }
}

/// Reads the file, and says the same as Penstock would: YAML, ready to be printed.
///
/// # Errors
/// When the file can't be read, isn't of that kind, or says something that isn't allowed there or here.
pub fn run(args: &Args) -> Result<String, Error> {
    let (text, name) = read(&args.file)?;
    convert(args.source, &text, &name)
}

/// The same for a text, which `file` names in errors.
///
/// # Errors
/// As [`run`].
pub fn convert(source: Source, text: &str, file: &str) -> Result<String, Error> {
    let at = |Wrong { line, why }| Error::Line {
        file: file.to_owned(),
        line,
        why,
    };
    let imported = match source {
        Source::Dynamo => dynamo::import(text),
        Source::Wva => wva::import(text),
        Source::Nexus => nexus::import(text),
        Source::Kthena => kthena::import(text),
        Source::Gie => gie::import(text),
    }
    .map_err(at)?;
    let page = format!("{}{}", opening(source, file), imported.page.render());
    match Document::parse(&page, file) {
        Ok(_) => Ok(page),
        Err(config::Error::Document { key, message, .. }) => Err(at(Wrong::new(
            (imported.line)(&key),
            format!("Penstock can't say this: {key}: {message}"),
        ))),
        Err(error @ (config::Error::Read { .. } | config::Error::Value { .. })) => {
            Err(at(Wrong::new(1, error.to_string())))
        }
    }
}

fn opening(source: Source, file: &str) -> String {
    let what = match source {
        Source::Dynamo => "Dynamo's router policy",
        Source::Wva => "the ConfigMap of llm-d's Workload Variant Autoscaler",
        Source::Nexus => "Nexus' [queue]",
        Source::Kthena => "the environment of Kthena's router",
        Source::Gie => "the queueing configuration of the Gateway API Inference Extension",
    };
    let name = Path::new(file)
        .file_name()
        .map_or(file.into(), |it| it.to_string_lossy());
    let mut block = Block::default();
    block.comment(format!("The same policy as {what} in {name}."));
    block.comment("Replace the endpoints by your servers', then check it: penstock validate --config FILE.");
    block.render()
}

fn read(path: &Path) -> Result<(String, String), Error> {
    let failed = |source| Error::Read {
        path: path.into(),
        source,
    };
    let mut bytes = Vec::new();
    let name = if path == Path::new("-") {
        io::stdin()
            .lock()
            .take(SOURCE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        "stdin".to_owned()
    } else {
        let file = File::open(path).map_err(failed)?;
        file.take(SOURCE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        path.display().to_string()
    };
    let line = |line, why: String| Error::Line {
        file: name.clone(),
        line,
        why,
    };
    if bytes.len() as u64 > SOURCE_BYTES_MAX {
        return Err(line(
            1,
            format!("this is longer than {} MiB", SOURCE_BYTES_MAX >> 20),
        ));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned(), name)),
        Err(error) => {
            let good = error
                .as_bytes()
                .get(..error.utf8_error().valid_up_to())
                .unwrap_or_default();
            let lines = good.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
            Err(line(lines, "this is no UTF-8".into()))
        }
    }
}

/// A pool with a placeholder where its servers go.
fn pool(name: &str) -> Block {
    let mut pool = Block::default();
    pool.pair("name", page::text(name), "");
    pool.pair(
        "endpoints",
        PLACEHOLDER,
        "replace: the source doesn't say where the servers are",
    );
    pool
}
