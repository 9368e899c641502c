//! The workloads: what is asked for, and when, before it is scaled to a load.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use penstock_simulate::closed_loop::Planned;
use penstock_simulate::trace;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::arguments::Arguments;

/// Requests of a made-up workload before it repeats.
const MADE_UP: usize = 20_000;
/// The most tokens of a made-up prompt and of an answer.
const INPUT_MAX: f64 = 16_000.0;
const OUTPUT_MAX: f64 = 2_000.0;
/// How long each kind of the alternating workload lasts.
pub(crate) const ALTERNATION: Duration = Duration::from_mins(1);

/// The shape of the traffic.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// One kind of request all the time.
    Steady(Vec<Planned>),
    /// Two kinds in turn, each at the load that the cell asks for.
    Alternating([Vec<Planned>; 2]),
}

/// A workload.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// Where it comes from, for the page.
    pub(crate) source: String,
    /// Arrivals count from zero; the tenant isn't set.
    pub(crate) shape: Shape,
}

/// All workloads. The error says which file can't be read.
pub(crate) fn all(arguments: &Arguments) -> Result<Vec<Workload>, String> {
    // Medians of 1,020 and 129 tokens in Azure's conversations, 1,500 and 13 in its code completions: Patel et al., "Splitwise", ISCA 2024.
    // The spreads give the means of those traces.
    let chat = LogNormal::new((1_020.0, 0.5), (129.0, 1.0));
    let code = LogNormal::new((1_500.0, 0.79), (13.0, 1.24));
    let long = LogNormal::new((7_000.0, 0.5), (130.0, 0.5));
    Ok(vec![
        steady("chat", arguments.chat.as_deref(), &chat, 1)?,
        steady("code", arguments.code.as_deref(), &code, 2)?,
        Workload {
            name: "alternating",
            source: format!(
                "made up; a minute of chats ({}) and a minute of questions about documents ({}) in turn",
                chat.text(),
                long.text()
            ),
            shape: Shape::Alternating([chat.draw(3), long.draw(4)]),
        },
    ])
}

fn steady(name: &'static str, file: Option<&Path>, sizes: &LogNormal, seed: u64) -> Result<Workload, String> {
    let (requests, source) = match file {
        Some(file) => {
            let requests = read(file)?;
            let source = format!("{}, {}", file_name(file), means(&requests));
            (requests, source)
        }
        None => (sizes.draw(seed), format!("made up; {}", sizes.text())),
    };
    Ok(Workload { name, source, shape: Shape::Steady(requests) })
}

fn file_name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn means(requests: &[Planned]) -> String {
    let mean =
        |size: fn(&Planned) -> u64| requests.iter().map(size).sum::<u64>() / requests.len().max(1) as u64;
    format!(
        "{} requests with {} prompt tokens and {} output tokens on average",
        requests.len(),
        mean(|request| request.input),
        mean(|request| request.output)
    )
}

fn read(file: &Path) -> Result<Vec<Planned>, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
    let reader = BufReader::new(File::open(file).map_err(|error| failed(&error))?);
    let trace = trace::read(reader, None, Duration::MAX).map_err(|error| failed(&error))?;
    let requests = trace.requests.iter().map(|request| Planned {
        at: request.at,
        tenant: 0,
        input: request.input,
        output: request.output,
    });
    Ok(requests.collect())
}

/// Sizes of made-up requests: the medians of prompt and answer, and the standard deviations of their logarithms.
#[derive(Clone, Copy, Debug)]
struct LogNormal {
    input: (f64, f64),
    output: (f64, f64),
}

impl LogNormal {
    const fn new(input: (f64, f64), output: (f64, f64)) -> Self {
        Self { input, output }
    }

    fn text(&self) -> String {
        format!(
            "log-normal with medians of {} prompt tokens (deviation of the logarithm {}) and {} output tokens ({})",
            self.input.0, self.input.1, self.output.0, self.output.1
        )
    }

    /// Requests at random times, one a second on average.
    fn draw(&self, seed: u64) -> Vec<Planned> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut arrival = Duration::ZERO;
        let requests = (0..MADE_UP).map(|_| {
            let unit: f64 = rng.random();
            arrival += Duration::from_secs_f64(-(1.0 - unit).ln());
            Planned {
                at: arrival,
                tenant: 0,
                input: sample(&mut rng, self.input, INPUT_MAX),
                output: sample(&mut rng, self.output, OUTPUT_MAX),
            }
        });
        requests.collect()
    }
}

fn sample(rng: &mut ChaCha8Rng, (median, deviation): (f64, f64), max: f64) -> u64 {
    let (first, second): (f64, f64) = (rng.random(), rng.random());
    let normal = (-2.0 * (1.0 - first).ln()).sqrt() * (std::f64::consts::TAU * second).cos();
    (median * (deviation * normal).exp()).clamp(1.0, max).round() as u64
}
