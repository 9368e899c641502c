//! A study's report: a JSON file with all figures, and a Markdown page of the same name, which is written from it.

use std::path::Path;
use std::{fs, io};

use serde_json::{Map, Value};

/// The figures of a study, by part. Several programs may add parts, and a run may replace one alone.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    /// The figures.
    pub figures: Map<String, Value>,
}

impl Report {
    /// The figures of an earlier report in `dir`; empty if there is no readable one.
    #[must_use]
    pub fn read(dir: &Path, name: &'static str) -> Self {
        let text = fs::read_to_string(dir.join(name).with_extension("json")).unwrap_or_default();
        Self { name, figures: serde_json::from_str(&text).unwrap_or_default() }
    }

    /// Writes the figures, and the `page` that shows them.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn write(&self, dir: &Path, page: &str) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let json = serde_json::to_string(&self.figures).map_err(io::Error::other)?;
        fs::write(dir.join(self.name).with_extension("json"), json + "\n")?;
        fs::write(dir.join(self.name).with_extension("md"), page)
    }
}
