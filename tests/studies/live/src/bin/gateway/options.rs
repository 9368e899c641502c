//! The command line: number of rounds, durations, subjects and rows.

use std::path::PathBuf;

use penstock_live_studies::peers::Programs;

use crate::subject::Which;

/// The plan of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Duration of one load with many connections.
    pub(crate) seconds: u32,
    /// Duration of the idle measurement.
    pub(crate) idle_s: u32,
    /// Requests per second of the open loop.
    pub(crate) rate: u32,
    pub(crate) subjects: Vec<Which>,
    pub(crate) rows: Vec<Row>,
    /// The programs of other projects.
    pub(crate) programs: Programs,
    /// Keeps callgrind's files, by function, in this folder; `None`: they are deleted.
    pub(crate) keep: Option<PathBuf>,
}

/// A measurement of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// Throughput with bodies of 1 KB over 50 connections.
    Many,
    /// Throughput with bodies of 1 KB over one connection.
    One,
    /// Throughput with bodies of 220 KB over 50 connections.
    Long,
    /// Requests of 1 KB at a fixed rate, independent of earlier ones.
    Open,
    /// Streams of events.
    Events,
    /// Memory of paused requests; Penstock only.
    Paused,
    /// Memory and CPU of the companion alone.
    Companion,
    /// CPU of an idle gateway; Penstock only.
    Idle,
    /// Envoy's instructions a request, counted by callgrind.
    Instructions,
    /// First tokens of a small tenant beside a flood; only an Envoy alone and pickers.
    Flood,
}

impl Row {
    const ALL: [(&str, Self); 10] = [
        ("at-50", Self::Many),
        ("at-1", Self::One),
        ("220kb", Self::Long),
        ("open", Self::Open),
        ("sse", Self::Events),
        ("paused", Self::Paused),
        ("companion", Self::Companion),
        ("idle", Self::Idle),
        ("instructions", Self::Instructions),
        ("flood", Self::Flood),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|row| row.1 == self).map_or("", |row| row.0)
    }

    /// Whether it can be measured before llm-d's simulator: other rows need answers that only the benchmark's own model server gives, and
    /// the simulator takes longer for a body of 220 KB than a load lasts.
    fn allows_simulator(self) -> bool {
        matches!(self, Self::Many | Self::One | Self::Open)
    }
}

impl Plan {
    /// Reads the command line.
    ///
    /// # Errors
    /// The unknown argument, and the known ones.
    pub(crate) fn read(arguments: &[String]) -> Result<Self, String> {
        let mut plan = Self {
            rounds: 5,
            seconds: 5,
            idle_s: 30,
            rate: 1_500,
            subjects: Vec::new(),
            rows: Vec::new(),
            programs: Programs::default(),
            keep: None,
        };
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            let value = rest.next().map(String::as_str).unwrap_or_default();
            let number = || match value.parse::<u32>() {
                Ok(number) if number > 0 => Ok(number),
                Ok(_) | Err(_) => Err(format!("{option} {value}: a whole number above 0 is wanted")),
            };
            match option.as_str() {
                "--rounds" => plan.rounds = usize::try_from(number()?).unwrap_or(usize::MAX),
                "--seconds" => plan.seconds = number()?,
                "--idle" => plan.idle_s = number()?,
                "--rate" => plan.rate = number()?,
                "--only" => plan.choose(value)?,
                "--keep" => plan.keep = Some(value.into()),
                "--peer-binary" => plan.programs = Programs::read(value)?,
                _ => return Err(format!("{option}: unknown; {}", usage())),
            }
        }
        plan.complete()?;
        Ok(plan)
    }

    /// Chooses what `--only` leaves open, and checks that the programs allow the choice.
    fn complete(&mut self) -> Result<(), String> {
        let has_picker = self.programs.endpoint_picker.is_some();
        if self.subjects.is_empty() {
            let all = Which::ALL.map(|(_, which)| which).into_iter();
            self.subjects = all.filter(|which| has_picker || !which.is_peer()).collect();
        }
        if let Some(peer) = self.subjects.iter().find(|which| which.is_peer())
            && !has_picker
        {
            let name = peer.name();
            return Err(format!("--only {name}: needs --peer-binary {name}=PATH"));
        }
        let has_simulator = self.programs.simulator.is_some();
        if self.rows.is_empty() {
            let all = Row::ALL.map(|(_, row)| row).into_iter();
            self.rows = all.filter(|row| !has_simulator || row.allows_simulator()).collect();
        }
        match self.rows.iter().find(|row| !row.allows_simulator()) {
            Some(row) if has_simulator => {
                let name = row.name();
                Err(format!(
                    "--only {name}: needs the benchmark's own model server; leave out sim= of --peer-binary"
                ))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn choose(&mut self, names: &str) -> Result<(), String> {
        for name in names.split(',') {
            let row = Row::ALL.iter().find(|row| row.0 == name);
            let subject = Which::ALL.iter().find(|which| which.0 == name);
            match (row, subject) {
                (Some((_, row)), _) => self.rows.push(*row),
                (_, Some((_, subject))) => self.subjects.push(*subject),
                (None, None) => return Err(format!("--only {name}: unknown; {}", usage())),
            }
        }
        Ok(())
    }

    /// Whether the run measures everything, so that its figures may be written.
    pub(crate) fn is_whole(&self) -> bool {
        let own = Which::ALL.into_iter().filter(|(_, which)| !which.is_peer());
        own.map(|(_, which)| which).all(|which| self.subjects.contains(&which))
            && Row::ALL.iter().all(|(_, row)| self.has(*row))
    }

    /// Whether anything is measured in rounds.
    pub(crate) fn has_rounds(&self) -> bool {
        [Row::Many, Row::One, Row::Long, Row::Open, Row::Events].iter().any(|row| self.has(*row))
    }

    /// Whether the `penstock` binary takes part.
    pub(crate) fn needs_penstock(&self) -> bool {
        self.subjects.iter().any(|which| which.is_penstock())
            || [Row::Paused, Row::Companion, Row::Idle, Row::Flood].iter().any(|row| self.has(*row))
    }

    pub(crate) fn has(&self, row: Row) -> bool {
        self.rows.contains(&row)
    }
}

fn usage() -> String {
    let names = |words: Vec<&str>| words.join(", ");
    format!(
        "just bench gateway [--rounds N] [--seconds N] [--idle N] [--rate N] [--only NAME,...] \
         [--peer-binary epp=PATH,sim=PATH] [--keep DIR, for callgrind's files]; names are subjects ({}) \
         and rows ({})",
        names(Which::ALL.iter().map(|which| which.0).collect()),
        names(Row::ALL.iter().map(|row| row.0).collect()),
    )
}
