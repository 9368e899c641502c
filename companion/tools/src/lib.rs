//! The commands of `penstock` that work without a gateway or query a running one: api-key, import, replay, model, status, top.

pub mod api_key;
pub mod import;
mod jsonl;
pub mod model_cli;
pub mod replay;
pub mod status_cmd;
pub mod top;
