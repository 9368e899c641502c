//! Every command of the `penstock` binary.

pub mod cli;
