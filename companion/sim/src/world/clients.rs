//! Clients: each sends one request, waits for its one answer, or leaves before.

use penstock_wire::names;

use super::World;
use super::agenda::Due;
use super::http::{Pairs, SERVER_HEADER, header};

/// How a client's request ended, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// The answer was complete; its status.
    Answered(u16),
    /// The connection broke.
    Cut,
    /// It left by itself.
    Left,
    /// Nobody took its connection.
    Unreachable,
}

/// A client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) pool: usize,
    pub(super) flow: u64,
    pub(super) band: u64,
    pub(super) model: u64,
    pub(super) end: Option<End>,
    /// The status of an answer that has begun.
    status: Option<u16>,
    pub(super) http: u64,
    /// Every root context that it came by.
    pub(super) roots: Vec<u64>,
    /// Which companion it has arrived at and left the queue of, counted there.
    pub(super) arrived: u64,
    pub(super) decided: u64,
    /// Which companion has released a root context of its own: what comes back is another request to it.
    pub(super) released: u64,
}

const PRIORITIES: [&str; 3] = ["critical", "default", "sheddable"];

impl World {
    /// The next request comes.
    pub(super) fn arrive(&mut self) {
        if self.clients.len() as u64 >= self.setting.requests {
            return;
        }
        let mean = self.setting.interval;
        let wait = self.dice.around(mean);
        self.agenda.put(self.now + wait, Due::Arrive);
        self.client_comes();
    }

    pub(super) fn client_comes(&mut self) {
        let number = self.clients.len() as u64;
        let pool = self.dice.below(self.setting.pools.len() as u64) as usize;
        let flow = self.dice.below(self.setting.flows);
        let band = self.dice.one(&[0, 1, 1, 1, 2]);
        let model = self.dice.below(2);
        self.clients.push(Client {
            pool,
            flow,
            band,
            model,
            end: None,
            status: None,
            http: 0,
            roots: Vec::new(),
            arrived: 0,
            decided: 0,
            released: 0,
        });
        self.tally.requests += 1;
        let lit: Vec<usize> = (0..self.envoys.len())
            .filter(|at| self.envoys[*at].alive)
            .collect();
        let Some(envoy) = self.dice.any(&lit) else {
            return self.client_ends(number, End::Unreachable);
        };
        let worker = self.dice.below(self.setting.workers as u64) as usize;
        let Some(root) = self.envoys[envoy].fronts[worker] else {
            // A VM that has trapped answers by itself.
            return self.client_ends(number, End::Answered(503));
        };
        let odd = self.dice.percent(self.setting.oddities_percent);
        let (headers, body) = self.request(number, odd);
        let id = self.start_http(root, number, None, headers, body);
        self.clients[number as usize].http = id;
        if self.dice.percent(self.setting.slow_bodies_percent) {
            let mean = self.setting.interval * 4;
            let wait = self.dice.around(mean);
            self.agenda.put(self.now + wait, Due::Body(id));
        } else {
            self.body_in(id);
        }
        if self.dice.percent(self.setting.leavers_percent) {
            let mean = self.setting.service + self.setting.interval * 4;
            let patience = self.dice.around(mean);
            self.agenda.put(self.now + patience, Due::Leave(number));
        }
    }

    fn request(&mut self, number: u64, odd: bool) -> (Pairs, String) {
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
        let words = "word ".repeat(self.dice.between(1, 40) as usize);
        let body = match odd.then(|| self.dice.below(3)) {
            Some(0) => "{\"model\": 5".to_owned(),
            Some(1) => r#"{"model":"unheard-of","messages":[]}"#.to_owned(),
            Some(_) => "x".repeat(100_001),
            None => format!(
                r#"{{"model":"m{pool}-{model}","max_tokens":300,"messages":[{{"role":"user","content":"{words}"}}]}}"#
            ),
        };
        (headers, body)
    }

    /// A client leaves, if it is still there.
    pub(super) fn client_leaves(&mut self, number: u64) {
        let client = &mut self.clients[number as usize];
        if client.end.is_some() {
            return;
        }
        client.end = Some(End::Left);
        let http = client.http;
        self.note(|| format!("client {number} leaves"));
        *self.tally.ends.entry("left".into()).or_default() += 1;
        self.log(http, "downstream_remote_disconnect");
    }

    /// The head of an answer reaches a client.
    pub(super) fn client_sees(&mut self, http: u64, pairs: &Pairs) {
        let Some(of) = self.https.get(&http) else {
            return;
        };
        let number = of.client;
        let filtered = self.roots.get(&of.root).is_some_and(|root| !root.dead);
        let status = header(pairs, ":status")
            .and_then(|it| it.parse().ok())
            .unwrap_or(0);
        let outcomes = pairs
            .iter()
            .filter(|(name, _)| name == names::OUTCOME_HEADER)
            .count();
        if filtered && outcomes != 1 {
            let pairs = pairs.clone();
            return self.broken(|| format!("client {number} hears {outcomes} outcomes: {pairs:?}"));
        }
        let (server, served) = (header(pairs, SERVER_HEADER), header(pairs, names::SERVED_HEADER));
        if filtered
            && server
                .zip(served)
                .is_some_and(|(server, served)| server != served)
        {
            let pairs = pairs.clone();
            return self.broken(|| format!("client {number} is told of another server: {pairs:?}"));
        }
        if let Some(outcome) = header(pairs, names::OUTCOME_HEADER) {
            match self.tally.outcomes.get_mut(outcome) {
                Some(count) => *count += 1,
                None => {
                    self.tally.outcomes.insert(outcome.to_owned(), 1);
                }
            }
        }
        let client = &mut self.clients[number as usize];
        if client.status.replace(status).is_some() || client.end.is_some() {
            self.broken(|| format!("client {number} is answered a second time"));
        }
    }

    /// The whole answer has reached a client.
    pub(super) fn client_served(&mut self, http: u64) {
        let Some(of) = self.https.get(&http) else {
            return;
        };
        let number = of.client;
        let status = self.clients[number as usize].status.unwrap_or(0);
        self.client_ends(number, End::Answered(status));
    }

    /// A client's HTTP stream is over.
    pub(super) fn client_gone(&mut self, number: u64) {
        if self.clients[number as usize].end.is_none() {
            self.client_ends(number, End::Cut);
        }
    }

    fn client_ends(&mut self, number: u64, end: End) {
        let before = self.clients[number as usize].end.replace(end);
        self.note(|| format!("client {number}: {end:?}"));
        if let Some(before) = before {
            self.broken(|| format!("client {number} ended as {before:?} and as {end:?}"));
        }
        let name = match end {
            End::Answered(status) => format!("{status}"),
            End::Cut => "cut".into(),
            End::Left => "left".into(),
            End::Unreachable => "unreachable".into(),
        };
        *self.tally.ends.entry(name).or_default() += 1;
    }

    /// Many requests at once.
    pub(super) fn crowd(&mut self, count: u64) {
        for _ in 0..count {
            if (self.clients.len() as u64) < self.setting.requests {
                self.client_comes();
            }
        }
    }

    /// Many leave at once.
    pub(super) fn exodus(&mut self, percent: u64) {
        let there: Vec<u64> = (0..self.clients.len() as u64)
            .filter(|number| self.clients[*number as usize].end.is_none())
            .collect();
        for number in there {
            if self.dice.percent(percent) {
                self.client_leaves(number);
            }
        }
    }

    /// Nobody asks any more, and nobody waits.
    pub(super) fn all_ended(&self) -> bool {
        self.clients.len() as u64 >= self.setting.requests && self.https.is_empty()
    }
}
