//! The network between filters and companion: streams that keep their order, and can be slow, stall, break for one
//! end before the other, or for one end alone.
//!
//! What one end sent last may be lost when a stream breaks; nothing is ever lost, doubled or out of order in a
//! stream that goes on.

use penstock_control::{ConnId, Event};
use penstock_wire::{CompanionFrame, FilterFrame};
use prost::Message;

use super::World;
use super::agenda::{Due, MILLI, Nanos, SECOND};

/// What reaches the companion's end.
#[derive(Debug)]
pub(super) enum Up {
    Open,
    Frame(Vec<u8>),
    End,
}

/// What reaches the filter's end.
#[derive(Debug)]
pub(super) enum Down {
    Frame(Vec<u8>),
    End,
}

/// One gRPC stream.
#[derive(Debug)]
pub(super) struct Stream {
    /// The root context that opened it.
    pub(super) root: u64,
    /// The companion's life that it leads to.
    pub(super) life: u64,
    /// And what it says it is.
    pub(super) term: u64,
    /// The filter has it.
    pub(super) at_filter: bool,
    /// The companion has it, or will have.
    pub(super) at_companion: bool,
    up_last: Nanos,
    down_last: Nanos,
    up_lost: bool,
    down_lost: bool,
}

/// After this an Envoy notices that its connection is dead, by its keepalive.
const KEEPALIVE: Nanos = 4 * SECOND;

impl World {
    /// A filter opens a stream: none, if its host can't at all.
    pub(super) fn open_stream(&mut self, root: u64) -> Option<u64> {
        if self.dice.percent(2) {
            return None;
        }
        self.streams_opened += 1;
        let id = self.streams_opened;
        self.stream_roots.insert(id, root);
        let life = self.companion.life;
        let lives = self.companion.control.is_some() && !self.companion.closed_door;
        self.streams.insert(
            id,
            Stream {
                root,
                life,
                term: self.companion.term,
                at_filter: true,
                at_companion: lives,
                up_last: self.now,
                down_last: self.now,
                up_lost: !lives,
                down_lost: false,
            },
        );
        if lives {
            self.send_up(id, Up::Open);
        } else if self.companion.vanished {
            self.agenda.put(self.now + KEEPALIVE, Due::Down(id, Down::End));
        } else {
            let delay = self.delay();
            self.agenda.put(self.now + delay, Due::Down(id, Down::End));
        }
        Some(id)
    }

    pub(super) fn delay(&mut self) -> Nanos {
        let mean = self.setting.delay;
        self.dice.around(mean).max(1)
    }

    pub(super) fn send_up(&mut self, id: u64, what: Up) {
        let delay = self.delay();
        let Some(stream) = self.streams.get_mut(&id).filter(|it| !it.up_lost) else {
            return;
        };
        stream.up_last = stream.up_last.max(self.now + delay);
        self.agenda.put(stream.up_last, Due::Up(id, what));
    }

    pub(super) fn send_down(&mut self, id: u64, what: Down) {
        let delay = self.delay();
        let Some(stream) = self.streams.get_mut(&id).filter(|it| !it.down_lost) else {
            return;
        };
        stream.down_last = stream.down_last.max(self.now + delay);
        self.agenda.put(stream.down_last, Due::Down(id, what));
    }

    pub(super) fn arrived_up(&mut self, id: u64, what: Up) {
        let life = self.companion.life;
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.life != life || !stream.at_companion {
            return;
        }
        match what {
            Up::Open if stream.up_lost => {}
            Up::Open => self.tell_companion(Event::Opened(ConnId(id))),
            Up::Frame(_) if stream.up_lost => {}
            Up::Frame(bytes) => match FilterFrame::decode(bytes.as_slice()) {
                Ok(frame) => self.tell_companion(Event::Frame(ConnId(id), Box::new(frame))),
                Err(error) => self.broken(|| format!("a filter sent what isn't a frame: {error}")),
            },
            Up::End => {
                stream.at_companion = false;
                stream.up_lost = true;
                stream.down_lost = true;
                self.tell_companion(Event::Closed(ConnId(id)));
                self.forget_stream(id);
            }
        }
    }

