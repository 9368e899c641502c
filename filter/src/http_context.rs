//! One HTTP stream: Envoy's callbacks, passed on to the worker.

use std::rc::Rc;

use penstock_filter_core::{
    effect::{BodyAction, HeadersAction, ResponseHeadersAction},
    headers::Headers,
    local_reply::{Failure, LocalReply},
};
use penstock_wire::{Api, names::code};
use proxy_wasm::{
    traits::{Context, HttpContext},
    types::Action,
};

use crate::{
    host::{self, Buffer, Map, Stream},
    root_context::{Shared, edit},
};

pub(crate) struct Http {
    context: u32,
    shared: Option<Rc<Shared>>,
    /// The worker's number; none: it passes through.
    sequence: Option<u64>,
    /// What to send instead of the body that comes.
    body: Option<Vec<u8>>,
}

impl Http {
    pub(crate) fn new(context: u32, shared: Option<Rc<Shared>>) -> Self {
        Self {
            context,
            shared,
            sequence: None,
            body: None,
        }
    }
}

fn answer(answer: &LocalReply) -> Action {
    host::respond(answer.status, &answer.headers, &answer.body);
    Action::Pause
}

fn go_on(bodied: Option<BodyAction>) -> Action {
    match bodied {
        None | Some(BodyAction::Pause) => Action::Pause,
        Some(BodyAction::Reply(refusal)) => answer(&refusal),
        Some(BodyAction::Continue(edits)) => {
            edit(Map::Request, &edits);
            Action::Continue
        }
    }
}

impl Context for Http {}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        let Some(shared) = &self.shared else {
            return Action::Continue;
        };
        let map = host::headers(Map::Request);
        let context = self.context;
        let headed = shared.with(|worker| {
            worker.handle_request_headers(host::now(), context, Headers::new(&map), end, &Stream)
        });
        match headed {
            // Can't be; but what can't be judged may not pass either.
            None => answer(
                &Failure::new(500, code::INTERNAL, "The filter is at work already.")
                    .answer(Api::Unspecified, None),
            ),
            Some(HeadersAction::Pass(edits)) => {
                edit(Map::Request, &edits);
                Action::Continue
            }
            Some(HeadersAction::Unroutable(nowhere)) => answer(&nowhere),
            Some(HeadersAction::Pause(sequence, edits)) => {
                self.sequence = Some(sequence);
                edit(Map::Request, &edits);
                Action::Pause
            }
            Some(HeadersAction::Reply(sequence, refusal)) => {
                self.sequence = Some(sequence);
                answer(&refusal)
            }
        }
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        let (Some(shared), Some(sequence)) = (&self.shared, self.sequence) else {
            return Action::Continue;
        };
        let read = |start, length| host::buffer(Buffer::RequestBody, start, length);
        let bodied = shared.with(|worker| worker.handle_request_body(host::now(), sequence, size, end, read));
        go_on(bodied)
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        let (Some(shared), Some(sequence)) = (&self.shared, self.sequence) else {
            return Action::Continue;
        };
        let read = |start, length| host::buffer(Buffer::RequestBody, start, length);
        go_on(shared.with(|worker| worker.handle_request_end(host::now(), sequence, read)))
    }

    fn on_http_response_headers(&mut self, _: usize, end: bool) -> Action {
        let Some(shared) = &self.shared else {
            return Action::Continue;
        };
        let map = host::headers(Map::Response);
        let sequence = self.sequence;
        let responded = shared.with(|worker| {
            worker.handle_response_headers(host::now(), sequence, Headers::new(&map), end, &Stream)
        });
        let ResponseHeadersAction { edits, body } = responded.unwrap_or_default();
        edit(Map::Response, &edits);
        self.body = body;
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end: bool) -> Action {
        if let Some(body) = self.body.take() {
            host::set_buffer(Buffer::ResponseBody, size, &body);
        } else if let (Some(shared), Some(sequence)) = (&self.shared, self.sequence) {
            let read = |start, length| host::buffer(Buffer::ResponseBody, start, length);
            shared.with(|worker| worker.handle_response_body(host::now(), sequence, size, end, read));
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        if let (Some(shared), Some(sequence)) = (&self.shared, self.sequence) {
            shared.with(|worker| worker.handle_response_end(sequence));
        }
        Action::Continue
    }

    fn on_log(&mut self) {
        if let (Some(shared), Some(sequence)) = (&self.shared, self.sequence.take()) {
            shared.with(|worker| worker.handle_log(host::now(), sequence, &Stream));
        }
    }
}
