//! Decodes filters' frames, one at a time, into memory that is used again.
//!
//! Most frames register or complete a request. Each of these kinds is decoded into a message of its own, whose texts keep
//! their memory, so that decoding allocates nothing. The bytes are one slice: from a slice, prost needs a third of the
//! instructions that it needs from a buffer of several pieces.

use penstock_wire::FilterFrame;
use penstock_wire::filter_frame::Event;
use prost::encoding::{decode_key, decode_varint};
use prost::{DecodeError, Message as _};

/// The numbers of the fields of a frame.
const SEQ: u32 = 1;
const ACK: u32 = 2;
const REGISTER: u32 = 4;
const COMPLETED: u32 = 7;
/// Memory of a longer frame isn't kept.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// The frames that were decoded last.
#[derive(Debug, Default)]
pub(crate) struct IncomingFrames {
    register: FilterFrame,
    completed: FilterFrame,
    other: FilterFrame,
}

impl IncomingFrames {
    /// The frame in these bytes.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> Result<&mut FilterFrame, DecodeError> {
        let frame = match event_field(bytes) {
            Some(REGISTER) if bytes.len() <= KEPT_BYTES_MAX => &mut self.register,
            Some(COMPLETED) if bytes.len() <= KEPT_BYTES_MAX => &mut self.completed,
            _ => {
                self.other.event = None;
                &mut self.other
            }
        };
        clear(frame);
        frame.merge(bytes)?;
        Ok(frame)
    }
}

/// The number of the field of the frame's event; `None` if the frame has none or is malformed.
fn event_field(mut bytes: &[u8]) -> Option<u32> {
    loop {
        let (field, _) = decode_key(&mut bytes).ok()?;
        if field != SEQ && field != ACK {
            return Some(field);
        }
        decode_varint(&mut bytes).ok()?;
    }
}

/// Makes a frame equal to a new one that has an empty event of the same kind. Its texts keep their memory.
fn clear(frame: &mut FilterFrame) {
    (frame.seq, frame.ack) = (0, 0);
    frame.admitted.clear();
    match &mut frame.event {
        Some(Event::Register(register)) => register.clear(),
        Some(Event::Completed(completed)) => completed.clear(),
        _ => frame.event = None,
    }
}

#[cfg(test)]
mod tests {
    use penstock_wire::{Completed, Heartbeat, Register, RequestKey};

    use super::*;

    fn frame(seq: u64, event: Event) -> FilterFrame {
        FilterFrame {
            seq,
            ack: seq / 2,
            admitted: Vec::new(),
            event: Some(event),
        }
    }

    #[test]
    fn a_frame_is_read_as_into_new_memory_whatever_was_read_before() {
        let full = Register {
            sequence: 7,
            request_id: "id".to_owned(),
            model: "m".to_owned(),
            max_tokens: Some(3),
            subset: vec!["a".to_owned()],
            prefix_hashes: vec![1, u64::MAX],
            requeued_from: Some(RequestKey::default()),
            ..Register::default()
        };
        let events = [
            Event::Register(full),
            Event::Register(Register::default()),
            Event::Completed(Completed {
                endpoint: "127.0.0.1:1".to_owned(),
                output_tokens: Some(1),
                ..Completed::default()
            }),
            Event::Completed(Completed::default()),
            Event::Heartbeat(Heartbeat {}),
        ];
        let mut incoming = IncomingFrames::default();
        for (seq, before) in (0..).zip(&events) {
            for event in &events {
                for event in [before, event] {
                    let frame = frame(seq, event.clone());
                    let read = incoming.decode(&frame.encode_to_vec());
                    assert_eq!(read, Ok(&mut frame.clone()));
                }
            }
        }
    }

    #[test]
    fn malformed_and_doubled_frames_are_read_as_prost_reads_them() {
        let mut incoming = IncomingFrames::default();
        let register = frame(1, Event::Register(Register::default())).encode_to_vec();
        let completed = frame(2, Event::Completed(Completed::default())).encode_to_vec();
        let both = [&*register, &completed].concat();
        for bytes in [
            &both,
            &register,
            &Vec::new(),
            &completed,
            &vec![0xff; 3],
            &register,
        ] {
            let expected = FilterFrame::decode(&**bytes);
            match (incoming.decode(bytes), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(*read, expected),
                (read, expected) => assert_eq!(read.is_err(), expected.is_err()),
            }
        }
    }

    #[test]
    fn the_memory_of_a_long_frame_is_not_kept() {
        let mut incoming = IncomingFrames::default();
        let long = Register {
            model: "m".repeat(KEPT_BYTES_MAX),
            ..Register::default()
        };
        let long = frame(1, Event::Register(long)).encode_to_vec();
        incoming.decode(&long).expect("a frame");
        assert_eq!(incoming.register.event, None);
        let beat = frame(2, Event::Heartbeat(Heartbeat {})).encode_to_vec();
        let read = incoming.decode(&beat).expect("a frame");
        assert_eq!(read.event, Some(Event::Heartbeat(Heartbeat {})));
    }
}
