//! How a session's messages are read and written: a frame is decoded from the one piece of memory that it came in, into
//! the box in which it is handed on.
//!
//! prost reads from any buffer, byte by byte, and asks it for each whether it has more. From a slice it reads as one
//! walks through memory, in a third of the instructions. What is decoded is the same.

use bytes::Buf as _;
use penstock_wire::{CompanionFrame, FilterFrame};
use prost::Message as _;
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
        let len = from.remaining();
        let mut frame = Box::<FilterFrame>::default();
        let decoded = match from.chunk() {
            whole if whole.len() == len => frame.merge(whole).map(|()| from.advance(len)),
            _ => frame.merge(from),
        };
        decoded.map_err(|why| Status::internal(why.to_string()))?;
        Ok(Some(frame))
    }
}
