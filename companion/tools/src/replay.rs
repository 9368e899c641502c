//! `penstock replay`: runs the engine over a script of operations, one JSON line each, without a clock, a network or a server.
//!
//! Each line is answered before the next is read, so a script may have any length. Without `--gate` the script decides when a
//! request is dispatched. With `--gate` the pool's gate decides, and timers fire at their times between operations.

mod answer;
mod ops;
mod run;

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};

use penstock_config::{self as config, Config, Environment, Pool};
use penstock_errors::Failure;

use self::run::{Run, Stop};
use crate::jsonl::{LINE_BYTES_MAX, Lines, is_cut};

/// Arguments of `penstock replay`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration; its first pool is used.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// The script: operations, one JSON object a line.
    #[arg(value_name = "OPS.jsonl")]
    ops: PathBuf,
    /// Let the pool's gate decide when a request is dispatched, and run timers.
    #[arg(long)]
    gate: bool,
}

/// A replay that ended before the end of its script.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is wrong.
    #[error(transparent)]
    Policy(#[from] config::Error),
    /// The script can't be opened.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line of the script is wrong. The lines before it have been answered.
    #[error("{}:{line}: {message}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// What is wrong, and the values that are allowed.
        message: String,
    },
    /// Reading the script failed.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Writing an answer failed.
    #[error("can't write the answers: {0}")]
    Output(io::Error),
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        matches!(self, Self::Policy(_) | Self::Open { .. } | Self::Line { .. })
    }

    fn has_place(&self) -> bool {
        matches!(self, Self::Line { .. })
    }
}

/// Runs the script, and writes the answers to standard output.
///
/// # Errors
/// When the configuration or a line is wrong, or reading or writing fails.
pub fn run(args: &Args, environment: &Environment) -> Result<(), Error> {
    let config = Config::read(&args.policy, environment)?;
    let pool = config.pools.into_iter().next();
    let pool = pool.expect("invariant: a configuration has a pool");
    let file = File::open(&args.ops).map_err(|source| Error::Open { path: args.ops.clone(), source })?;
    let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    script(pool, args.gate, &args.ops, file, out)
}

/// Runs a script on a pool, and writes the answers to `out`. `path` names the script in errors.
///
/// # Errors
/// When a line is wrong, or reading or writing fails.
pub fn script(
    pool: Pool,
    gate: bool,
    path: &Path,
    script: impl Read,
    out: impl io::Write,
) -> Result<(), Error> {
    let mut run = Run::new(pool, gate, out);
    let result = run_lines(&mut run, path, script);
    let flushed = run.flush().map_err(Error::Output);
    result.and(flushed)
}

fn run_lines<W: io::Write>(run: &mut Run<W>, path: &Path, script: impl Read) -> Result<(), Error> {
    let mut script = Lines::new(script);
    loop {
        let next = script.next().map_err(|source| Error::Read { path: path.into(), source })?;
        let Some((number, line)) = next else {
            return Ok(());
        };
        let result = if is_cut(line) {
            Err(Stop::Line(format!("a line must have fewer than {LINE_BYTES_MAX} bytes")))
        } else {
            run.line(line)
        };
        result.map_err(|stop| match stop {
            Stop::Line(message) => Error::Line { path: path.into(), line: number, message },
            Stop::Output(error) => Error::Output(error),
        })?;
        // A process that writes the script through a pipe may wait for this answer.
        if script.is_drained() {
            run.flush().map_err(Error::Output)?;
        }
    }
}
