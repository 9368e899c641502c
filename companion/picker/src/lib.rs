//! The companion as the endpoint picker of an InferencePool.
//!
//! A gateway that loads no filter asks an endpoint picker by Envoy's external processing protocol (`ext_proc`) where each request goes. The
//! picker is the third host of the filter core, beside WebAssembly and native code: the core makes every decision, over sessions with
//! the companion of the same process, or, when that companion no longer leads, with the leader. This crate turns the gateway's messages
//! into the core's events, and its decisions into answers.
//!
//! Each worker has a thread, which carries the connections that are dealt to it, so that a message and its answer stay on one thread:
//!
//! - `service` has a task for each stream, which reads its messages
//! - `worker` is the task that owns the filter core and the streams' state
//! - `stream` is that state: what has come of a request and its response, and what is owed

mod answer;
mod availability;
mod certificate;
mod event;
mod facts;
#[expect(
    unreachable_pub,
    clippy::allow_attributes,
    clippy::enum_variant_names,
    reason = "generated code"
)]
#[rustfmt::skip]
mod generated;
mod headers;
mod limits;
mod outbox;
mod pieces;
mod serve;
mod service;
mod sessions;
mod shared_data;
mod stream;
mod worker;

pub use self::availability::Availability;
pub use self::certificate::{Certificate, Error as CertificateError};
pub use self::serve::{Door, Error, Settings, serve};
pub use self::sessions::NewSession;
