//! Why a simulation fails.

use std::io;
use std::path::{Path, PathBuf};

use penstock_config as config;
use penstock_errors::{Failure, is_wrong_path};
use penstock_model_server::HardwareError;
use penstock_simulate::trace::TraceError;

/// Why a simulation fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration is wrong.
    #[error(transparent)]
    Config(#[from] config::Error),
    /// The arguments don't fit together, or not to the configuration.
    #[error("{0}")]
    Usage(String),
    /// A server's parameters are out of range.
    #[error("the servers can't be simulated: {0}")]
    Hardware(#[from] HardwareError),
    /// The trace can't be opened or read.
    #[error("can't read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A line of the trace is wrong.
    #[error("{}:{line}: {message}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: u64,
        /// What is wrong, and what is allowed.
        message: String,
    },
    /// A result can't be written.
    #[error("can't write {}: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Failure for Error {
    fn is_usage(&self) -> bool {
        match self {
            Self::Config(_) | Self::Usage(_) | Self::Hardware(_) | Self::Line { .. } => true,
            Self::Read { source, .. } => is_wrong_path(source),
            Self::Write { .. } => false,
        }
    }

    fn has_place(&self) -> bool {
        matches!(self, Self::Line { .. })
    }
}

impl Error {
    pub(super) fn reading(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Read { path: path.into(), source }
    }

    pub(super) fn writing(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Write { path: path.into(), source }
    }

    pub(super) fn trace(path: &Path, error: TraceError) -> Self {
        match error {
            TraceError::Line { line, message } => Self::Line { path: path.into(), line, message },
            TraceError::Read(source) => Self::reading(path)(source),
            error @ (TraceError::Empty | TraceError::Long) => {
                Self::Usage(format!("{}: {error}", path.display()))
            }
        }
    }
}
