//! Reads a request as Penstock does, without acting on it: shared by the benchmark filters `parse` and `unary`.

#[expect(dead_code, reason = "reading needs few of the filter's host calls")]
#[path = "../../../../../filter/src/host.rs"]
mod host;

use std::rc::Rc;
use std::sync::Arc;

use penstock_filter_core::body::BodyScanner;
use penstock_filter_core::compiled_policy::CompiledPolicy;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::identity::IdentityClaims;
use penstock_wire::source::From;
use penstock_wire::{Identity, Policy, Register, Source};

use self::host::{Buffer, Map, StreamProperties};

/// The identity sources of Penstock's default configuration.
pub(crate) fn policy() -> Rc<CompiledPolicy> {
    let header = |name: &str| Source { from: Some(From::Header(name.to_owned())) };
    let user = || Source { from: Some(From::Body("user".to_owned())) };
    let identity = Identity {
        fairness_id: vec![
            header("x-gateway-inference-fairness-id"),
            header("x-llm-d-inference-fairness-id"),
            header("x-penstock-tenant"),
            user(),
        ],
        user: vec![header("x-penstock-user"), user()],
        priority: vec![
            header("x-penstock-priority"),
            header("x-nexus-priority"),
            header("x-gateway-inference-objective"),
        ],
        class: vec![header("x-penstock-class"), header("x-dynamo-meta-policy-class")],
        ..Identity::default()
    };
    Rc::new(CompiledPolicy::new(&Policy { identity: Some(identity), ..Policy::default() }))
}

/// A request that is being read.
pub(crate) struct Reading {
    scanner: BodyScanner,
    claims: IdentityClaims,
    size: usize,
}

impl Reading {
    /// Reads the headers of the current HTTP stream's request.
    pub(crate) fn from_headers(policy: &CompiledPolicy) -> Self {
        let map = host::headers(Map::Request);
        Self {
            scanner: BodyScanner::new(Arc::clone(&policy.body_keys)),
            claims: IdentityClaims::gather(&policy.sources, true, Headers::new(&map), &StreamProperties),
            size: 0,
        }
    }

    /// Reads the body up to byte `size`, as Penstock does. Returns `false` if Penstock would refuse the body.
    pub(crate) fn body(&mut self, size: usize, end: bool) -> bool {
        self.size = size;
        let mut read = |start, length| host::buffer(Buffer::RequestBody, start, length);
        self.scanner.read_on(size, end, &mut read).is_ok()
    }

    /// The registration that Penstock would send; `None` if Penstock would refuse the request.
    pub(crate) fn register(self) -> Option<Register> {
        let body = self.scanner.finish().ok()?;
        let mut register = Register::default();
        self.claims.resolve(&body, &mut register);
        register.model = body.model;
        register.stream = body.stream;
        register.max_tokens = body.max_tokens;
        register.prompt_bytes = body.prompt_bytes;
        register.body_bytes = u64::try_from(self.size).ok()?;
        Some(register)
    }
}
