//! The phases of a companion's life.

use tokio::sync::watch;

/// A phase; later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// New requests are accepted.
    Serving,
    /// New requests are rejected; running requests may finish.
    Draining,
    /// The endpoint picker takes no new requests and ends with those that it has. Everything else goes on meanwhile.
    Leaving,
    /// Streams are closed after the frames that are already queued on them.
    Ending,
}

/// Returns when the endpoint picker is to end.
pub(crate) async fn leaving(mut phase: watch::Receiver<Phase>) {
    // As below.
    let _ = phase.wait_for(|phase| *phase >= Phase::Leaving).await;
}

/// Returns when the companion ends.
pub(crate) async fn ending(mut phase: watch::Receiver<Phase>) {
    // An error means that the sender is gone, so the companion has ended.
    let _ = phase.wait_for(|phase| *phase == Phase::Ending).await;
}
