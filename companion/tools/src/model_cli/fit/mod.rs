//! `penstock model fit`: a file of observations, one answer a line, and a summary.
//!
//! A file of windows is answered as it is read, by the Kalman filter; one of requests is read whole first, because
//! what a request decoded beside may stand further down, and learned from as the gateway does.

mod lines;
mod overlaps;
mod plot;
mod requests;
mod windows;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use penstock_model::Parameters;
use penstock_model::learner::State;
use serde::Serialize;

use super::number::Three;
use super::progress::Progress;
use super::{Error, answer};
use crate::jsonl::{LINE_BYTES_MAX, Lines, is_cut};
use lines::Form;
use plot::Plot;

/// What `penstock model fit` is told.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The observations, one JSON object a line: windows {"t", "rate", "input", "output", "ttft", "itl"} or requests
    /// {"t", "input", "output", "dispatched", "first", "done", "endpoint"}; times that pass in seconds, durations in
    /// milliseconds.
    #[arg(value_name = "OBS.jsonl")]
    observations: PathBuf,
    /// Start from these: alpha, beta and gamma in milliseconds.
    #[arg(
        long,
        value_name = "A,B,G",
        conflicts_with = "no_bootstrap",
        allow_hyphen_values = true
    )]
    init: Option<Three>,
    /// Start from the defaults 5,0.05,0.00005 instead of what the first window suggests. Requests need no start.
    #[arg(long)]
    no_bootstrap: bool,
    /// Write observed against fitted as a picture.
    #[arg(long, value_name = "OUT.svg")]
    plot: Option<PathBuf>,
}

/// Where learning starts.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// From the first observation.
    Bootstrap,
    Defaults,
    Given(Parameters),
}

/// What is known, in answers: null where nothing is.
#[derive(Clone, Copy, Debug, Serialize)]
struct Known {
    alpha: Option<f64>,
    beta: Option<f64>,
    gamma: Option<f64>,
    state: &'static str,
}

impl Known {
    fn new(parameters: Option<Parameters>, state: State) -> Self {
        Self {
            alpha: parameters.map(|it| it.alpha_ms),
            beta: parameters.map(|it| it.beta_ms),
            gamma: parameters.map(|it| it.gamma_ms),
            state: state.as_str(),
        }
    }
}

/// The answer to a line.
#[derive(Clone, Copy, Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    known: Known,
    nis: Option<f64>,
    accepted: bool,
    condition: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Last {
    summary: Summary,
}

/// What came of a file.
#[derive(Clone, Copy, Debug, Serialize)]
struct Summary {
    #[serde(flatten)]
    known: Known,
    accepted: u64,
    rejected: u64,
    undefined: u64,
    restarts: u64,
}

/// Learns from the file and answers on stdout.
pub(super) fn run(args: &Args) -> Result<(), Error> {
    let path = &args.observations;
    let file = File::open(path).map_err(Error::reading(path))?;
    let start = match (args.init, args.no_bootstrap) {
        (Some(three), _) => Start::Given(three.parameters()),
        (None, true) => Start::Defaults,
        (None, false) => Start::Bootstrap,
    };
    if let Some(to) = &args.plot {
        plot::check(to)?;
    }
    let mut plot = args.plot.as_deref().map(|_| Plot::default());
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let done = learn(Source::new(path, file), start, plot.as_mut(), &mut out);
    out.flush()?;
    done?;
    if let (Some(plot), Some(to)) = (plot, &args.plot) {
        plot.write(to)?;
    }
    Ok(())
}

fn learn(
    mut source: Source<'_>,
    start: Start,
    plot: Option<&mut Plot>,
    out: &mut impl Write,
) -> Result<(), Error> {
    let summary = match source.form()? {
        Some(Form::Requests) => requests::learn(&mut source, start, plot, out)?,
        // No line at all has either form.
        Some(Form::Windows) | None => windows::learn(&mut source, start, plot, out)?,
    };
    answer(out, &Last { summary })
}

/// The lines of the file, of one form.
struct Source<'a> {
    path: &'a Path,
    lines: Lines<File>,
    /// Of the first line, which waits to be read again.
    form: Option<Form>,
    first: Option<Vec<u8>>,
    progress: Option<Progress>,
}

impl<'a> Source<'a> {
    fn new(path: &'a Path, file: File) -> Self {
        let bytes = file.metadata().map_or(0, |it| it.len());
        Self {
            path,
            lines: Lines::new(file),
            form: None,
            first: None,
            progress: Some(Progress::new("reading", bytes)),
        }
    }

    /// Of the first line; `None`: there is none.
    fn form(&mut self) -> Result<Option<Form>, Error> {
        if let Some((number, line)) = self.lines.next().map_err(Error::reading(self.path))? {
            self.form = Some(
                whole(line)
                    .and_then(Form::of)
                    .map_err(|why| Error::at(self.path, number, why))?,
            );
            self.first = Some(line.to_vec());
        }
        Ok(self.form)
    }

    /// What `read` makes of the next line.
    fn next<T>(&mut self, read: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<Option<T>, Error> {
        if let Some(line) = self.first.take() {
            return read(&line).map(Some).map_err(|why| Error::at(self.path, 1, why));
        }
        let Some((number, line)) = self.lines.next().map_err(Error::reading(self.path))? else {
            self.progress = None;
            return Ok(None);
        };
        if let Some(progress) = &mut self.progress {
            progress.advance(line.len() as u64);
        }
        whole(line)
            .and_then(|line| {
                self.form.map_or(Ok(()), |form| form.check(line))?;
                read(line).map(Some)
            })
            .map_err(|why| Error::at(self.path, number, why))
    }

    /// Whoever writes the file as it goes waits for an answer.
    fn is_drained(&self) -> bool {
        self.lines.is_drained()
    }
}

fn whole(line: &[u8]) -> Result<&[u8], String> {
    if is_cut(line) {
        Err(format!("a line has less than {LINE_BYTES_MAX} bytes"))
    } else {
        Ok(line)
    }
}
