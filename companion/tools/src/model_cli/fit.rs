//! `penstock model fit`: learns from a file of observations. Prints a result for each line, and a summary.
//!
//! Windows are processed while the file is read, by the Kalman filter. A file of requests is read completely first,
//! because later lines can describe requests that ran at the same time; then the gateway's learner processes them.

mod lines;
mod overlaps;
mod plot;
mod recording;
mod requests;
mod windows;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use penstock_model::Parameters;
use penstock_model::learner::State;
use serde::Serialize;

use self::lines::Format;
use self::plot::Plot;
use super::{Error, print};
use crate::jsonl::{LINE_BYTES_MAX, Lines, is_cut};
use crate::number::ParameterTriple;
use crate::progress::Progress;

/// Arguments of `penstock model fit`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The observations, one JSON object per line: windows {"t", "rate", "input", "output", "ttft", "itl"} or requests
    /// {"t", "input", "output", "dispatched", "first", "done", "endpoint"}; points in time in seconds, durations in
    /// milliseconds.
    #[arg(value_name = "OBS.jsonl")]
    observations: PathBuf,
    /// Initial alpha, beta and gamma in milliseconds.
    #[arg(long, value_name = "A,B,G", conflicts_with = "no_bootstrap", allow_hyphen_values = true)]
    init: Option<ParameterTriple>,
    /// Start with the defaults 5,0.05,0.00005 instead of an estimate from the first window. Has no effect on requests.
    #[arg(long)]
    no_bootstrap: bool,
    /// Write a plot of observed and fitted values.
    #[arg(long, value_name = "OUT.svg")]
    plot: Option<PathBuf>,
}

/// The initial parameters.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// Estimated from the first observation.
    Bootstrap,
    Defaults,
    Given(Parameters),
}

/// The learned parameters in a result: null if there are none.
#[derive(Clone, Copy, Debug, Serialize)]
struct Learned {
    alpha: Option<f64>,
    beta: Option<f64>,
    gamma: Option<f64>,
    state: &'static str,
}

impl Learned {
    fn new(parameters: Option<Parameters>, state: State) -> Self {
        Self {
            alpha: parameters.map(|parameters| parameters.alpha_ms),
            beta: parameters.map(|parameters| parameters.beta_ms),
            gamma: parameters.map(|parameters| parameters.gamma_ms),
            state: state.as_str(),
        }
    }
}

/// The result for a line.
#[derive(Clone, Copy, Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    learned: Learned,
    nis: Option<f64>,
    accepted: bool,
    condition: Option<f64>,
}

#[derive(Debug, Serialize)]
struct LastLine {
    summary: Summary,
}

/// The result for a file.
#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    learned: Learned,
    accepted: u64,
    rejected: u64,
    undefined: u64,
    restarts: u64,
}

/// Learns from the file and prints the results.
pub(super) fn run(args: &Args) -> Result<(), Error> {
    let path = &args.observations;
    let file = File::open(path).map_err(Error::reading(path))?;
    let start = match (args.init, args.no_bootstrap) {
        (Some(initial), _) => Start::Given(initial.parameters()),
        (None, true) => Start::Defaults,
        (None, false) => Start::Bootstrap,
    };
    if let Some(path) = &args.plot {
        plot::check(path)?;
    }
    let mut plot = args.plot.as_deref().map(|_| Plot::default());
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let result = learn(Source::new(path, file), start, plot.as_mut(), &mut out);
    out.flush()?;
    result?;
    if let (Some(plot), Some(path)) = (plot, &args.plot) {
        plot.write(path)?;
    }
    Ok(())
}

fn learn(
    mut source: Source<'_>,
    start: Start,
    plot: Option<&mut Plot>,
    out: &mut impl Write,
) -> Result<(), Error> {
    let summary = match source.detect_format()? {
        Some(Format::Requests) => requests::learn(&mut source, start, plot, out)?,
        // An empty file can have either format.
        Some(Format::Windows) | None => windows::learn(&mut source, start, plot, out)?,
    };
    print(out, &LastLine { summary })
}

/// The lines of a file, which all have one format.
struct Source<'a> {
    path: &'a Path,
    lines: Lines<File>,
    /// The format of the first line.
    format: Option<Format>,
    /// The first line, after its format was detected and before it is parsed.
    first: Option<Vec<u8>>,
    progress: Option<Progress>,
}

impl<'a> Source<'a> {
    fn new(path: &'a Path, file: File) -> Self {
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        Self {
            path,
            lines: Lines::new(file),
            format: None,
            first: None,
            progress: Some(Progress::new("reading", bytes)),
        }
    }

    /// Detects the format from the first line; `None` if the file is empty.
    fn detect_format(&mut self) -> Result<Option<Format>, Error> {
        if let Some((number, line)) = self.lines.next().map_err(Error::reading(self.path))? {
            self.format = Some(
                complete(line).and_then(Format::detect).map_err(|why| Error::at(self.path, number, why))?,
            );
            self.first = Some(line.to_vec());
        }
        Ok(self.format)
    }

    /// Parses the next line with `parse`.
    fn next<T>(&mut self, parse: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<Option<T>, Error> {
        if let Some(line) = self.first.take() {
            return parse(&line).map(Some).map_err(|why| Error::at(self.path, 1, why));
        }
        let Some((number, line)) = self.lines.next().map_err(Error::reading(self.path))? else {
            self.progress = None;
            return Ok(None);
        };
        if let Some(progress) = &mut self.progress {
            progress.advance(line.len() as u64);
        }
        complete(line)
            .and_then(|line| {
                self.format.map_or(Ok(()), |format| format.check(line))?;
                parse(line).map(Some)
            })
            .map_err(|why| Error::at(self.path, number, why))
    }

    /// Whether all available input is processed, so that another process may wait for the results.
    fn is_drained(&self) -> bool {
        self.lines.is_drained()
    }
}

fn complete(line: &[u8]) -> Result<&[u8], String> {
    if is_cut(line) { Err(format!("a line must have fewer than {LINE_BYTES_MAX} bytes")) } else { Ok(line) }
}
