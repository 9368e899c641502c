//! A filter that reads a request as Penstock does, and asks a server with a unary gRPC call whether to continue. The
//! benchmarks compare the cost of one call for each request with Penstock's one stream for each worker.

mod reading;

use std::rc::Rc;
use std::time::Duration;

use penstock_filter_core::compiled_policy::CompiledPolicy;
use prost::Message;
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

use self::reading::Reading;

/// The Envoy cluster of the server.
const CLUSTER: &str = "side";
/// The full name of the gRPC service, and its method.
const SERVICE: &str = "penstock.bench.Gate";
const METHOD: &str = "Ask";
/// Longer than any call of a benchmark takes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The status of a successful gRPC call.
const GRPC_OK: u32 = 0;

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

impl Http {
    /// Asks whether to continue. Returns `false` if the request is malformed or the call can't be made.
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
        self.reading = Some(Reading::from_headers(&self.policy));
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

/// The module's entry point, which the host calls once after loading.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    proxy_wasm::set_root_context(|_| Box::new(Root(reading::policy())));
}
