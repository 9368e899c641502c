//! The context of one HTTP stream: passes Envoy's callbacks on to the worker.

use std::rc::Rc;

use penstock_filter_core::effect::{BodyAction, HeadersAction, ResponseBodyAction};
use penstock_filter_core::headers::Headers;
use penstock_filter_core::local_reply::{Failure, LocalReply};
use penstock_wire::Api;
use penstock_wire::Code;
use proxy_wasm::traits::{Context, HttpContext};
use proxy_wasm::types::Action;

use crate::host::{self, Buffer, HostClock, Map, StreamProperties};
use crate::plugin::{Plugin, edit_headers, send_local_reply};

pub(crate) struct Http {
    context: u32,
    plugin: Option<Rc<Plugin>>,
    /// The worker's number of the request; `None`: the request passes through.
    sequence: Option<u64>,
    /// A body to send in place of the response's body.
    replacement: Option<Vec<u8>>,
}

impl Http {
    pub(crate) fn new(context: u32, plugin: Option<Rc<Plugin>>) -> Self {
        Self { context, plugin, sequence: None, replacement: None }
    }
}

fn reply(reply: &LocalReply) -> Action {
    send_local_reply(reply);
    Action::Pause
}

fn carry_out(plugin: &Plugin, context: u32, action: Option<BodyAction>) -> Action {
    match action {
        None | Some(BodyAction::Pause) => Action::Pause,
        Some(BodyAction::Reply(refusal)) => reply(&refusal),
        Some(BodyAction::Continue(edits)) => plugin.continue_request(context, edits),
    }
}

impl Context for Http {}

impl HttpContext for Http {
    fn on_http_request_headers(&mut self, _: usize, end: bool) -> Action {
        let Some(plugin) = &self.plugin else {
            return Action::Continue;
        };
        let map = host::headers(Map::Request);
        let headers = Headers::new(&map);
        let context = self.context;
        let action = plugin.with_worker(|worker| {
            worker.handle_request_headers(host::now(), context, headers, end, &StreamProperties)
        });
        match action {
            // The host never re-enters the module. If it does, the request must not pass unchecked.
            None => reply(
                &Failure::new(500, Code::Internal, "The filter is at work already.")
                    .reply(Api::Unspecified, None),
            ),
            Some(HeadersAction::Pass(edits)) => {
                edit_headers(Map::Request, &edits);
                Action::Continue
            }
            Some(HeadersAction::Answer(answer)) => reply(&answer),
            Some(HeadersAction::Pause(sequence, edits)) => {
                self.sequence = Some(sequence);
                edit_headers(Map::Request, &edits);
                Action::Pause
            }
            Some(HeadersAction::Reply(sequence, refusal)) => {
                self.sequence = Some(sequence);
                reply(&refusal)
            }
        }
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        let (Some(plugin), Some(sequence)) = (&self.plugin, self.sequence) else {
            return Action::Continue;
        };
        let action = plugin.with_worker(|worker| {
            worker.handle_request_body(HostClock, sequence, size, end, host::RequestBody)
        });
        carry_out(plugin, self.context, action)
    }

    fn on_http_request_trailers(&mut self, _: usize) -> Action {
        let (Some(plugin), Some(sequence)) = (&self.plugin, self.sequence) else {
            return Action::Continue;
        };
        let action =
            plugin.with_worker(|worker| worker.handle_request_end(host::now(), sequence, host::RequestBody));
        carry_out(plugin, self.context, action)
    }

    fn on_http_response_headers(&mut self, _: usize, end: bool) -> Action {
        let Some(plugin) = &self.plugin else {
            return Action::Continue;
        };
        let map = host::headers(Map::Response);
        let headers = Headers::new(&map);
        let sequence = self.sequence;
        let now = host::now();
        let action = plugin
            .with_worker(|worker| {
                worker.handle_response_headers(now, sequence, headers, end, &StreamProperties)
            })
            .unwrap_or_default();
        edit_headers(Map::Response, &action.edits);
        self.replacement = action.body;
        plugin.advance_tick(now, self.context);
        if action.is_held { Action::Pause } else { Action::Continue }
    }

    fn on_http_response_body(&mut self, size: usize, end: bool) -> Action {
        if let Some(body) = self.replacement.take() {
            host::set_buffer(Buffer::ResponseBody, size, &body);
        } else if let (Some(plugin), Some(sequence)) = (&self.plugin, self.sequence) {
            let read = |start, length| host::buffer(Buffer::ResponseBody, start, length);
            let action = plugin
                .with_worker(|worker| worker.handle_response_body(HostClock, sequence, size, end, read));
            return match action {
                None | Some(ResponseBodyAction::Pass) => Action::Continue,
                Some(ResponseBodyAction::Hold) => {
                    plugin.request_resumes();
                    Action::Pause
                }
                Some(ResponseBodyAction::Edit { bytes, is_held }) => {
                    host::set_buffer(Buffer::ResponseBody, size, &bytes);
                    if is_held {
                        plugin.request_resumes();
                        Action::Pause
                    } else {
                        Action::Continue
                    }
                }
                Some(ResponseBodyAction::Replace(error)) => reply(&error),
            };
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _: usize) -> Action {
        if let (Some(plugin), Some(sequence)) = (&self.plugin, self.sequence) {
            plugin.with_worker(|worker| worker.handle_response_end(sequence));
        }
        Action::Continue
    }

    fn on_log(&mut self) {
        if let (Some(plugin), Some(sequence)) = (&self.plugin, self.sequence.take()) {
            let now = host::now();
            plugin.with_worker(|worker| worker.handle_log(now, sequence, &StreamProperties));
            plugin.advance_tick(now, self.context);
        }
    }
}
