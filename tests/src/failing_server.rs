//! A model server that fails every request in some way, while its health check is fine.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::{Call, Upstream};

/// How a server treats requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With an answer.
    Serve,
    /// With an error of this status.
    Status(u16),
    /// A success without a body.
    Empty,
    /// A success that says that there is no body.
    NoContent,
    /// A success whose body is a page for people.
    Page,
    /// An error in place of an answer, with a status of success: an object, or the first event of a stream.
    ReportedError,
    /// Text, and then an error. Without a stream, an answer that ends by an error.
    Abort,
    /// The connection is cut after the request was read.
    Cut,
    /// No byte of an answer comes.
    Hang,
    /// Requests with this text are refused with 400, and others served.
    Reject(&'static str),
    /// Requests for a model of this name are answered 404, and others served.
    Lacks(&'static str),
}

impl Way {
    fn treat(self, call: Call) {
        let fail = |call: Call, status| {
            let json = [("content-type", "application/json")];
            call.respond(status, &json, r#"{"error": {"message": "no", "code": "mine"}}"#);
        };
        match self {
            Self::Status(status) => fail(call, status),
            Self::Empty => call.respond(200, &[], ""),
            Self::NoContent => call.respond(204, &[], ""),
            Self::Page => {
                call.respond(200, &[("content-type", "text/html")], "<!doctype html><p>Sign in first.</p>")
            }
            Self::ReportedError => {
                let error = r#"{"error": {"message": "no", "type": "server_error", "code": 500}}"#;
                if call.json()["stream"] == true {
                    call.stream().raw(format!("data: {error}\n\n"));
                } else {
                    call.respond(200, &[("content-type", "application/json")], error);
                }
            }
            Self::Abort if call.json()["stream"] == true => {
                let events = call.stream();
                events.text("he");
                events.raw("data: {\"error\": {\"message\": \"no\", \"code\": 500}}\n\n");
            }
            Self::Abort => fail(call, 500),
            Self::Cut => call.cut(),
            Self::Hang => {
                let mut call = call;
                tokio::spawn(async move { call.gone().await });
            }
            Self::Reject(text) if call.text() == text => fail(call, 400),
            Self::Lacks(model) if call.json()["model"] == model => fail(call, 404),
            Self::Serve | Self::Reject(_) | Self::Lacks(_) => call.answer(),
        }
    }
}

/// A server that treats every request in one way, which may change.
pub struct FailingServer {
    upstream: Arc<Upstream>,
    /// How it treats requests from now on.
    pub way: watch::Sender<Way>,
    task: AbortHandle,
}

impl FailingServer {
    /// Starts the server.
    pub async fn start(way: Way) -> Self {
        let upstream = Arc::new(Upstream::scripted().await);
        let (way, current) = watch::channel(way);
        let served = upstream.clone();
        let task = tokio::spawn(async move {
            loop {
                match served.arrived().await {
                    Some(call) => current.borrow().treat(call),
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        });
        Self { upstream, way, task: task.abort_handle() }
    }

    /// Its address, `ip:port`.
    #[must_use]
    pub fn address(&self) -> String {
        self.upstream.address().to_string()
    }

    /// The requests that have arrived.
    #[must_use]
    pub fn total(&self) -> usize {
        self.upstream.total()
    }
}

impl Drop for FailingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
