//! `penstock model`: the queueing model on the command line. Numbers in by flags or files, JSON out.
//!
//! Milliseconds, requests per second and tokens; moments in files are seconds. `null` is a number that there is none
//! of: unstable, unlimited, or not known.

mod analyze;
mod fit;
mod forms;
mod number;
mod progress;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use penstock_errors::EXIT_USAGE;
use serde::Serialize;

/// What `penstock model` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Where a server settles under a load.
    Solve(forms::Solve),
    /// What a server can take within its targets, and how many of it a load needs.
    Size(forms::Size),
    /// Learn alpha, beta and gamma from what was observed.
    Fit(fit::Args),
    /// Analyse the variants of a model: targets, capacity, and replicas.
    Analyze(analyze::Args),
}

/// Why it can't be said.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Flags that don't fit together.
    #[error("{0}")]
    Usage(&'static str),
    /// A file can't be opened, or read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is wrong at a line. What was answered before is out.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// What is wrong, and what is allowed.
        why: String,
    },
    /// The plot can't be written.
    #[error("{}: {why}", path.display())]
    Plot {
        /// Which file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The answers can't be written.
    #[error("can't write the answers: {0}")]
    Output(#[from] io::Error),
}

impl Error {
    /// 2 for what its user must change, 1 for what failed.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Line { .. } => EXIT_USAGE,
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => {
                    EXIT_USAGE
                }
                _ => 1,
            },
            Self::Plot { .. } | Self::Output(_) => 1,
        }
    }

    /// It begins with a place in a file, as a compiler's would.
    #[must_use]
    pub const fn has_place(&self) -> bool {
        matches!(self, Self::Line { .. })
    }

    fn reading(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Read {
            path: path.into(),
            source,
        }
    }

    fn at(path: &Path, line: u64, why: impl Into<String>) -> Self {
        Self::Line {
            path: path.into(),
            line,
            why: why.into(),
        }
    }
}

/// Does what is asked and answers on stdout.
///
/// # Errors
/// When a file can't be used, or nobody takes the answers.
pub fn run(args: &Args) -> Result<(), Error> {
    match &args.what {
        What::Solve(args) => answer(&mut io::stdout().lock(), &args.answer()),
        What::Size(args) => answer(&mut io::stdout().lock(), &args.answer()?),
        What::Fit(args) => fit::run(args),
        What::Analyze(args) => analyze::run(args),
    }
}

/// Writes an answer as a line. Numbers that aren't finite are null.
fn answer(to: &mut impl Write, answer: &impl Serialize) -> Result<(), Error> {
    serde_json::to_writer(&mut *to, answer).map_err(io::Error::from)?;
    to.write_all(b"\n")?;
    Ok(())
}
