//! The codec of sessions: decodes a frame from one contiguous slice into the box in which it is passed on.
//!
//! prost reads from any buffer byte by byte, with a check of the remaining length for each. From a slice it needs a third
//! of the instructions, with the same result.

use bytes::Buf;
use penstock_wire::{CompanionFrame, FilterFrame};
use prost::{DecodeError, Message as _};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

/// Filters' frames in, the companion's frames out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionCodec;

/// Reads filters' frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameDecoder;

impl Codec for SessionCodec {
    type Encode = CompanionFrame;
    type Decode = Box<FilterFrame>;
    type Encoder = ProstEncoder<CompanionFrame>;
    type Decoder = FrameDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        FrameDecoder
    }
}

impl Decoder for FrameDecoder {
    type Item = Box<FilterFrame>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Self::Error> {
        read(from)
            .map(Some)
            .map_err(|why| Status::internal(why.to_string()))
    }
}

/// One frame, all that is left in `from`.
fn read(from: &mut impl Buf) -> Result<Box<FilterFrame>, DecodeError> {
    let len = from.remaining();
    let mut frame = Box::<FilterFrame>::default();
    match from.chunk() {
        whole if whole.len() == len => {
            frame.merge(whole)?;
            from.advance(len);
        }
        _ => frame.merge(from)?,
    }
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_wire::{Register, filter_frame};

    #[test]
    fn a_frame_is_read_the_same_wherever_its_memory_is_cut() {
        let register = Register {
            sequence: 7,
            model: "m".to_owned(),
            prefix_hashes: vec![1, u64::MAX],
            ..Register::default()
        };
        let frame = FilterFrame {
            seq: 3,
            event: Some(filter_frame::Event::Register(register)),
            ..FilterFrame::default()
        };
        let bytes = frame.encode_to_vec();
        for cut in 0..=bytes.len() {
            let (before, after) = bytes.split_at(cut);
            let mut pieces = before.chain(after);
            assert_eq!(*read(&mut pieces).expect("a frame"), frame, "{cut}");
            assert!(!pieces.has_remaining());
        }
        let (short, _) = bytes.split_at(bytes.len() - 1);
        read(&mut &*short).expect_err("it ends in the middle");
    }
}
