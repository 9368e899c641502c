//! What filters, operators and tools reach: gRPC, HTTP and the documents behind it.

pub(crate) mod advice;
pub(crate) mod budgets;
pub(crate) mod grpc;
pub(crate) mod history;
pub(crate) mod http;
pub(crate) mod keep_alive;
pub(crate) mod next_probe;
pub(crate) mod picker;
pub(crate) mod session_frames;
pub(crate) mod status;
pub(crate) mod visibility;
