//! Penstock's filter: connects Envoy's proxy-wasm callbacks and host calls to `penstock-filter-core`, which makes all
//! decisions. Nothing here may panic, because a trap ends every stream of the worker.

#![deny(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod host;
mod http_context;
mod plugin;
mod root_context;

/// The module's entry point, which the host calls once after loading.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    proxy_wasm::set_root_context(|context| Box::new(root_context::Root::new(context)));
}
