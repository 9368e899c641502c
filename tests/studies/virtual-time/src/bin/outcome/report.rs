//! The report: outcome.json with all figures, and outcome.md, which is written from it.

use std::path::Path;
use std::{fs, io};

use serde_json::{Map, Value, json};

use crate::workloads::Workload;

/// The figures of the comparison. Figures of the real gateway, which another program measures, stand in the same file.
#[derive(Debug)]
pub(crate) struct Report(Map<String, Value>);

impl Report {
    /// The figures of an earlier report; empty if there is no readable outcome.json.
    pub(crate) fn read(dir: &Path) -> Self {
        let text = fs::read_to_string(dir.join("outcome.json")).unwrap_or_default();
        Self(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Replaces the figures of the simulated cells.
    pub(crate) fn set(&mut self, workloads: &[Workload], cells: Vec<Value>) {
        let sources =
            workloads.iter().map(|workload| json!({"name": workload.name, "source": workload.source}));
        self.0.insert("workloads".into(), sources.collect());
        self.0.insert("cells".into(), cells.into());
    }

    /// Writes both files.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let json = serde_json::to_string(&self.0).map_err(io::Error::other)?;
        fs::write(dir.join("outcome.json"), json + "\n")?;
        fs::write(dir.join("outcome.md"), crate::page::text(&self.0))
    }
}
