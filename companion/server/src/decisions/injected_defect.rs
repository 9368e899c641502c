//! A defect on demand, for tests: SIGUSR1 makes the driver panic. Only the tests' build has it (feature `injected-defect`),
//! so that no signal, header or request can crash a binary that is shipped.

use tokio::signal::unix::{SignalKind, signal};

use crate::decisions::driver::Handle;

/// Waits for SIGUSR1 and injects a defect, until the driver has ended.
///
/// # Errors
/// When the signal handler can't be installed.
pub(crate) fn follow_signal(driver: Handle) -> std::io::Result<()> {
    let mut requests = signal(SignalKind::user_defined1())?;
    tokio::spawn(async move {
        while requests.recv().await.is_some() {
            if driver.inject_defect().await.is_err() {
                return;
            }
        }
    });
    Ok(())
}
