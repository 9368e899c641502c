//! The companion of Penstock's filter, and every command of the `penstock` binary.

pub mod cli;
pub mod config;
pub mod mock_server;
pub mod policy;
