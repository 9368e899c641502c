//! The network between filters and companions. A stream delivers messages in order; faults make it slow, stall it, or
//! break it for one end before the other or for one end only.
//!
//! When a stream breaks, the last messages of either end can be lost. A stream that continues loses, duplicates and
//! reorders nothing.

use penstock_control::{ConnId, Door, Event};
use penstock_wire::{CompanionFrame, FilterFrame};
use prost::Message;

use super::World;
use super::event::{SimEvent, ToCompanion, ToFilter};
use super::partitions::Cut;
use super::time::{KEEPALIVE, MILLI, Nanos, SECOND};

/// One gRPC stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// The root context that opened the stream.
    pub(super) root: u64,
    /// The stream's Envoy.
    pub(super) envoy: usize,
    /// The index of the companion at the other end,
    pub(super) companion: usize,
    /// its generation,
    pub(super) generation: u64,
    /// its tenure,
    pub(super) tenure: u64,
    /// and its term.
    pub(super) term: u64,
    /// The filter has not closed its end.
    pub(super) open_at_filter: bool,
    /// The companion has accepted the stream, or will accept it, and has not closed its end.
    pub(super) open_at_companion: bool,
    /// When the last message to the companion arrives.
    up_last: Nanos,
    /// When the last message to the filter arrives.
    down_last: Nanos,
    /// Messages to the companion are dropped.
    up_dropped: bool,
    /// Messages to the filter are dropped.
    down_dropped: bool,
}

/// A stalled stream delivers within this time: less than [`KEEPALIVE`], or Envoy would close the connection.
const STALL_MAX: Nanos = 3 * SECOND;

impl World {
    /// A filter opens a stream to the companion with this address, or else to the next one; `None` if its host can't open
    /// streams at all.
    pub(super) fn open_stream(&mut self, root: u64, address: Option<&str>) -> Option<u64> {
        if self.rng.percent(2) {
            return None;
        }
        let count = self.companions.len();
        let opener = self.roots.get_mut(&root)?;
        let envoy = opener.envoy;
        let named = (0..count).find(|index| Some(&*Self::companion_address(*index)) == address);
        let index = named.unwrap_or_else(|| {
            opener.next_companion = (opener.next_companion + 1) % count;
            opener.next_companion
        });
        let blocked = self.cuts.envoys[index][envoy].until().saturating_sub(self.now);
        self.streams_opened += 1;
        let id = self.streams_opened;
        self.stream_roots.insert(id, root);
        let companion = &self.companions[index];
        let accepted = companion.control.is_some() && !companion.refuses_streams && blocked == 0;
        let vanished = companion.vanished;
        self.streams.insert(
            id,
            Stream {
                root,
                envoy,
                companion: index,
                generation: companion.generation,
                tenure: companion.tenure,
                term: companion.term,
                open_at_filter: true,
                open_at_companion: accepted,
                up_last: self.now,
                down_last: self.now,
                up_dropped: !accepted,
                down_dropped: false,
            },
        );
        if accepted {
            self.send_to_companion(id, ToCompanion::Open);
        } else if vanished || blocked > 0 {
            let wait = if vanished { KEEPALIVE } else { blocked.min(KEEPALIVE) };
            self.event_queue.schedule(self.now + wait, SimEvent::AtFilter(id, ToFilter::End));
        } else {
            let delay = self.delay();
            self.event_queue.schedule(self.now + delay, SimEvent::AtFilter(id, ToFilter::End));
        }
        Some(id)
    }

    /// A random network delay.
    pub(super) fn delay(&mut self) -> Nanos {
        let mean = self.scenario.delay;
        self.rng.exponential(mean).max(1)
    }

