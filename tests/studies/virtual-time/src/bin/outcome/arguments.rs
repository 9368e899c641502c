//! The arguments of the command.

use std::path::PathBuf;

pub(crate) const USAGE: &str =
    "usage: outcome [--chat FILE] [--code FILE] [--out DIR] [--only TEXT] [--page]";

/// The arguments of the command.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// A trace of conversations; `None`: made up.
    pub(crate) chat: Option<PathBuf>,
    /// A trace of code completions; `None`: made up.
    pub(crate) code: Option<PathBuf>,
    /// The folder of the report.
    pub(crate) out: PathBuf,
    /// A part of the names of the cells to run; `None`: all.
    pub(crate) only: Option<String>,
    /// Only write the page from the figures of earlier runs.
    pub(crate) page: bool,
}

impl Arguments {
    /// Parses the words after the program's name.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self {
            chat: None,
            code: None,
            out: PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/bench")),
            only: None,
            page: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--chat" => arguments.chat = Some(value()?.into()),
                "--code" => arguments.code = Some(value()?.into()),
                "--out" => arguments.out = value()?.into(),
                "--page" => arguments.page = true,
                "--only" => arguments.only = Some(value()?),
                _ => return Err(format!("invalid argument: {word}")),
            }
        }
        Ok(arguments)
    }
}
