//! The commands of `penstock` that work without a gateway or query a running one: import, replay, model, status, top.

pub mod import;
mod jsonl;
pub mod model_cli;
pub mod replay;
pub mod status_cmd;
pub mod top;
