//! The commands of `penstock` that work without a gateway or query a running one: api-key, import, replay, model, simulate, status, top.

pub mod api_key;
pub mod import;
mod jsonl;
pub mod model_cli;
mod number;
mod progress;
pub mod replay;
pub mod simulate;
pub mod status_cmd;
pub mod top;

pub use penstock_errors::Failure;
