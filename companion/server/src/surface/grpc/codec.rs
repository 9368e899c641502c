//! The codec of sessions: a frame passes as bytes. The driver decodes and encodes frames, in memory that it uses again.

use bytes::{Buf as _, BufMut as _, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Filters' frames in, the companion's frames out, both encoded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionCodec;

impl Codec for SessionCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for SessionCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, frame: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&frame);
        Ok(())
    }
}

impl Decoder for SessionCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
