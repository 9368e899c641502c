//! What the end-to-end tests stand on: the real `penstock` binary with a real Envoy, scripted model servers, and
//! clients that send exactly the bytes they are told to.
//!
//! Nothing here waits for a time to pass: a test waits for a condition, and fails with the processes' logs when it
//! doesn't come. Every process listens on a port of its own and dies with the test that started it.

pub mod ask;
pub mod binary;
pub mod collector;
pub mod companion;
pub mod crowd;
pub mod envoy;
pub mod figures;
pub mod gateway;
pub mod h2c;
pub mod metrics;
pub mod mock;
pub mod module;
pub mod pages;
pub mod process;
pub mod python;
pub mod raw;
pub mod redis;
pub mod refusing;
pub mod upstream;
pub mod visitors;
pub mod wait;

pub use ask::{Answer, Ask};
pub use companion::Companion;
pub use crowd::Crowd;
pub use envoy::Envoy;
pub use gateway::Gateway;
pub use mock::Mock;
pub use process::Process;
pub use redis::Redis;
pub use refusing::Refusing;
pub use upstream::{Call, Upstream};
pub use wait::{run, until};
