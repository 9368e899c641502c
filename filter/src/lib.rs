//! Penstock's filter: Envoy's callbacks in, host calls out.
//!
//! All decisions are in `penstock-filter-core`; here is only what needs a host. Nothing here may panic: a trap ends every
//! stream of the worker.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod host;
mod http_context;
mod root_context;

/// Called once by the host when it has loaded the module.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    proxy_wasm::set_root_context(|context| Box::new(root_context::Root::new(context)));
}
