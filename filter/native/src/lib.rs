//! Penstock's filter as an Envoy dynamic module: connects Envoy's hooks and callbacks to `penstock-filter-core`, which makes all
//! decisions.
//!
//! Envoy runs the hooks of a stream on the worker thread that carries it, and those of a configuration and of its streams to the companion on
//! its main thread. A panic ends the stream that met it with status 500; in WebAssembly it would end all streams of the worker.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod abi;
mod desk;
mod hooks;
mod host;
mod panics;
mod plugin;
mod shared_data;
mod stream;
