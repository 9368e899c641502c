//! Decodes filters' frames, one at a time, into memory that is used again.
//!
//! Most frames register or complete a request, or report requests that were admitted by credit. Each of these kinds is decoded
//! into a message of its own, whose texts keep their memory, so that decoding allocates nothing. The bytes are one slice: from a
//! slice, prost needs a third of the instructions that it needs from a buffer of several pieces.

mod spent_reports;

use penstock_wire::FilterFrame;
use penstock_wire::filter_frame::Event;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, message};
use prost::{DecodeError, Message as _};

use self::spent_reports::{SpentReports, delimited};

/// The numbers of the fields of a frame.
const SEQ: u32 = 1;
const ACK: u32 = 2;
const REGISTER: u32 = 4;
const COMPLETED: u32 = 7;
const ADMITTED: u32 = 11;
/// Memory of a longer frame isn't kept.
const KEPT_BYTES_MAX: usize = 16 << 10;

/// The frames that were decoded last.
#[derive(Debug, Default)]
pub(crate) struct IncomingFrames {
    register: FilterFrame,
    completed: FilterFrame,
    other: FilterFrame,
    /// The last other frame was so long that its memory isn't kept.
    is_other_long: bool,
    spent_reports: SpentReports,
}

impl IncomingFrames {
    /// The frame in these bytes.
    pub(crate) fn decode(&mut self, bytes: &[u8]) -> Result<&mut FilterFrame, DecodeError> {
        let is_long = bytes.len() > KEPT_BYTES_MAX;
        let frame = match event_field(bytes) {
            Some(REGISTER) if !is_long => &mut self.register,
            Some(COMPLETED) if !is_long => &mut self.completed,
            _ => {
                if core::mem::replace(&mut self.is_other_long, is_long) {
                    self.other = FilterFrame::default();
                }
                self.other.event = None;
                &mut self.other
            }
        };
        clear(frame, &mut self.spent_reports);
        merge(frame, bytes, &mut self.spent_reports)?;
        Ok(frame)
    }
}

/// Merges a frame into an empty one. Its reports use the memory of spent ones.
fn merge(frame: &mut FilterFrame, mut bytes: &[u8], spent: &mut SpentReports) -> Result<(), DecodeError> {
    while !bytes.is_empty() {
        let (field, wire_type) = decode_key(&mut bytes)?;
        let context = DecodeContext::default();
        if (field, wire_type) == (ADMITTED, WireType::LengthDelimited) {
            let mut report = spent.take(delimited(bytes).unwrap_or_default());
            message::merge(wire_type, &mut report, &mut bytes, context)?;
            frame.admitted.push(report);
        } else {
            frame.merge_field(field, wire_type, &mut bytes, context)?;
        }
    }
    Ok(())
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

/// Makes a frame equal to a new one that has an empty event of the same kind. Its texts and reports keep their memory.
fn clear(frame: &mut FilterFrame, spent: &mut SpentReports) {
    (frame.seq, frame.ack) = (0, 0);
    spent.keep(&mut frame.admitted);
    match &mut frame.event {
        Some(Event::Register(register)) => register.clear(),
        Some(Event::Completed(completed)) => completed.clear(),
        _ => frame.event = None,
    }
}

#[cfg(test)]
mod tests {
    use penstock_wire::{Admitted, Completed, Heartbeat, Register, RequestKey, Running};

    use super::*;

    fn frame(seq: u64, event: Event) -> FilterFrame {
        FilterFrame { seq, ack: seq / 2, admitted: Vec::new(), event: Some(event) }
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
            Event::Heartbeat(Heartbeat::default()),
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

    fn report(register: Register, completed: Option<Completed>) -> Admitted {
        Admitted {
            running: Some(Running {
                register: Some(register),
                pool: "p".to_owned(),
                endpoint: "127.0.0.1:1".to_owned(),
                age_us: 5,
                started: true,
                first_token: true,
                prefill_endpoint: "127.0.0.1:2".to_owned(),
            }),
            credit: 9,
            completed,
        }
    }

    #[test]
    fn reports_are_read_as_into_new_memory_whatever_was_read_before() {
        let completed =
            Completed { endpoint: "127.0.0.1:1".to_owned(), output_tokens: Some(1), ..Completed::default() };
        let full = Register {
            model: "m".to_owned(),
            user: "u".to_owned(),
            prefix_hashes: vec![1, 2],
            ..Register::default()
        };
        let reports = [
            Vec::new(),
            vec![report(full.clone(), Some(completed)), report(full, None)],
            vec![report(Register::default(), None), report(Register::default(), Some(Completed::default()))],
            vec![Admitted::default()],
            vec![Admitted {
                running: Some(Running::default()),
                credit: 0,
                completed: Some(Completed::default()),
            }],
        ];
        let mut incoming = IncomingFrames::default();
        for before in &reports {
            for reports in &reports {
                for admitted in [before, reports] {
                    let frame = FilterFrame {
                        admitted: admitted.clone(),
                        ..frame(1, Event::Heartbeat(Heartbeat::default()))
                    };
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
        let reports =
            FilterFrame { admitted: vec![report(Register::default(), None)], ..FilterFrame::default() };
        let reports = reports.encode_to_vec();
        let cut = reports[..reports.len() - 1].to_vec();
        for bytes in
            [&both, &reports, &cut, &reports, &register, &Vec::new(), &completed, &vec![0xff; 3], &register]
        {
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
        let long = Register { model: "m".repeat(KEPT_BYTES_MAX), ..Register::default() };
        let long = frame(1, Event::Register(long)).encode_to_vec();
        incoming.decode(&long).expect("a frame");
        assert_eq!(incoming.register.event, None);
        let beat = frame(2, Event::Heartbeat(Heartbeat::default())).encode_to_vec();
        let read = incoming.decode(&beat).expect("a frame");
        assert_eq!(read.event, Some(Event::Heartbeat(Heartbeat::default())));
        let long = Register { model: "m".repeat(KEPT_BYTES_MAX), ..Register::default() };
        let long = FilterFrame { admitted: vec![report(long, None)], ..FilterFrame::default() };
        incoming.decode(&long.encode_to_vec()).expect("a frame");
        incoming.decode(&beat).expect("a frame");
        assert_eq!(incoming.spent_reports.len(), 0);
    }
}
