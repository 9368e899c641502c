//! The root context: configures the plugin, and passes the callbacks of the sessions and of the tick on to the worker.

use std::rc::Rc;

use penstock_filter_core::config::Config;
use penstock_filter_core::effect::SessionId;
use penstock_filter_core::failed_attempts::FailedAttempts;
use penstock_filter_core::headers::Headers;
use penstock_filter_core::time::Instant;
use penstock_filter_core::worker::Worker;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

use crate::host::{self, Buffer, HostSharedData, Level, Map, StreamProperties};
use crate::http_context::Http;
use crate::plugin::Plugin;

thread_local! {
    /// Of all root contexts in this module, which the host runs on one thread.
    static FAILED_ATTEMPTS: FailedAttempts = FailedAttempts::default();
}

pub(crate) struct Root {
    context: u32,
    /// `None` until the plugin is configured.
    plugin: Option<Rc<Plugin>>,
}

impl Root {
    pub(crate) fn new(context: u32) -> Self {
        Self { context, plugin: None }
    }

    fn configure(&self, size: usize) -> Result<Plugin, String> {
        let json = host::buffer(Buffer::PluginConfiguration, 0, size).unwrap_or_default();
        let config = Config::parse(&json).map_err(|error| format!("plugin configuration: {error}"))?;
        let random = host::random_bits().ok_or("the host provides no random bits")?;
        let worker = Worker::new(host::now(), &random, &config, Box::new(HostSharedData))
            .sharing(FAILED_ATTEMPTS.with(FailedAttempts::clone));
        // Each root context needs a name of its own: the last one that registers a name is called back.
        let queue =
            host::register_queue(&format!("penstock/{:016x}{:016x}", random.epoch.hi, random.epoch.lo));
        Ok(Plugin::new(self.context, config.companion, worker, queue))
    }

    /// Calls `f` with the worker, then carries out all pending actions and sets the tick.
    fn handle(&self, f: impl FnOnce(&mut Worker, Instant)) {
        if let Some(plugin) = &self.plugin {
            let now = host::now();
            plugin.with_worker(|worker| f(worker, now));
            plugin.resume_streams();
            plugin.set_tick(now);
        }
    }

    fn session_of(&self, token: u32) -> Option<SessionId> {
        self.plugin.as_ref().and_then(|plugin| plugin.session_of(token))
    }
}

impl Context for Root {
    fn on_grpc_stream_message(&mut self, token: u32, size: usize) {
        if let Some(session) = self.session_of(token) {
            let message = host::buffer(Buffer::GrpcMessage, 0, size).unwrap_or_default();
            self.handle(|worker, now| worker.handle_message(now, session, &message));
        }
    }

    fn on_grpc_stream_close(&mut self, token: u32, _status: u32) {
        // The host has released the token, so nothing may be sent on it any more.
        let session = self.plugin.as_ref().and_then(|plugin| plugin.forget_token(token));
        if let Some(session) = session {
            self.handle(|worker, now| worker.handle_closed(now, session));
        }
    }

    fn on_done(&mut self) -> bool {
        self.handle(|worker, _| worker.handle_shutdown());
        for token in self.plugin.iter().flat_map(|plugin| plugin.take_tokens()) {
            host::close_grpc(token);
        }
        true
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        match self.configure(size) {
            Ok(plugin) => {
                self.plugin = Some(Rc::new(plugin));
                // Sets the first tick, which opens the sessions.
                self.handle(|_, _| {});
                true
            }
            Err(error) => {
                host::log(Level::Error, &error);
                false
            }
        }
    }

    fn on_tick(&mut self) {
        if let Some(plugin) = &self.plugin {
            plugin.note_tick(host::now());
        }
        self.handle(Worker::handle_tick);
    }

    fn on_queue_ready(&mut self, _: u32) {
        if let Some(plugin) = &self.plugin {
            plugin.handle_callback();
        }
    }

    /// The access log of attempts upstream, which the router of this plugin's listener writes for some statuses.
    fn on_log(&mut self) {
        let (request, response) = (host::headers(Map::Request), host::headers(Map::Response));
        let headers = (Headers::new(&request), Headers::new(&response));
        if let Some(plugin) = &self.plugin {
            plugin.with_worker(|worker| {
                worker.handle_attempt_log(host::now(), headers.0, headers.1, &StreamProperties);
            });
        }
    }

    fn create_http_context(&self, context: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Http::new(context, self.plugin.clone())))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
