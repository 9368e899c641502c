//! What a companion knows of sessions and requests, from the frames that it has processed: the world's own records.

use penstock_control::ConnId;
use penstock_wire::filter_frame::Event as FilterEvent;
use penstock_wire::{FilterFrame, Hello};

use super::super::World;
use super::super::time::MICRO;

/// A root context's id and a sequence number in its session.
pub(super) type Key = (u64, u64);

/// The events of one batch that change what the companion knows. The world's own records follow only after the batch,
/// because the companion may decide on other requests before it processes these events.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// With their ages in microseconds.
    registered: Vec<(Key, u64)>,
    running: Vec<Key>,
    pub(super) closed: Vec<ConnId>,
    ended: Vec<Key>,
}

impl World {
    pub(super) fn record_batch(&mut self, index: usize, batch: Batch) {
        let generation = self.companions[index].generation;
        for conn in batch.closed {
            self.orphan(index, conn);
        }
        for (root, sequence) in batch.ended {
            if let Some(root) = self.roots.get_mut(&root) {
                root.unreported_ends.remove(&sequence);
                root.attachments[index].reported_ends.insert(sequence);
            }
        }
        let delay = self.notification_delay_max();
        for (key, age_us) in batch.registered {
            let reported_arrival = self.now.saturating_sub(age_us.saturating_mul(MICRO));
            let http = self.http_of(key).and_then(|id| self.http_streams.get_mut(&id));
            if let Some(http) = http.filter(|http| http.registered_with != Some(generation)) {
                http.registered_with = Some(generation);
                http.age_uncertain = reported_arrival > http.arrived_at + delay;
            }
        }
        for key in batch.running {
            if let Some(http) = self.http_of(key).and_then(|id| self.http_streams.get_mut(&id)) {
                http.counted_by = Some(generation);
            }
        }
    }

    /// Records a frame of a root context. Returns the root context if the frame ends its session.
    pub(super) fn record_frame(
        &mut self,
        index: usize,
        root: u64,
        conn: ConnId,
        frame: &FilterFrame,
        batch: &mut Batch,
    ) -> Option<u64> {
        match frame.event.as_ref()? {
            FilterEvent::Hello(hello) => self.record_hello(index, root, conn, hello, batch),
            FilterEvent::Register(register) => {
                batch
                    .registered
                    .push(((root, register.sequence), register.age_us));
            }
            FilterEvent::Cancel(cancel) => batch.ended.push((root, cancel.sequence)),
            FilterEvent::Completed(completed) => batch.ended.push((root, completed.sequence)),
            FilterEvent::Refused(refused) => batch.ended.push((root, refused.sequence)),
            FilterEvent::Bye(_) => {
                // A companion ignores a Bye on a stream that another stream of the session has replaced.
                let session_streams = &self.companions[index].session_streams;
                return (session_streams.get(&root) == Some(&conn.0)).then_some(root);
            }
            _ => {}
        }
        None
    }

    fn record_hello(&mut self, index: usize, root: u64, conn: ConnId, hello: &Hello, batch: &mut Batch) {
        if hello.last {
            let companion = &mut self.companions[index];
            companion.session_streams.insert(root, conn.0);
            companion.sessions_max = companion.sessions_max.max(companion.session_streams.len());
        }
        let waiting = hello.waiting.iter();
        batch
            .registered
            .extend(waiting.map(|register| ((root, register.sequence), register.age_us)));
        let running = hello
            .running
            .iter()
            .filter_map(|running| running.register.as_ref());
        batch
            .running
            .extend(running.map(|register| (root, register.sequence)));
        let root = self.roots.get_mut(&root).filter(|_| hello.last);
        let attachment = root.map(|root| &mut root.attachments[index]);
        let is_newer = |last: Option<u64>| last.is_none_or(|last| last < conn.0);
        if let Some(attachment) = attachment.filter(|known| is_newer(known.session_stream)) {
            attachment.session_stream = Some(conn.0);
            attachment.orphaned_since = None;
        }
    }

    /// The HTTP stream of a root context's request.
    pub(super) fn http_of(&self, (root, sequence): Key) -> Option<u64> {
        self.roots.get(&root)?.http_streams.get(&sequence).copied()
    }

    /// A companion has lost a session's stream.
    pub(super) fn orphan(&mut self, index: usize, conn: ConnId) {
        let now = self.companion_now(index);
        let root = self.stream_roots.get(&conn.0);
        self.companions[index]
            .session_streams
            .retain(|_, stream| *stream != conn.0);
        let Some(root) = root.and_then(|root| self.roots.get_mut(root)) else {
            return;
        };
        let attachment = &mut root.attachments[index];
        if attachment.session_stream == Some(conn.0) {
            attachment.session_stream = None;
            attachment.orphaned_since = Some(now);
        }
    }

    /// A companion has released a root context's session. Requests that it granted to this root context may run in
    /// addition to the ones that it grants from now on.
    pub(super) fn release(&mut self, index: usize, root: u64) {
        let generation = Some(self.companions[index].generation);
        for client in self
            .clients
            .iter_mut()
            .filter(|client| client.roots.contains(&root))
        {
            client.released_by = generation;
        }
        for http in self.http_streams.values_mut().filter(|http| http.root == root) {
            // The request's grant may still be in transit.
            http.released_while_running |= http.resumed || http.counted_by == generation;
            http.counted_by = None;
            http.registered_with = None;
        }
    }
}
