//! The requests of a simulation, from a trace or a scenario.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_simulate::closed_loop::Planned;
use penstock_simulate::limits::ARRIVALS_MAX;
use penstock_simulate::simulation::capacity;
use penstock_simulate::tenants::{self, Tenants};
use penstock_simulate::{scenarios, trace};

use super::args::{Args, Scenario};
use super::error::Error;
use super::outcome::Source;
use super::policies::Policies;
use crate::progress::Progress;

/// The time of a scenario without `--for`.
const SCENARIO_LENGTH: Duration = Duration::from_mins(10);

/// The requests of all runs.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) source: Source,
    /// In order of their arrivals; at least one.
    pub(super) requests: Arc<[Planned]>,
    pub(super) tenants: Vec<Arc<str>>,
    /// Requests of the trace that were left out because they have no answer.
    pub(super) unanswered: u64,
}

impl Input {
    /// Reads the trace or makes the traffic of the scenario.
    pub(super) fn read(args: &Args, policies: &Policies) -> Result<Self, Error> {
        let input = match (&args.trace, args.scenario) {
            (Some(path), _) => Self::of_trace(args, path)?,
            (None, Some(scenario)) => Self::of_scenario(args, scenario, policies)?,
            (None, None) => return Err(Error::Usage("give --trace or --scenario".into())),
        };
        Ok(match args.tenants {
            Some(count) => input.dealt(count as usize, args.seed),
            None => input,
        })
    }

    /// The time of the last arrival.
    pub(super) fn arrivals(&self) -> Duration {
        self.requests.last().map_or(Duration::ZERO, |last| last.at)
    }

    fn of_trace(args: &Args, path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::reading(path))?;
        let bytes = file.metadata().map_or(0, |metadata| metadata.len());
        let reader =
            BufReader::with_capacity(1 << 16, Watched { file, progress: Progress::new("reading", bytes) });
        let scale = args.scale.0;
        let length = args.length.map_or(Duration::MAX, |length| scaled(length, scale));
        let read = trace::read(reader, args.trace_format.map(Into::into), length);
        let trace = read.map_err(|error| Error::trace(path, error))?;
        let requests = trace.requests.iter().map(|request| Planned {
            at: scaled(request.at, 1.0 / scale),
            tenant: 0,
            input: request.input,
            output: request.output,
        });
        let input = Self {
            source: Source::Trace(path.display().to_string()),
            requests: requests.collect(),
            tenants: tenants::names(1),
            unanswered: trace.unanswered,
        };
        if input.arrivals() > ARRIVALS_MAX {
            return Err(Error::Usage(format!(
                "at this --scale the requests arrive over more than {} days; take a shorter part of the trace with --for",
                ARRIVALS_MAX.as_secs() / 86_400
            )));
        }
        Ok(input)
    }

    fn of_scenario(args: &Args, scenario: Scenario, policies: &Policies) -> Result<Self, Error> {
        let length = args.length.unwrap_or(SCENARIO_LENGTH);
        let servers = policies.base_servers();
        let rate = |mix: &_| capacity(&servers, mix, &policies.goal);
        let traffic = scenarios::traffic(scenario.into(), length, args.scale.0, args.seed, rate)
            .map_err(|error| Error::Usage(error.to_string()))?;
        if traffic.requests.is_empty() {
            return Err(Error::Usage(
                "the scenario has no request, because its load follows the servers' capacity within the targets, and that is too \
                 small; raise --slo-ttft, --slo-itl, --scale or --for"
                    .into(),
            ));
        }
        Ok(Self {
            source: Source::Scenario(scenario),
            requests: traffic.requests.into(),
            tenants: traffic.tenants,
            unanswered: 0,
        })
    }

    /// These requests, dealt to `count` tenants.
    fn dealt(self, count: usize, seed: u64) -> Self {
        let mut tenants = Tenants::new(count, seed);
        let requests = self.requests.iter().map(|request| Planned { tenant: tenants.draw(), ..*request });
        Self { requests: requests.collect(), tenants: tenants::names(count), ..self }
    }
}

/// A time multiplied, and at most the longest that there is.
fn scaled(time: Duration, factor: f64) -> Duration {
    if factor == 1.0 {
        return time;
    }
    Duration::try_from_secs_f64(time.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// A file whose reading shows its progress.
struct Watched {
    file: File,
    progress: Progress,
}

impl Read for Watched {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(out)?;
        self.progress.advance(read as u64);
        Ok(read)
    }
}