    pub(super) fn send_to_companion(&mut self, id: u64, message: ToCompanion) {
        let delay = self.delay();
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.up_dropped) else {
            return;
        };
        stream.up_last = stream.up_last.max(self.now + delay);
        self.event_queue.schedule(stream.up_last, SimEvent::AtCompanion(id, message));
    }

    pub(super) fn send_to_filter(&mut self, id: u64, message: ToFilter) {
        let delay = self.delay();
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.down_dropped) else {
            return;
        };
        stream.down_last = stream.down_last.max(self.now + delay);
        self.event_queue.schedule(stream.down_last, SimEvent::AtFilter(id, message));
    }

    pub(super) fn arrive_at_companion(&mut self, id: u64, message: ToCompanion) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let index = stream.companion;
        if stream.generation != self.companions[index].generation || !stream.open_at_companion {
            return;
        }
        match message {
            ToCompanion::Open if stream.up_dropped => {}
            ToCompanion::Open => self.deliver_to_companion(index, Event::Opened(ConnId(id), Door::Filter)),
            ToCompanion::Frame(_) if stream.up_dropped => {}
            ToCompanion::Frame(bytes) => match FilterFrame::decode(bytes.as_slice()) {
                Ok(frame) => self.deliver_to_companion(index, Event::Frame(ConnId(id), Box::new(frame))),
                Err(error) => self.fail(|| format!("a filter sent an invalid frame: {error}")),
            },
            ToCompanion::End => {
                stream.open_at_companion = false;
                stream.up_dropped = true;
                stream.down_dropped = true;
                self.deliver_to_companion(index, Event::Closed(ConnId(id)));
                self.remove_closed_stream(id);
            }
        }
    }

    pub(super) fn arrive_at_filter(&mut self, id: u64, message: ToFilter) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.open_at_filter) else {
            return;
        };
        let root = stream.root;
        match message {
            ToFilter::Frame(_) if stream.down_dropped => {}
            ToFilter::Frame(bytes) => self.root_receives(root, id, &bytes),
            ToFilter::End => {
                stream.open_at_filter = false;
                stream.up_dropped = true;
                stream.down_dropped = true;
                self.root_stream_closed(root, id);
                self.remove_closed_stream(id);
            }
        }
    }

    pub(super) fn send_frame(&mut self, id: u64, frame: &CompanionFrame) {
        self.send_to_filter(id, ToFilter::Frame(frame.encode_to_vec()));
    }

    /// The companion closes its end. Messages that it sent before still arrive.
    pub(super) fn close_at_companion(&mut self, id: u64) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.open_at_companion = false;
        stream.up_dropped = true;
        self.send_to_filter(id, ToFilter::End);
        self.remove_closed_stream(id);
    }

    /// The filter closes its end, or with `reset` resets the stream.
    pub(super) fn close_at_filter(&mut self, id: u64, reset: bool) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.open_at_filter = false;
        stream.down_dropped = true;
        self.send_to_companion(id, ToCompanion::End);
        if reset && let Some(stream) = self.streams.get_mut(&id) {
            // A reset can lose messages in transit, but the companion always notices the end.
            stream.up_dropped = self.rng.percent(50);
        }
        self.remove_closed_stream(id);
    }

    /// Breaks a stream. Each end notices after the given time; `None`: never.
    pub(super) fn break_stream(&mut self, id: u64, filter: Option<Nanos>, companion: Option<Nanos>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.up_dropped = true;
        stream.down_dropped = true;
        if let Some(wait) = filter {
            self.event_queue.schedule(self.now + wait, SimEvent::AtFilter(id, ToFilter::End));
        }
        if let Some(wait) = companion {
            self.event_queue.schedule(self.now + wait, SimEvent::AtCompanion(id, ToCompanion::End));
        }
    }

    /// A stream carries nothing any more. The filter's host notices by its keepalive, the companion at once or never.
    pub(super) fn silence_stream(&mut self, id: u64, companion_notices: bool) {
        let wait = self.rng.below(20 * MILLI);
        self.break_stream(id, Some(KEEPALIVE), companion_notices.then_some(wait));
    }

    /// Delays a stream's messages until the ends of a partition.
    pub(super) fn hold_stream(&mut self, id: u64, cut: Cut) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.up_last = stream.up_last.max(cut.up_until);
            stream.down_last = stream.down_last.max(cut.down_until);
        }
    }

    /// Breaks the streams of a companion that is frozen for longer than Envoys wait.
    pub(super) fn fail_keepalives(&mut self, generation: u64) {
        let index = self.running_companion(generation);
        let Some(index) = index.filter(|index| self.companions[*index].frozen) else {
            return;
        };
        let to_companion = |stream: &Stream| stream.companion == index && stream.open_at_filter;
        let ids: Vec<u64> =
            self.streams.iter().filter(|(_, stream)| to_companion(stream)).map(|(id, _)| *id).collect();
        for id in ids {
            self.fail_keepalive(id);
        }
        self.event_queue.schedule(self.now + KEEPALIVE, SimEvent::KeepalivesFail(generation));
    }

    /// Delays all later messages of a stream.
    pub(super) fn stall_stream(&mut self, id: u64, delay: Nanos) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let latest = self.now + STALL_MAX;
            stream.up_last = (stream.up_last.max(self.now) + delay).min(latest);
            stream.down_last = (stream.down_last.max(self.now) + delay).min(latest);
        }
    }

    fn remove_closed_stream(&mut self, id: u64) {
        if self.streams.get(&id).is_some_and(|stream| !stream.open_at_filter && !stream.open_at_companion) {
            self.streams.remove(&id);
        }
    }

    /// A companion's process ends, and with it its ends of all streams.
    pub(super) fn drop_companion_streams(&mut self, index: usize, silently: bool) {
        let open = |(id, stream): (&u64, &Stream)| {
            (stream.open_at_companion && stream.companion == index).then_some(*id)
        };
        let ids: Vec<u64> = self.streams.iter().filter_map(open).collect();
        for id in ids {
            let delay = if silently { KEEPALIVE } else { self.delay() };
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.open_at_companion = false;
            }
            self.break_stream(id, Some(delay), None);
            self.remove_closed_stream(id);
        }
    }

    /// A root context ends without closing its streams. The companion notices soon, or never if `silently`.
    pub(super) fn drop_root_streams(&mut self, root: u64, silently: bool) {
        let ids: Vec<u64> =
            self.streams.iter().filter(|(_, stream)| stream.root == root).map(|(id, _)| *id).collect();
        for id in ids {
            let delay = self.delay();
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.open_at_filter = false;
            }
            self.break_stream(id, None, (!silently).then_some(delay));
            self.remove_closed_stream(id);
        }
    }
}
