//! The harness of the end-to-end tests: the real `penstock` binary with a real Envoy, scripted model servers, and clients that send
//! exactly the bytes that a test gives them.
//!
//! Nothing here waits for a time to pass: a test waits for a condition, and fails with the processes' logs if it does not hold in
//! time. Every process listens on a free port and ends with the test that started it.

pub mod binary;
#[cfg(feature = "browser")]
pub mod browser;
pub mod certificates;
pub mod client_group;
pub mod client_request;
pub mod cluster;
pub mod collector;
pub mod companion;
pub mod envoy;
pub mod etcd;
pub mod failing_server;
pub mod gateway;
pub mod h2c;
pub mod metrics;
pub mod mock;
pub mod module;
pub mod name_server;
pub mod pages;
#[cfg(feature = "browser")]
pub mod path_proxy;
pub mod picker;
pub mod poisson_clients;
pub mod ports;
pub mod process;
pub mod prometheus;
pub mod python;
pub mod raw;
pub mod redis;
pub mod refusing_server;
pub mod relay;
pub mod replicas;
pub mod takeover;
pub mod upstream;
pub mod variant;
pub mod wait;

#[cfg(feature = "browser")]
pub use self::browser::Browser;
pub use self::client_group::ClientGroup;
pub use self::client_request::{Answer, ClientRequest};
pub use self::companion::Companion;
pub use self::envoy::Envoy;
pub use self::etcd::Etcd;
pub use self::gateway::Gateway;
pub use self::mock::Mock;
pub use self::name_server::{NameAnswer, NameServer};
#[cfg(feature = "browser")]
pub use self::path_proxy::PathProxy;
pub use self::picker::{Modes, PickerGateway};
pub use self::process::Process;
pub use self::prometheus::Prometheus;
pub use self::redis::Redis;
pub use self::refusing_server::RefusingServer;
pub use self::upstream::{Call, Events, Upstream};
pub use self::wait::{run, run_alone, until};
