//! Servers, companions and filters that fail, through a real Envoy.

mod companion;
mod early_answers;
mod failing;
mod misconfigured_filter;
mod module;
mod nothing_lost;
mod open_files;
mod panics;
mod pushback;
mod requeue;
mod retry;
mod shutdown;
mod silent;
mod sleeping;
