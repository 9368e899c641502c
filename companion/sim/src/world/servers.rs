//! Model servers, as far as a gateway can tell: they take a request, take their time, and answer; or they refuse,
//! reset, break off or hang. What is in progress here is the truth that all books are held against.

use super::World;
use super::agenda::{Due, MICRO, MILLI, Nanos, Why};
use super::http::{SERVER_HEADER, VIA_UPSTREAM};

/// How a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Well,
    /// It takes no connection.
    Refuses,
    /// It takes requests and cuts the connection before an answer.
    Resets,
    /// It breaks off inside the answer.
    BreaksOff,
    /// It takes requests and says nothing.
    Hangs,
}

/// A server.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) pool: usize,
    pub(super) mode: Mode,
    /// Its health check passes.
    pub(super) listed: bool,
}

/// A request at a server.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) http: u64,
    pub(super) server: usize,
    /// It wasn't granted to this server first.
    pub(super) fallback: bool,
    fate: Mode,
    begun: bool,
    rest: Nanos,
}

impl World {
    /// A request reaches a server.
    pub(super) fn begin_job(&mut self, http: u64, address: &str) {
        let Some(server) = self.servers.iter().position(|it| it.address == address) else {
            return self.broken(|| format!("http {http} goes to {address}, which is no server"));
        };
        let mode = self.servers[server].mode;
        if mode == Mode::Refuses {
            let wait = self.dice.below(5 * MILLI);
            return self.agenda.put(self.now + wait, Due::Failed(http, Why::Refused));
        }
        let Some(of) = self.https.get_mut(&http) else {
            return;
        };
        self.jobs_begun += 1;
        let id = self.jobs_begun;
        of.job = Some(id);
        let fallback = of.is_fallback();
        let mean = self.setting.service;
        let time = self.dice.around(mean).max(100 * MICRO);
        let first = match mode {
            Mode::Well | Mode::BreaksOff | Mode::Refuses => time / 4,
            Mode::Resets => self.dice.below(time / 2 + 1),
            Mode::Hangs => Nanos::MAX,
        };
        let job = Job {
            http,
            server,
            fallback,
            fate: mode,
            begun: false,
            rest: time - time / 4,
        };
        self.jobs.insert(id, job);
        self.tally.jobs += 1;
        if first < Nanos::MAX {
            self.agenda.put(self.now + first, Due::Job(id));
        }
        self.check_job(id);
    }

    /// A job is a step further.
    pub(super) fn job_steps(&mut self, id: u64) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let http = job.http;
        let root_dead = self
            .https
            .get(&http)
            .is_none_or(|it| self.roots.get(&it.root).is_none_or(|root| root.dead));
        if root_dead {
            // The next byte meets a filter that isn't there.
            return self.cut(http, "wasm_fail_stream");
        }
        match (job.fate, job.begun) {
            (Mode::Resets | Mode::Hangs, _) => {
                self.end_job(id);
                if let Some(of) = self.https.get_mut(&http) {
                    of.job = None;
                }
                self.failed(http, Why::Reset);
            }
            (Mode::Well | Mode::BreaksOff | Mode::Refuses, false) => {
                job.begun = true;
                let rest = job.rest;
                self.agenda.put(self.now + rest, Due::Job(id));
                let status = if self.dice.mille(5) { "500" } else { "200" };
                let server = self.https.get(&http).map(|it| it.address.clone());
                let pairs = vec![
                    (":status".to_owned(), status.to_owned()),
                    ("content-type".to_owned(), "application/json".to_owned()),
                    (SERVER_HEADER.to_owned(), server.unwrap_or_default()),
                ];
                self.head(http, pairs, VIA_UPSTREAM, VIA_UPSTREAM, false);
            }
            (Mode::BreaksOff, true) => {
                self.end_job(id);
                if let Some(of) = self.https.get_mut(&http) {
                    of.job = None;
                }
                self.cut(http, "upstream_reset_after_response_started{remote_reset}");
            }
            (Mode::Well | Mode::Refuses, true) => {
                self.end_job(id);
                if let Some(of) = self.https.get_mut(&http) {
                    of.job = None;
                }
                let output = self.dice.between(1, 300);
                let prompt = self.dice.between(1, 500);
                let body =
                    format!(r#"{{"usage":{{"prompt_tokens":{prompt},"completion_tokens":{output}}}}}"#);
                self.tail(http, body.as_bytes(), "via_upstream");
            }
        }
    }

    /// A job is over: done, or its client has gone.
    pub(super) fn end_job(&mut self, id: u64) {
        self.jobs.remove(&id);
    }

    /// A server is another from now on. What hung there is cut.
    pub(super) fn set_mode(&mut self, server: usize, mode: Mode) {
        let before = std::mem::replace(&mut self.servers[server].mode, mode);
        let address = self.servers[server].address.clone();
        self.note(|| format!("server {address} is {mode:?}"));
        if before == Mode::Hangs {
            let hung: Vec<u64> = self
                .jobs
                .iter()
                .filter(|(_, it)| it.server == server && it.fate == Mode::Hangs)
                .map(|(id, _)| *id)
                .collect();
            for id in hung {
                self.agenda.put(self.now, Due::Job(id));
            }
        }
    }
}
