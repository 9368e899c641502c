//! The sessions of one worker with the companion that leads: frames as bytes, over channels.

use bytes::Bytes;
use penstock_filter_core::effect::SessionId;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::event::Event;
use crate::limits::FRAMES;

/// A session that a worker opens. The companion closes it by dropping `to_worker`, and the worker by dropping the other end of
/// `from_worker`.
#[derive(Debug)]
pub struct NewSession {
    /// Where the leader listens for filters, as `IP:PORT`; `None`: the session is with the companion of this process,
    /// which leads, or knows the leader.
    pub leader: Option<String>,
    /// The worker's frames, encoded.
    pub from_worker: mpsc::Receiver<Bytes>,
    /// Takes the companion's frames, encoded.
    pub to_worker: mpsc::Sender<Bytes>,
}

/// The open sessions of a worker.
pub(crate) struct Sessions {
    /// Where filters find the companion of this process.
    own: Option<String>,
    companion: mpsc::Sender<NewSession>,
    /// Where the companion's frames go.
    events: mpsc::Sender<Event>,
    open: Vec<Session>,
    opened: u64,
}

struct Session {
    id: SessionId,
    /// Distinguishes it from earlier ones with this id, whose frames may still come.
    number: u64,
    frames: mpsc::Sender<Bytes>,
    forwarding: AbortHandle,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.forwarding.abort();
    }
}

impl Sessions {
    pub(crate) const fn new(
        own: Option<String>,
        companion: mpsc::Sender<NewSession>,
        events: mpsc::Sender<Event>,
    ) -> Self {
        Self { own, companion, events, open: Vec::new(), opened: 0 }
    }

    /// The leader is another process.
    pub(crate) fn is_elsewhere(&self, leader: Option<&str>) -> bool {
        leader.is_some() && leader != self.own.as_deref()
    }

    /// Opens a session with the leader, if it is known. `false`: the companion is ending, or has too many to open.
    pub(crate) fn open(&mut self, id: SessionId, leader: Option<String>) -> bool {
        let (frames, from_worker) = mpsc::channel(FRAMES);
        let (to_worker, from_companion) = mpsc::channel(FRAMES);
        if self.companion.try_send(NewSession { leader, from_worker, to_worker }).is_err() {
            return false;
        }
        self.opened = self.opened.saturating_add(1);
        let number = self.opened;
        let forwarding = tokio::spawn(forward(id, number, from_companion, self.events.clone()));
        self.close(id);
        self.open.push(Session { id, number, frames, forwarding: forwarding.abort_handle() });
        true
    }

    /// Sends a frame. `false`: the session is closed, or the companion doesn't read.
    pub(crate) fn send(&mut self, id: SessionId, frame: Vec<u8>) -> bool {
        let session = self.open.iter().find(|session| session.id == id);
        session.is_some_and(|session| session.frames.try_send(frame.into()).is_ok())
    }

    pub(crate) fn close(&mut self, id: SessionId) {
        self.open.retain(|session| session.id != id);
    }

    /// Whether the session with this id is the one with this number.
    pub(crate) fn is_current(&self, id: SessionId, number: u64) -> bool {
        self.open.iter().any(|session| session.id == id && session.number == number)
    }
}

/// Passes the companion's frames to the worker, and then the end of the session.
async fn forward(id: SessionId, number: u64, mut frames: mpsc::Receiver<Bytes>, events: mpsc::Sender<Event>) {
    while let Some(frame) = frames.recv().await {
        if events.send(Event::Frame(id, number, frame)).await.is_err() {
            return;
        }
    }
    // Fails when the worker has ended, which needs it no more.
    let _: Result<(), _> = events.send(Event::SessionClosed(id, number)).await;
}
