//! Simulated model servers that speak HTTP, and a demo of a whole gateway in front of them.

pub mod demo;
pub mod mock_server;
