//! Frame numbers and acknowledgements of one stream.

use std::collections::VecDeque;

use penstock_wire::filter_frame::Event;
use penstock_wire::limits::UNACKED_BYTES_MAX;
use penstock_wire::{Admitted, FilterFrame};
use prost::Message;

#[derive(Debug, Default)]
pub(super) struct FrameWindow {
    /// Number of the last frame sent.
    sent: u64,
    /// Number of the last frame received.
    received: u64,
    /// Sizes of the frames that the companion hasn't acknowledged, oldest first.
    unacked_sizes: VecDeque<usize>,
    unacked_bytes: usize,
}

impl FrameWindow {
    /// Starts a new stream.
    pub(super) fn reset(&mut self) {
        self.sent = 0;
        self.received = 0;
        self.unacked_sizes.clear();
        self.unacked_bytes = 0;
    }

    pub(super) fn last_sent(&self) -> u64 {
        self.sent
    }

    /// Whether more bytes are unacknowledged than a reachable companion would leave.
    pub(super) fn is_full(&self) -> bool {
        self.unacked_bytes > UNACKED_BYTES_MAX
    }

    /// Encodes the next frame, and gives it back with its contents.
    pub(super) fn encode(&mut self, event: Option<Event>, admitted: Vec<Admitted>) -> (Vec<u8>, FilterFrame) {
        self.sent = self.sent.saturating_add(1);
        let frame = FilterFrame { seq: self.sent, ack: self.received, admitted, event };
        let message = frame.encode_to_vec();
        self.unacked_sizes.push_back(message.len());
        self.unacked_bytes = self.unacked_bytes.saturating_add(message.len());
        (message, frame)
    }

    /// Takes the numbers of a received frame. Returns `false` if they are out of order.
    pub(super) fn receive(&mut self, seq: u64, ack: u64) -> bool {
        if seq != self.received.saturating_add(1) || ack > self.sent {
            return false;
        }
        self.received = seq;
        while self.oldest_unacked().is_some_and(|oldest| oldest <= ack) {
            let size = self.unacked_sizes.pop_front().unwrap_or(0);
            self.unacked_bytes = self.unacked_bytes.saturating_sub(size);
        }
        true
    }

    /// Counts the frames sent so far as empty.
    pub(super) fn forgive_unacked(&mut self) {
        self.unacked_sizes.iter_mut().for_each(|size| *size = 0);
        self.unacked_bytes = 0;
    }

    fn oldest_unacked(&self) -> Option<u64> {
        let unacked = u64::try_from(self.unacked_sizes.len()).ok().filter(|unacked| *unacked > 0)?;
        Some(self.sent.saturating_sub(unacked).saturating_add(1))
    }
}
