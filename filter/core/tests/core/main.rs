//! Tests of the filter without a host. Most of them run natively and as WebAssembly.

mod body;
#[cfg(not(target_arch = "wasm32"))]
mod cost;
mod response;
#[cfg(not(target_arch = "wasm32"))]
mod splits;
mod worker;
