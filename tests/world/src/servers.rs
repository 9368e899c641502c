//! Model servers as a gateway sees them: a server accepts a request, takes some time and answers; or it refuses, resets,
//! truncates or hangs. The jobs in progress here are the truth against which the invariants compare all other counts.

use super::World;
use super::event::{AttemptError, SimEvent};
use super::headers::SERVER_HEADER;
use super::http::VIA_UPSTREAM;
use super::time::{MICRO, MILLI, Nanos};

/// How a server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Healthy,
    /// Refuses connections.
    Refuses,
    /// Accepts requests and closes the connection before a response.
    Resets,
    /// Closes the connection in the middle of a response.
    Truncates,
    /// Accepts requests and never responds.
    Hangs,
    /// Answers 429 or 503 while it works on so many requests.
    PushesBack(usize),
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) pool: usize,
    pub(super) mode: Mode,
    /// The server passes its health check.
    pub(super) ready: bool,
}

/// A request at a server.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) http: u64,
    pub(super) server: usize,
    /// Envoy tried another host first, so the grant does not name this server.
    pub(super) fallback: bool,
    /// The server's mode when the job started.
    mode: Mode,
    response_started: bool,
    /// Time from the start of the response to its end.
    response_time: Nanos,
}

impl World {
    /// A request reaches a server.
    pub(super) fn start_job(&mut self, http: u64, address: &str) {
        let Some(index) = self.servers.iter().position(|server| server.address == address) else {
            return self.fail(|| format!("http {http} is routed to {address}, which is no server"));
        };
        let mode = self.servers[index].mode;
        if mode == Mode::Refuses {
            let wait = self.rng.below(5 * MILLI);
            return self
                .event_queue
                .schedule(self.now + wait, SimEvent::AttemptFailed(http, AttemptError::Refused));
        }
        if let Mode::PushesBack(most) = mode
            && self.jobs.values().filter(|job| job.server == index).count() >= most
        {
            let wait = self.rng.below(5 * MILLI);
            return self.event_queue.schedule(self.now + wait, SimEvent::AttemptPushedBack(http));
        }
        let Some(stream) = self.http_streams.get_mut(&http) else {
            return;
        };
        self.jobs_started += 1;
        let id = self.jobs_started;
        stream.job = Some(id);
        let fallback = stream.is_fallback();
        let mean = self.scenario.service;
        let time = self.rng.exponential(mean).max(100 * MICRO);
        let first_step = match mode {
            Mode::Healthy | Mode::Truncates | Mode::Refuses | Mode::PushesBack(_) => Some(time / 4),
            Mode::Resets => Some(self.rng.below(time / 2 + 1)),
            Mode::Hangs => None,
        };
        let job = Job {
            http,
            server: index,
            fallback,
            mode,
            response_started: false,
            response_time: time - time / 4,
        };
        self.jobs.insert(id, job);
        self.summary.jobs += 1;
        if let Some(wait) = first_step {
            self.event_queue.schedule(self.now + wait, SimEvent::JobStep(id));
        }
        self.check_servers(id);
    }

    /// A job starts its response, ends it, or fails.
    pub(super) fn advance_job(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let http = job.http;
        let root_dead = self
            .http_streams
            .get(&http)
            .is_none_or(|http| self.roots.get(&http.root).is_none_or(|root| root.dead));
        if root_dead {
            // Envoy fails the stream at the next callback into the trapped VM.
            return self.reset_http_stream(http, "wasm_fail_stream");
        }
        match (job.mode, job.response_started) {
            (Mode::Resets | Mode::Hangs, _) => {
                self.detach_job(id, http);
                self.attempt_failed(http, AttemptError::Reset);
            }
            (Mode::Healthy | Mode::Truncates | Mode::Refuses | Mode::PushesBack(_), false) => {
                job.response_started = true;
                let wait = job.response_time;
                self.event_queue.schedule(self.now + wait, SimEvent::JobStep(id));
                let status = if self.rng.per_mille(5) { "500" } else { "200" };
                let server = self.http_streams.get(&http).map(|http| http.address.clone());
                let pairs = vec![
                    (":status".to_owned(), status.to_owned()),
                    ("content-type".to_owned(), "application/json".to_owned()),
                    (SERVER_HEADER.to_owned(), server.unwrap_or_default()),
                ];
                self.start_response(http, pairs, VIA_UPSTREAM);
            }
            (Mode::Truncates, true) => {
                self.detach_job(id, http);
                self.reset_http_stream(http, "upstream_reset_after_response_started{remote_reset}");
            }
            (Mode::Healthy | Mode::Refuses | Mode::PushesBack(_), true) => {
                self.detach_job(id, http);
                let output = self.rng.between(1, 300);
                let prompt = self.rng.between(1, 500);
                if let Some(http) = self.http_streams.get(&http) {
                    self.counted_usage.insert(http.client, (prompt, output));
                }
                let body =
                    format!(r#"{{"usage":{{"prompt_tokens":{prompt},"completion_tokens":{output}}}}}"#);
                self.end_response(http, body.as_bytes(), VIA_UPSTREAM);
            }
        }
    }

    /// A job ends before its HTTP stream does.
    fn detach_job(&mut self, id: u64, http: u64) {
        self.end_job(id);
        if let Some(http) = self.http_streams.get_mut(&http) {
            http.job = None;
        }
    }

    /// A job ends: it is done, or its client has disconnected.
    pub(super) fn end_job(&mut self, id: u64) {
        self.jobs.remove(&id);
    }

    /// Changes how a server behaves. Jobs that hung there are reset.
    pub(super) fn set_mode(&mut self, index: usize, mode: Mode) {
        let before = std::mem::replace(&mut self.servers[index].mode, mode);
        let address = self.servers[index].address.clone();
        self.note(|| format!("server {address}: {mode:?}"));
        if before == Mode::Hangs {
            let hung: Vec<u64> = self
                .jobs
                .iter()
                .filter(|(_, job)| job.server == index && job.mode == Mode::Hangs)
                .map(|(id, _)| *id)
                .collect();
            for id in hung {
                self.event_queue.schedule(self.now, SimEvent::JobStep(id));
            }
        }
    }
}
