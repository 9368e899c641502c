//! What filters, operators and tools reach: gRPC, HTTP and the documents behind it.

pub mod advice;
pub(crate) mod budgets;
pub mod grpc;
pub mod history;
pub mod http;
pub mod status;
pub mod visibility;
