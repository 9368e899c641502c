//! What a companion knows of sessions and requests, from the frames that it has processed: the world's own records.

use penstock_control::ConnId;
use penstock_wire::filter_frame::Event as FilterEvent;
use penstock_wire::{Admitted, FilterFrame, Hello};

use super::super::World;
use super::super::time::MICRO;

/// A root context's id and a sequence number in its session.
pub(super) type Key = (u64, u64);

/// The events of one batch that change what the companion knows. The world's own records follow only after the batch,
/// because the companion may decide on other requests before it processes these events.
#[derive(Debug, Default)]
pub(super) struct Batch {
    registered: Vec<Registered>,
    running: Vec<(Key, ConnId)>,
    pub(super) closed: Vec<ConnId>,
    ended: Vec<(Key, ConnId)>,
}

/// A request that a filter has registered.
#[derive(Debug)]
struct Registered {
    key: Key,
    age_us: u64,
    conn: ConnId,
    /// The group of the Hello that lists it.
    listed_in: Option<u64>,
}

impl World {
    pub(super) fn record_batch(&mut self, index: usize, batch: Batch) {
        let tenure = self.companions[index].tenure;
        for conn in batch.closed {
            self.orphan(index, conn);
        }
        for ((root, sequence), conn) in batch.ended {
            if self.is_greeted(index, conn)
                && let Some(root) = self.roots.get_mut(&root)
            {
                root.unreported_ends.remove(&sequence);
                root.attachments[index].reported_ends.insert(sequence);
            }
        }
        let delay = self.notification_delay_max();
        for Registered { key, age_us, conn, listed_in } in batch.registered {
            if !self.is_greeted(index, conn) {
                continue;
            }
            let reported_arrival = self.now.saturating_sub(age_us.saturating_mul(MICRO));
            let http = self.http_of(key).and_then(|id| self.http_streams.get_mut(&id));
            if let Some(http) = http.filter(|http| http.registered_with != Some(tenure)) {
                (http.registered_with, http.listed_in) = (Some(tenure), listed_in);
                http.age_uncertain = reported_arrival > http.arrived_at + delay;
            }
        }
        for (key, conn) in batch.running {
            if self.is_greeted(index, conn)
                && let Some(http) = self.http_of(key).and_then(|id| self.http_streams.get_mut(&id))
            {
                http.counted_by = Some(tenure);
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
        for Admitted { running, completed, .. } in &frame.admitted {
            let register = running.as_ref().and_then(|running| running.register.as_ref());
            if let Some(completed) = completed {
                batch.ended.push(((root, completed.sequence), conn));
            } else if let Some(register) = register {
                batch.running.push(((root, register.sequence), conn));
            }
        }
        match frame.event.as_ref()? {
            FilterEvent::Hello(hello) => self.record_hello(index, root, conn, hello, batch),
            FilterEvent::Register(register) => {
                let (key, age_us) = ((root, register.sequence), register.age_us);
                batch.registered.push(Registered { key, age_us, conn, listed_in: None });
            }
            FilterEvent::Cancel(cancel) => batch.ended.push(((root, cancel.sequence), conn)),
            FilterEvent::Completed(completed) => batch.ended.push(((root, completed.sequence), conn)),
            FilterEvent::Refused(refused) => batch.ended.push(((root, refused.sequence), conn)),
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
        let now = self.companion_now(index);
        let companion = &mut self.companions[index];
        // A companion that doesn't lead takes no requests. The parts of a longer Hello come later than its time.
        let leads = companion.election.as_ref().is_none_or(|election| election.leads_since.is_some());
        let begins = leads && !hello.probe && hello.part == 0;
        let listed_in = begins.then(|| companion.hello_groups.group(now, hello.clock_us)).flatten();
        batch.registered.extend(hello.waiting.iter().map(|register| Registered {
            key: (root, register.sequence),
            age_us: register.age_us,
            conn,
            listed_in,
        }));
        let running = hello.running.iter().filter_map(|running| running.register.as_ref());
        batch.running.extend(running.map(|register| ((root, register.sequence), conn)));
        // One of several companions discards Hellos while it doesn't lead.
        if hello.last && self.companions[index].election.is_none() {
            self.open_session(index, root, conn);
        }
    }

    /// One of several companions has accepted the Hello on a stream.
    pub(super) fn accept_hello(&mut self, index: usize, conn: ConnId, term: u64) {
        let companion = &mut self.companions[index];
        companion.greeted.insert(conn.0);
        let tenure = companion.tenure;
        if let Some(stream) = self.streams.get_mut(&conn.0) {
            (stream.tenure, stream.term) = (tenure, term);
        }
        if let Some(root) = self.stream_roots.get(&conn.0).copied() {
            self.open_session(index, root, conn);
        }
    }

    /// Whether a companion takes the frames of a stream for those of a session.
    fn is_greeted(&self, index: usize, conn: ConnId) -> bool {
        let companion = &self.companions[index];
        companion.election.is_none() || companion.greeted.contains(&conn.0)
    }

    fn open_session(&mut self, index: usize, root: u64, conn: ConnId) {
        self.note_unclear_batch(index);
        let companion = &mut self.companions[index];
        companion.session_streams.insert(root, conn.0);
        companion.sessions_max = companion.sessions_max.max(companion.session_streams.len());
        let root = self.roots.get_mut(&root);
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
        self.note_unclear_batch(index);
        let now = self.companion_now(index);
        let root = self.stream_roots.get(&conn.0);
        self.companions[index].session_streams.retain(|_, stream| *stream != conn.0);
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
        let tenure = self.companions[index].tenure;
        for client in self.clients.iter_mut().filter(|client| client.roots.contains(&root)) {
            client.released_by.push(tenure);
        }
        for http in self.http_streams.values_mut().filter(|http| http.root == root) {
            // The request's grant may still be in transit.
            http.released_while_running |= http.resumed || http.counted_by == Some(tenure);
            http.counted_by = None;
            http.registered_with = None;
        }
    }
}
