//! Gateways of other projects that the benchmark measures beside Penstock: their programs, which the command line names, and what each
//! needs to run on one machine.

mod endpoint_picker;
mod go_module;
mod pool_api;
mod programs;
mod simulator;

pub use self::endpoint_picker::{EndpointPicker, FlowControl, external_processor, picked_servers};
pub use self::go_module::module_of;
pub use self::pool_api::PoolApi;
pub use self::programs::Programs;
pub use self::simulator::Simulator;
