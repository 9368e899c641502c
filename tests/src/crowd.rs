//! Many requests over a few HTTP/2 connections: each is known by what it says, and all are answered or given up at once.

use h2::client::ResponseFuture;

use crate::ask::{Answer, Ask};
use crate::h2c::H2c;
use crate::{Companion, Envoy};

/// What is sent until it is answered.
#[derive(Default)]
pub struct Crowd {
    clients: Vec<H2c>,
    answers: Vec<(String, ResponseFuture)>,
}

impl Crowd {
    /// Connects so many clients, each one at one worker.
    pub async fn join(&mut self, envoy: &Envoy, clients: usize) {
        for _ in 0..clients {
            self.clients.push(H2c::connect(envoy.gateway()).await);
        }
    }

    /// One of the clients.
    ///
    /// # Panics
    /// When there is no such client.
    pub fn client(&mut self, number: usize) -> &mut H2c {
        &mut self.clients[number]
    }

    /// Sends one, from the client of this number.
    ///
    /// # Panics
    /// When there is no such client, or its connection is closed.
    pub async fn ask(&mut self, client: usize, model: &str, tenant: &str, text: &str) {
        let ask = Ask::chat(model, text).tenant(tenant);
        let response = self.clients[client].ask(&ask).await;
        self.answers.push((text.to_owned(), response));
    }

    /// Fills a pool's servers with requests that each have a tenant of their own.
    pub async fn fill(&mut self, companion: &Companion, pool: &str, count: usize) {
        for number in 0..count {
            let text = format!("held {number}");
            self.ask(0, pool, &text, &text).await;
        }
        companion.stock(pool, count as u64).await;
    }

    /// Lets so many wait at `pool`: one flow a client (the first of `flows` is client `first`), which says its name and
    /// a number. The next number is sent when the one before it waits: bodies of a connection may overtake each other.
    pub async fn queue(&mut self, companion: &Companion, pool: &str, flows: &[usize], each: usize) {
        let before = companion.pool(pool).await.expect("the pool")["waiting"].as_u64();
        let mut waiting = before.expect("a number");
        for number in 0..each {
            for flow in flows {
                let tenant = format!("flow-{flow}");
                self.ask(*flow, pool, &tenant, &format!("{tenant} {number}"))
                    .await;
                waiting += 1;
            }
            companion.waiting(pool, waiting).await;
        }
    }

    /// The same requests as another crowd, so that they can be awaited apart; the connections stay here.
    #[must_use]
    pub fn split(&mut self, first: usize) -> Self {
        Self {
            clients: Vec::new(),
            answers: self.answers.drain(..first).collect(),
        }
    }

    /// All answers, in the order of sending.
    ///
    /// # Panics
    /// When one doesn't come, or is cut.
    pub async fn answers(&mut self) -> Vec<(String, Answer)> {
        let mut answers = Vec::new();
        for (text, response) in self.answers.drain(..) {
            let answer = H2c::answer(response).await;
            answers.push((text.clone(), answer.unwrap_or_else(|e| panic!("{text}: {e}"))));
        }
        answers
    }

    /// How the requests ended: a status, or none for one that was cut.
    pub async fn ends(&mut self) -> Vec<Option<u16>> {
        let mut ends = Vec::new();
        for (_, response) in self.answers.drain(..) {
            ends.push(H2c::answer(response).await.ok().map(|it| it.status));
        }
        ends
    }

    /// Gives up what isn't answered: half of it by closing the connections of the first half of the clients, the rest
    /// by resetting each stream.
    pub fn leave(&mut self) {
        let half = self.clients.len() / 2;
        drop(self.clients.drain(..half));
        self.answers.clear();
    }
}
