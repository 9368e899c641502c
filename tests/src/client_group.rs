//! Many requests over a few HTTP/2 connections: each is identified by its text, and all are awaited or cancelled together.

use h2::client::ResponseFuture;

use crate::client_request::{Answer, ClientRequest};
use crate::h2c::H2c;
use crate::{Companion, Envoy};

/// Connections, and the requests that await their answers.
#[derive(Default)]
pub struct ClientGroup {
    clients: Vec<H2c>,
    answers: Vec<(String, ResponseFuture)>,
}

impl ClientGroup {
    /// Connects `clients` clients, each to one worker.
    pub async fn join(&mut self, envoy: &Envoy, clients: usize) {
        for _ in 0..clients {
            self.clients.push(H2c::connect(envoy.gateway()).await);
        }
    }

    /// One of the clients.
    ///
    /// # Panics
    /// If there is no such client.
    pub fn client(&mut self, number: usize) -> &mut H2c {
        &mut self.clients[number]
    }

    /// Sends a request from the client of this number.
    ///
    /// # Panics
    /// If there is no such client, or its connection is closed.
    pub async fn ask(&mut self, client: usize, model: &str, tenant: &str, text: &str) {
        let ask = ClientRequest::chat(model, text).tenant(tenant);
        let response = self.clients[client].ask(&ask).await;
        self.answers.push((text.to_owned(), response));
    }

    /// Fills a pool's servers with requests of one tenant each.
    pub async fn fill(&mut self, companion: &Companion, pool: &str, count: usize) {
        for number in 0..count {
            let text = format!("held {number}");
            self.ask(0, pool, &text, &text).await;
        }
        companion.stock(pool, count as u64).await;
    }

    /// Makes `each` requests of every flow wait in `pool`. A flow is a client's number; a request's text is the flow's name and a number.
    /// The next number is sent when the one before it waits, because bodies of one connection may overtake each other.
    pub async fn queue(&mut self, companion: &Companion, pool: &str, flows: &[usize], each: usize) {
        let before = companion.pool(pool).await.expect("the pool")["waiting"].as_u64();
        let mut waiting = before.expect("a number");
        for number in 0..each {
            for flow in flows {
                let tenant = format!("flow-{flow}");
                self.ask(*flow, pool, &tenant, &format!("{tenant} {number}")).await;
                waiting += 1;
            }
            companion.waiting(pool, waiting).await;
        }
    }

    /// Moves the first requests into another group, so that a test can await them separately; the connections stay here.
    #[must_use]
    pub fn split(&mut self, first: usize) -> Self {
        Self { clients: Vec::new(), answers: self.answers.drain(..first).collect() }
    }

    /// All answers, in the order of sending.
    ///
    /// # Panics
    /// If an answer does not arrive, or is cut.
    pub async fn answers(&mut self) -> Vec<(String, Answer)> {
        let mut answers = Vec::new();
        for (text, response) in self.answers.drain(..) {
            let answer = H2c::answer(response).await;
            answers.push((text.clone(), answer.unwrap_or_else(|e| panic!("{text}: {e}"))));
        }
        answers
    }

    /// The statuses of the requests, in the order of sending; `None` for a request that was cut.
    pub async fn ends(&mut self) -> Vec<Option<u16>> {
        let mut ends = Vec::new();
        for (_, response) in self.answers.drain(..) {
            ends.push(H2c::answer(response).await.ok().map(|answer| answer.status));
        }
        ends
    }

    /// Cancels every unanswered request: half of them by closing the connections of the first half of the clients, the rest by resetting
    /// each stream.
    pub fn leave(&mut self) {
        let half = self.clients.len() / 2;
        drop(self.clients.drain(..half));
        self.answers.clear();
    }
}
