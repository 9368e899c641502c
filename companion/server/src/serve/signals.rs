//! The signals that the companion handles.

use tokio::signal::unix::{SignalKind, signal};

use crate::active::reload;

/// Why the companion shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndSignal {
    /// SIGTERM.
    Terminate,
    /// SIGINT.
    Interrupt,
}

/// The signals that the companion handles.
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hang_up: tokio::signal::unix::Signal,
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Returns at the next SIGTERM or SIGINT; reloads the configuration at each SIGHUP.
    pub(super) async fn next_end(&mut self, config: &reload::Handle) -> EndSignal {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return EndSignal::Terminate,
                _ = self.interrupt.recv() => return EndSignal::Interrupt,
                _ = self.hang_up.recv() => config.reload().await,
            }
        }
    }
}
