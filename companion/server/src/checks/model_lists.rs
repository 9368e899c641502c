//! Reads the lists of models of the model servers, and sends their union to the filters.
//!
//! One task for each endpoint reads `/v1/models`; servers change their list when an adapter is loaded. The union is made by one task, so that a later
//! list never overtakes a newer one. A pool whose servers are all away keeps the last lists.

mod union;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use penstock_config::Config;
use penstock_control::Event;
use tokio::sync::mpsc;

use self::union::{ListedModels, Union};
use crate::base::essential;
use crate::checks::endpoint_tasks::EndpointTasks;
use crate::checks::server_client::{Route, ServerClient};
use crate::decisions::driver::Handle;

/// The path of the list, in the APIs of OpenAI and Anthropic, and in all engines.
const PATH: &str = "/v1/models";
/// Between two readings of a list.
const INTERVAL: Duration = Duration::from_secs(30);
/// After a server didn't answer.
const RETRY: Duration = Duration::from_secs(5);
/// After the companion's start, the list is complete after this time, even if discovery has found no server of a pool, or one hasn't answered.
const GRACE: Duration = Duration::from_secs(15);
/// A list that takes longer isn't read.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a list that are read.
const BODY_MAX: usize = 1 << 20;
/// Messages for the task that makes the union.
const MESSAGES: usize = 64;

enum Message {
    /// The pools, whole.
    Pools(Vec<union::Pool>),
    /// An endpoint was asked; `None`: it has no list that can be read.
    Answer { pool: Arc<str>, address: String, models: Option<ListedModels> },
}

/// The tasks that read lists.
#[derive(Debug)]
pub(crate) struct Lists {
    messages: mpsc::Sender<Message>,
    tasks: EndpointTasks<Route>,
}

impl Lists {
    /// Reads no list yet.
    pub(crate) fn new(driver: Handle) -> Self {
        let (messages, inbox) = mpsc::channel(MESSAGES);
        essential::spawn("the list of models", make_union(inbox, driver));
        Self { messages, tasks: EndpointTasks::default() }
    }

    /// Reads the lists of exactly the endpoints whose pools have health checks: the others shall get clients' requests only.
    pub(crate) async fn follow(&mut self, config: &Config) {
        let pools = config.pools.iter().map(union::Pool::of).collect();
        // The union's task ends with the driver.
        let _ended = self.messages.send(Message::Pools(pools)).await;
        let messages = &self.messages;
        self.tasks.follow(
            config,
            |pool| pool.health.is_some().then(|| Route::of_requests(&pool.upstream)),
            |pool, address, route, _| {
                essential::spawn("lists of models", watch(route, pool, address, messages.clone()))
            },
        );
    }
}

async fn watch(route: Route, pool: Arc<str>, address: String, messages: mpsc::Sender<Message>) {
    let Ok(socket) = address.parse::<SocketAddr>() else { return };
    let mut client = ServerClient::new(socket, route);
    loop {
        let answer = tokio::time::timeout(TIMEOUT, read(&mut client)).await.unwrap_or(None);
        let pause = if answer.is_some() { INTERVAL } else { RETRY };
        let models = answer.flatten();
        let answer = Message::Answer { pool: pool.clone(), address: address.clone(), models };
        if messages.send(answer).await.is_err() {
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

/// The list of a server; `Some(None)`: it answers, and has none; `None`: it doesn't answer.
async fn read(client: &mut ServerClient) -> Option<Option<ListedModels>> {
    let accept = (header::ACCEPT, HeaderValue::from_static("application/json"));
    let response = client.get(PATH, &[accept]).await.ok()?;
    let status = response.status();
    let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
    let body = body.ok().filter(|_| status == StatusCode::OK);
    Some(body.and_then(|body| ListedModels::parse(&body.to_bytes())))
}

async fn make_union(mut inbox: mpsc::Receiver<Message>, driver: Handle) {
    let mut union = Union::default();
    let mut sent = None;
    let (begun, mut was_complete) = (tokio::time::Instant::now(), false);
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Pools(pools) => union.set_pools(pools),
            Message::Answer { pool, address, models } => union.answer(&pool, address, models),
        }
        union.is_complete |= begun.elapsed() >= GRACE;
        if !std::mem::take(&mut union.has_changed) && union.is_complete == was_complete {
            continue;
        }
        was_complete = union.is_complete;
        let Some(list) = union.list() else { continue };
        was_complete = union.is_complete;
        if sent.as_ref() == Some(&list) {
            continue;
        }
        let list = Arc::new(list);
        tracing::info!(models = list.models.len(), "GET {PATH} has another list of models");
        if driver.send(Event::ModelList(list.clone())).await.is_err() {
            return;
        }
        sent = Some(Arc::unwrap_or_clone(list));
    }
}
