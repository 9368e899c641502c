//! The commands of `penstock` that need no gateway, or ask one that runs: import, replay, model, status, top.

pub mod import;
mod jsonl;
pub mod model_cli;
pub mod replay;
pub mod status_cmd;
pub mod top;
