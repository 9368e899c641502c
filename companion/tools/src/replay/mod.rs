//! `penstock replay`: the engine over a script of operations, one JSON line each, without a clock, a network or a
//! server.
//!
//! Reads and answers line by line, so that a script may be as long as it likes. Without `--gate` the script says
//! when something goes; with it the pool's own gate decides, and timers run at their time between operations.

mod answer;
mod ops;
mod run;

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::path::{Path, PathBuf};

use crate::jsonl::{LINE_BYTES_MAX, Lines, is_cut};
use penstock_config::{self as config, Config, Environment, Pool};
use penstock_errors::EXIT_USAGE;
use run::{Run, Stop};

/// What `penstock replay` is told.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration; its first pool is the one that is run.
    #[arg(long, value_name = "FILE")]
    policy: PathBuf,
    /// The operations, one JSON object a line.
    #[arg(value_name = "OPS.jsonl")]
    ops: PathBuf,
    /// The pool's own gate decides when something goes, and its timers run.
    #[arg(long)]
    gate: bool,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy can't be used.
    #[error(transparent)]
    Policy(#[from] config::Error),
    /// The script can't be opened.
    #[error("{}: {source}", path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line of the script is wrong. What was answered before is out.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// What is wrong, and what is allowed.
        why: String,
    },
    /// The script can't be read on.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An answer can't be written.
    #[error("can't write the answers: {0}")]
    Output(io::Error),
}

impl Error {
    /// 2 for what its user must change, 1 for what failed.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Policy(_) | Self::Open { .. } | Self::Line { .. } => EXIT_USAGE,
            Self::Read { .. } | Self::Output(_) => 1,
        }
    }
}

/// Runs the script and answers on stdout.
///
/// # Errors
/// When a file can't be used, a line is wrong, or nobody takes the answers.
pub fn run(args: &Args, environment: &Environment) -> Result<(), Error> {
    let config = Config::read(&args.policy, environment)?;
    let pool = config.pools.into_iter().next();
    let pool = pool.expect("invariant: a configuration has a pool");
    let file = File::open(&args.ops).map_err(|source| Error::Open {
        path: args.ops.clone(),
        source,
    })?;
    let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    script(pool, args.gate, &args.ops, file, out)
}

/// Runs a script on a pool and answers on `out`; `path` names the script in errors.
///
/// # Errors
/// When a line is wrong, the script can't be read, or nobody takes the answers.
pub fn script(
    pool: Pool,
    gate: bool,
    path: &Path,
    script: impl Read,
    out: impl io::Write,
) -> Result<(), Error> {
    let mut run = Run::new(pool, gate, out);
    let done = lines(&mut run, path, script);
    let flushed = run.flush().map_err(Error::Output);
    done.and(flushed)
}

fn lines<W: io::Write>(run: &mut Run<W>, path: &Path, script: impl Read) -> Result<(), Error> {
    let mut script = Lines::new(script);
    loop {
        let next = script.next().map_err(|source| Error::Read {
            path: path.into(),
            source,
        })?;
        let Some((number, line)) = next else {
            return Ok(());
        };
        let done = if is_cut(line) {
            Err(Stop::Line(format!("a line has less than {LINE_BYTES_MAX} bytes")))
        } else {
            run.line(line)
        };
        done.map_err(|stop| match stop {
            Stop::Line(why) => Error::Line {
                path: path.into(),
                line: number,
                why,
            },
            Stop::Output(error) => Error::Output(error),
        })?;
        // Who writes the script as it goes, through a pipe, sees each answer.
        if script.is_drained() {
            run.flush().map_err(Error::Output)?;
        }
    }
}