    pub(super) fn arrived_down(&mut self, id: u64, what: Down) {
        let Some(stream) = self.streams.get_mut(&id).filter(|it| it.at_filter) else {
            return;
        };
        let root = stream.root;
        match what {
            Down::Frame(_) if stream.down_lost => {}
            Down::Frame(bytes) => self.root_hears(root, id, &bytes),
            Down::End => {
                stream.at_filter = false;
                stream.up_lost = true;
                stream.down_lost = true;
                self.root_closed(root, id);
                self.forget_stream(id);
            }
        }
    }

    pub(super) fn send_frame(&mut self, id: u64, frame: &CompanionFrame) {
        self.send_down(id, Down::Frame(frame.encode_to_vec()));
    }

    /// The companion closes its end; what it sent before still goes out.
    pub(super) fn close_at_companion(&mut self, id: u64) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.at_companion = false;
        stream.up_lost = true;
        self.send_down(id, Down::End);
        self.forget_stream(id);
    }

    /// The filter closes its end (`politely`), or resets it.
    pub(super) fn close_at_filter(&mut self, id: u64, politely: bool) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.at_filter = false;
        stream.down_lost = true;
        self.send_up(id, Up::End);
        if !politely && let Some(stream) = self.streams.get_mut(&id) {
            // What is on its way may be lost, its end isn't.
            stream.up_lost = self.dice.percent(50);
        }
        self.forget_stream(id);
    }

    /// The stream breaks: each end notices after this long, or never.
    pub(super) fn break_stream(&mut self, id: u64, filter: Option<Nanos>, companion: Option<Nanos>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.up_lost = true;
        stream.down_lost = true;
        if let Some(after) = filter {
            self.agenda.put(self.now + after, Due::Down(id, Down::End));
        }
        if let Some(after) = companion {
            self.agenda.put(self.now + after, Due::Up(id, Up::End));
        }
    }

    /// Nothing passes any more: the filter's host notices by its keepalive, the companion by itself.
    pub(super) fn silence_stream(&mut self, id: u64, companion_notices: bool) {
        let soon = self.dice.below(20 * MILLI);
        self.break_stream(id, Some(KEEPALIVE), companion_notices.then_some(soon));
    }

    /// Everything that is sent from now on takes this long more.
    pub(super) fn stall_stream(&mut self, id: u64, by: Nanos) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.up_last = stream.up_last.max(self.now) + by;
            stream.down_last = stream.down_last.max(self.now) + by;
            // Never longer than a keepalive takes, or the stream would be cut.
            stream.up_last = stream.up_last.min(self.now + 3_000 * MILLI);
            stream.down_last = stream.down_last.min(self.now + 3_000 * MILLI);
        }
    }

    fn forget_stream(&mut self, id: u64) {
        if self
            .streams
            .get(&id)
            .is_some_and(|it| !it.at_filter && !it.at_companion)
        {
            self.streams.remove(&id);
        }
    }

    /// The companion's process has gone, and with it its ends of all streams.
    pub(super) fn companion_gone(&mut self, silently: bool) {
        let held = |(id, it): (&u64, &Stream)| it.at_companion.then_some(*id);
        let ids: Vec<u64> = self.streams.iter().filter_map(held).collect();
        for id in ids {
            let delay = if silently { KEEPALIVE } else { self.delay() };
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.at_companion = false;
            }
            self.break_stream(id, Some(delay), None);
            self.forget_stream(id);
        }
    }

    /// A root context has gone without a word; the companion notices now, or never.
    pub(super) fn root_gone(&mut self, root: u64, silently: bool) {
        let ids: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, it)| it.root == root)
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            let delay = self.delay();
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.at_filter = false;
            }
            self.break_stream(id, None, (!silently).then_some(delay));
            self.forget_stream(id);
        }
    }
}
