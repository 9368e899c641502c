//! Clients: each one sends a request and waits for the response, or disconnects before.

use penstock_wire::names;

use super::World;
use super::event::SimEvent;
use super::headers::{Pairs, SERVER_HEADER, header};

/// How a client's request ended, as the client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// A complete response of this status.
    Answered(u16),
    /// The connection broke.
    Cut,
    /// The client disconnected.
    Left,
    /// No Envoy accepted the connection.
    Unreachable,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(super) pool: usize,
    pub(super) flow: u64,
    pub(super) band: u64,
    pub(super) model: u64,
    pub(super) end: Option<End>,
    /// The status of a response that has started.
    status: Option<u16>,
    /// The client's HTTP stream; `None` before it is opened.
    http: Option<u64>,
    /// Every root context that the request passed through.
    pub(super) roots: Vec<u64>,
    /// Tenure of the last companion that counted the request's arrival,
    pub(super) arrival_counted_by: Option<u64>,
    /// and of the last one that counted its outcome.
    pub(super) outcome_counted_by: Option<u64>,
    /// Tenures of all companions that counted an outcome of the request.
    pub(super) decided_by: Vec<u64>,
    /// Tenures of the companions that released one of the request's sessions. They count the request again when it comes
    /// back.
    pub(super) released_by: Vec<u64>,
}

const PRIORITIES: [&str; 3] = ["critical", "default", "sheddable"];

impl World {
    /// Starts the next client and schedules the one after it.
    pub(super) fn next_client(&mut self) {
        if self.clients.len() as u64 >= self.scenario.requests {
            return;
        }
        let mean = self.scenario.interval;
        let wait = self.rng.exponential(mean);
        self.event_queue.schedule(self.now + wait, SimEvent::ClientArrives);
        self.start_client();
    }

    fn start_client(&mut self) {
        let number = self.clients.len() as u64;
        let pool = self.rng.below(self.scenario.pools.len() as u64) as usize;
        let flow = self.rng.below(self.scenario.flows);
        let band = self.rng.choose(&[0, 1, 1, 1, 2]);
        let model = self.rng.below(2);
        self.clients.push(Client {
            pool,
            flow,
            band,
            model,
            end: None,
            status: None,
            http: None,
            roots: Vec::new(),
            arrival_counted_by: None,
            outcome_counted_by: None,
            decided_by: Vec::new(),
            released_by: Vec::new(),
        });
        self.summary.requests += 1;
        let flows = &self.scenario.pools[pool].policy.flows;
        let has_own_account =
            flows.identities_max < self.scenario.flows as usize && flows.names(&format!("f{flow}"));
        self.summary.named_requests += u64::from(has_own_account);
        let alive: Vec<usize> = (0..self.envoys.len()).filter(|index| self.envoys[*index].alive).collect();
        let Some(envoy) = self.rng.choose_any(&alive) else {
            return self.end_client(number, End::Unreachable);
        };
        let worker = self.rng.below(self.scenario.workers as u64) as usize;
        let Some(root) = self.envoys[envoy].front_roots[worker] else {
            // Envoy answers by itself where the VM has trapped.
            return self.end_client(number, End::Answered(503));
        };
        let malformed = self.rng.percent(self.scenario.malformed_percent);
        let (headers, body) = self.request(number, malformed);
        let id = self.open_http_stream(root, number, None, headers, body);
        self.clients[number as usize].http = Some(id);
        if self.rng.percent(self.scenario.slow_bodies_percent) {
            let mean = self.scenario.interval * 4;
            let wait = self.rng.exponential(mean);
            self.event_queue.schedule(self.now + wait, SimEvent::BodyArrives(id));
        } else {
            self.receive_body(id);
        }
        if self.rng.percent(self.scenario.cancel_percent) {
            let mean = self.scenario.service + self.scenario.interval * 4;
            let wait = self.rng.exponential(mean);
            self.event_queue.schedule(self.now + wait, SimEvent::ClientLeaves(number));
        }
    }

