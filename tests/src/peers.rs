//! Gateways of other projects that the benchmark measures beside Penstock: their programs, which the command line names, and what each
//! needs to run on one machine.

mod endpoint_picker;
mod go_module;
mod pool_api;
mod programs;
mod simulator;

pub use endpoint_picker::{EndpointPicker, external_processor, picked_servers};
pub use go_module::module_of;
pub use pool_api::PoolApi;
pub use programs::Programs;
pub use simulator::Simulator;
