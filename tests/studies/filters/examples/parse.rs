//! A filter that reads a request as Penstock does and then continues: the benchmarks measure the cost of reading with it.

mod reading;

use std::hint::black_box;
use std::rc::Rc;

use penstock_filter_core::compiled_policy::CompiledPolicy;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

use self::reading::Reading;

struct Root(Rc<CompiledPolicy>);

impl Context for Root {}

impl RootContext for Root {
    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Http { policy: Rc::clone(&self.0), reading: None }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Http {
    policy: Rc<CompiledPolicy>,
    reading: Option<Reading>,
}

impl Context for Http {}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        if end {
            return Action::Continue;
        }
        self.reading = Some(Reading::from_headers(&self.policy));
        Action::Pause
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        let Some(reading) = &mut self.reading else {
            return Action::Continue;
        };
        if !reading.body(size, end) {
            self.reading = None;
            self.send_http_response(400, Vec::new(), None);
            return Action::Pause;
        }
        if !end {
            return Action::Pause;
        }
        black_box(self.reading.take().and_then(Reading::register));
        Action::Continue
    }
}

/// The module's entry point, which the host calls once after loading.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    proxy_wasm::set_root_context(|_| Box::new(Root(reading::policy())));
}