    fn request(&mut self, number: u64, malformed: bool) -> (Pairs, String) {
        let client = &self.clients[number as usize];
        let pair = |name: &str, value: String| (name.to_owned(), value);
        let headers = vec![
            pair(":method", "POST".into()),
            pair(":path", "/v1/chat/completions".into()),
            pair("x-request-id", format!("r{number}")),
            pair("x-flow", format!("f{}", client.flow)),
            pair("x-priority", PRIORITIES[client.band as usize].into()),
        ];
        let (pool, model) = (client.pool, client.model);
        let words = "word ".repeat(self.rng.between(1, 40) as usize);
        let body = match malformed.then(|| self.rng.below(3)) {
            Some(0) => "{\"model\": 5".to_owned(),
            Some(1) => r#"{"model":"unheard-of","messages":[]}"#.to_owned(),
            Some(_) => "x".repeat(100_001),
            None => format!(
                r#"{{"model":"m{pool}-{model}","max_tokens":300,"messages":[{{"role":"user","content":"{words}"}}]}}"#
            ),
        };
        (headers, body)
    }

    /// A client disconnects, unless its request has ended.
    pub(super) fn client_leaves(&mut self, number: u64) {
        let client = &mut self.clients[number as usize];
        if client.end.is_some() {
            return;
        }
        client.end = Some(End::Left);
        let http = client.http;
        self.note(|| format!("client {number} disconnects"));
        *self.summary.ends.entry("left".into()).or_default() += 1;
        if let Some(http) = http {
            self.close_http_stream(http, "downstream_remote_disconnect");
        }
    }

    /// A response's headers reach a client.
    pub(super) fn client_receives_headers(&mut self, http: u64, pairs: &Pairs) {
        let Some(stream) = self.http_streams.get(&http) else {
            return;
        };
        let number = stream.client;
        let filtered = self.roots.get(&stream.root).is_some_and(|root| !root.dead);
        let status = header(pairs, ":status").and_then(|status| status.parse().ok()).unwrap_or(0);
        let outcomes = pairs.iter().filter(|(name, _)| name == names::OUTCOME_HEADER).count();
        if filtered && outcomes != 1 {
            let pairs = pairs.clone();
            return self.fail(|| format!("client {number} receives {outcomes} outcomes: {pairs:?}"));
        }
        let (server, served) = (header(pairs, SERVER_HEADER), header(pairs, names::SERVED_HEADER));
        if filtered && server.zip(served).is_some_and(|(server, served)| server != served) {
            let pairs = pairs.clone();
            return self.fail(|| format!("client {number} receives another server's name: {pairs:?}"));
        }
        if let Some(outcome) = header(pairs, names::OUTCOME_HEADER) {
            match self.summary.outcomes.get_mut(outcome) {
                Some(count) => *count += 1,
                None => {
                    self.summary.outcomes.insert(outcome.to_owned(), 1);
                }
            }
        }
        let client = &mut self.clients[number as usize];
        if client.status.replace(status).is_some() || client.end.is_some() {
            self.fail(|| format!("client {number} receives a second response"));
        }
    }

    /// A response's end reaches a client.
    pub(super) fn client_receives_end(&mut self, http: u64) {
        let Some(stream) = self.http_streams.get(&http) else {
            return;
        };
        let number = stream.client;
        let status = self.clients[number as usize].status.unwrap_or(0);
        self.end_client(number, End::Answered(status));
    }

    /// A client's HTTP stream has ended.
    pub(super) fn client_stream_closed(&mut self, number: u64) {
        if self.clients[number as usize].end.is_none() {
            self.end_client(number, End::Cut);
        }
    }

    fn end_client(&mut self, number: u64, end: End) {
        let before = self.clients[number as usize].end.replace(end);
        self.note(|| format!("client {number}: {end:?}"));
        if let Some(before) = before {
            self.fail(|| format!("client {number} ended as {before:?} and as {end:?}"));
        }
        let name = match end {
            End::Answered(status) => format!("{status}"),
            End::Cut => "cut".into(),
            End::Left => "left".into(),
            End::Unreachable => "unreachable".into(),
        };
        *self.summary.ends.entry(name).or_default() += 1;
    }

    /// Starts several clients at once.
    pub(super) fn client_burst(&mut self, count: u64) {
        for _ in 0..count {
            if (self.clients.len() as u64) < self.scenario.requests {
                self.start_client();
            }
        }
    }

    /// This part of the clients disconnects at once.
    pub(super) fn clients_leave_at_once(&mut self, percent: u64) {
        let waiting: Vec<u64> = (0..self.clients.len() as u64)
            .filter(|number| self.clients[*number as usize].end.is_none())
            .collect();
        for number in waiting {
            if self.rng.percent(percent) {
                self.client_leaves(number);
            }
        }
    }

    /// Whether all clients have started and all HTTP streams have ended.
    pub(super) fn all_ended(&self) -> bool {
        self.clients.len() as u64 >= self.scenario.requests && self.http_streams.is_empty()
    }
}
