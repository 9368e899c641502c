//! All limits of the picker.

use std::time::Duration;

/// Threads that decide, each with a filter core and a session of its own.
pub(crate) const WORKERS_MAX: usize = 4;
/// Events that wait for one worker. A gateway that sends more waits.
pub(crate) const EVENTS: usize = 8_192;
/// Events that a worker takes at a time.
pub(crate) const BATCH: usize = 256;
/// Streams of one worker. Further ones are refused, and the gateway's `failureMode` decides about their requests.
pub(crate) const STREAMS_MAX: usize = 65_536;
/// Bytes of request bodies that all workers hold for requests which they read or which wait. A request whose body exceeds them is refused. A
/// pool's `queue.total_bytes` limits those that wait before.
pub(crate) const BODY_BYTES_MAX: usize = 512 << 20;
/// Streams of one connection: h2's own limit of 200 would be one on waiting requests.
pub(crate) const CONNECTION_STREAMS_MAX: u32 = 65_536;
/// Streams of one connection that a gateway has reset before they were accepted: a burst of clients that leave isn't an attack.
pub(crate) const RESET_STREAMS_MAX: usize = 4_096;
/// Answers on one stream that the gateway hasn't read, before the picker reads no more of that stream. What one message has released may
/// exceed it.
pub(crate) const ANSWERS_UNREAD: usize = 64;
/// The advice to a client whose body finds no room.
pub(crate) const RETRY_AFTER_MS: u64 = 1_000;
/// Bytes of one piece of a body that is sent back.
pub(crate) const PIECE_BYTES: usize = 62_000;
/// Bytes of a gRPC message beside those of a body.
pub(crate) const MESSAGE_OVERHEAD: usize = 1 << 20;
/// HTTP/2 windows, of one stream and of one connection.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
pub(crate) const CONNECTION_WINDOW: u32 = 64 << 20;
/// Frames of a session that wait for the companion, or for the worker.
pub(crate) const FRAMES: usize = 4_096;
/// How long a companion without streams that leaves waits until its workers follow the next leader.
pub(crate) const FOLLOW_MAX: Duration = Duration::from_secs(1);
/// Between two lines in the log of a picker that waits for its streams to end.
pub(crate) const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Connections that wait for their worker.
pub(crate) const CONNECTIONS: usize = 1_024;
