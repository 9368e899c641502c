//! The command line: number of rounds, durations, subjects and rows.

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
}

/// A measurement of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Row {
    /// Throughput with bodies of 1 KB over 50 connections.
    Many,
    /// The same over one connection.
    One,
    /// The same over 50 with bodies of 220 KB.
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
}

impl Row {
    const ALL: [(&str, Self); 8] = [
        ("at-50", Self::Many),
        ("at-1", Self::One),
        ("220kb", Self::Long),
        ("open", Self::Open),
        ("sse", Self::Events),
        ("paused", Self::Paused),
        ("companion", Self::Companion),
        ("idle", Self::Idle),
    ];
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
        };
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            if option == "--bench" {
                continue;
            }
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
                _ => return Err(format!("{option}: unknown; {}", usage())),
            }
        }
        if plan.subjects.is_empty() {
            plan.subjects = Which::ALL.map(|(_, which)| which).to_vec();
        }
        if plan.rows.is_empty() {
            plan.rows = Row::ALL.map(|(_, row)| row).to_vec();
        }
        Ok(plan)
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
        self.subjects.len() == Which::ALL.len() && self.rows.len() == Row::ALL.len()
    }

    /// Whether the `penstock` binary takes part.
    pub(crate) fn needs_penstock(&self) -> bool {
        let ours = |which: &Which| matches!(which, Which::Penstock | Which::Queued | Which::Replicas);
        self.subjects.iter().any(ours)
            || [Row::Paused, Row::Companion, Row::Idle]
                .iter()
                .any(|row| self.has(*row))
    }

    pub(crate) fn has(&self, row: Row) -> bool {
        self.rows.contains(&row)
    }
}

fn usage() -> String {
    let names = |words: Vec<&str>| words.join(", ");
    format!(
        "just bench gateway [--rounds N] [--seconds N] [--idle N] [--rate N] [--only NAME,...]; names are subjects ({}) \
         and rows ({})",
        names(Which::ALL.iter().map(|which| which.0).collect()),
        names(Row::ALL.iter().map(|row| row.0).collect()),
    )
}
