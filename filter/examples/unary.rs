//! A filter that reads a request as Penstock does and asks a server by a unary gRPC call of its own whether it may go:
//! what one call a request costs, beside one stream a worker, for the benchmarks.

mod reading;

use std::{rc::Rc, time::Duration};

use penstock_filter_core::compiled_policy::CompiledPolicy;
use prost::Message;
use proxy_wasm::{
    hostcalls,
    traits::{Context, HttpContext, RootContext},
    types::{Action, ContextType},
};
use reading::Reading;

/// Of Envoy's clusters, the one that is asked.
const CLUSTER: &str = "side";
/// What is asked there.
const SERVICE: &str = "penstock.bench.Gate";
const METHOD: &str = "Ask";
/// Longer than any call of a benchmark may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The status of a gRPC call that went well.
const GRPC_OK: u32 = 0;

struct Root(Rc<CompiledPolicy>);

impl Context for Root {}

impl RootContext for Root {
    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Http {
            policy: Rc::clone(&self.0),
            reading: None,
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

struct Http {
    policy: Rc<CompiledPolicy>,
    reading: Option<Reading>,
}

impl Http {
    /// Asks whether the request may go; false: it can't be read, or nobody can be asked.
    fn ask(&mut self) -> bool {
        let Some(register) = self.reading.take().and_then(Reading::register) else {
            return false;
        };
        let message = register.encode_to_vec();
        hostcalls::dispatch_grpc_call(CLUSTER, SERVICE, METHOD, Vec::new(), Some(&message), TIMEOUT).is_ok()
    }
}

impl Context for Http {
    fn on_grpc_call_response(&mut self, _: u32, status: u32, _: usize) {
        if status == GRPC_OK {
            self.resume_http_request();
        } else {
            self.send_http_response(503, Vec::new(), None);
        }
    }
}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        if end {
            return Action::Continue;
        }
        self.reading = Some(Reading::of_headers(&self.policy));
        Action::Pause
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        let Some(reading) = &mut self.reading else {
            return Action::Continue;
        };
        if !reading.body(size, end) || (end && !self.ask()) {
            self.send_http_response(400, Vec::new(), None);
        }
        Action::Pause
    }
}

/// Called once by the host when it has loaded the module.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    proxy_wasm::set_root_context(|_| Box::new(Root(reading::policy())));
}
