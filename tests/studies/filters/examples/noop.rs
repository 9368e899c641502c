//! A filter with empty callbacks: the baseline of the benchmarks.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

struct Noop;

impl Context for Noop {}

impl RootContext for Noop {
    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Self))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

impl HttpContext for Noop {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        Action::Continue
    }
}

/// The module's entry point, which the host calls once after loading.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    proxy_wasm::set_root_context(|_| Box::new(Noop));
}
