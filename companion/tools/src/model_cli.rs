//! `penstock model`: the queueing model on the command line. Input comes from flags or files, output is JSON.
//!
//! Units are milliseconds, requests per second and tokens; times of day in files are seconds. `null` is a value that
//! doesn't exist: unstable, unlimited or unknown.

mod analyze;
mod fit;
mod forms;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use penstock_errors::{Failure, is_wrong_path};
use serde::Serialize;

/// Arguments of `penstock model`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compute the steady state of a server under a load.
    Solve(forms::Solve),
    /// Compute a server's capacity within latency targets, and the number of servers for a load.
    Size(forms::Size),
    /// Learn alpha, beta and gamma from observations.
    Fit(fit::Args),
    /// Compute targets, capacity and replicas of a model's variants.
    Analyze(analyze::Args),
}

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The flags contradict each other.
    #[error("{0}")]
    Usage(&'static str),
    /// A file can't be opened or read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A line of a file is invalid. The results for the lines before are already printed.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The reason, with the allowed values.
        why: String,
    },
    /// The plot can't be written.
    #[error("can't write {}: {why}", path.display())]
    Plot {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The results can't be written.
    #[error("can't write the results: {0}")]
    Output(#[from] io::Error),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        match self {
            Self::Usage(_) | Self::Line { .. } => true,
            Self::Read { source, .. } => is_wrong_path(source),
            Self::Plot { .. } | Self::Output(_) => false,
        }
    }

    fn has_place(&self) -> bool {
        matches!(self, Self::Line { .. })
    }
}

impl Error {
    fn reading(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Read { path: path.into(), source }
    }

    fn at(path: &Path, line: u64, why: impl Into<String>) -> Self {
        Self::Line { path: path.into(), line, why: why.into() }
    }
}

/// Runs the command and prints the results.
///
/// # Errors
/// A file can't be used, or the results can't be written.
pub fn run(args: &Args) -> Result<(), Error> {
    match &args.command {
        Command::Solve(args) => print(&mut io::stdout().lock(), &args.solve()),
        Command::Size(args) => print(&mut io::stdout().lock(), &args.size()?),
        Command::Fit(args) => fit::run(args),
        Command::Analyze(args) => analyze::run(args),
    }
}

/// Prints a result as a line of JSON. Numbers that aren't finite are null.
fn print(out: &mut impl Write, result: &impl Serialize) -> Result<(), Error> {
    serde_json::to_writer(&mut *out, result).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(())
}
