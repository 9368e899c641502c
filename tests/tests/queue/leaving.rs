//! A tenant whose clients leave early beside an honest one: the honest one gets its share of the tokens that the server generates, and
//! both use as much of their budgets for a token, in every way of leaving and in every API.
//!
//! The server counts its tokens truly. It decides when a client leaves, by a count of generated tokens, so that no clock does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_tests::gateway::{config, pool, slots};
use penstock_tests::{Call, ClientRequest, Events, Gateway, Upstream, run_alone, until};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Tokens of a whole answer.
const TOKENS: u64 = 40;
/// Tokens of a prompt, as the server counts.
const PROMPT: u64 = 8;
/// Between two tokens.
const TOKEN_TIME: Duration = Duration::from_millis(10);
/// Time for a prompt, in tokens of an answer.
const PROMPT_STEPS: u64 = 3;
/// Steps of a server in one trial: those of a prompt, and a token each. A trial has some dozens of answers, so that the one that is
/// being computed at its end weighs little.
const TRIAL: u64 = 3_000;
/// Requests that run at a server.
const PLACES: u32 = 2;
/// The server aborts what its clients leave, and a gateway that reads no metrics takes every server for such a one.
const NO_METRICS: &str = "  scrape: {path: null}\n";
/// A budget for each tenant that nobody uses up.
const BUDGETS: &str =
    "  arbitration: {flows: {budgets: [{match: '*', windows: [{tokens: 1000000000, per: 1h}]}]}}\n";
/// Clients of each tenant. Each sends its next request when its last one has ended.
const CLIENTS: usize = 4;

/// A way of leaving.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// A stream, while the server reads the prompt.
    StreamBeforeItBegins,
    /// A stream, when its headers and the events before the first token have arrived.
    StreamBeforeAToken,
    /// A stream, after its first token.
    StreamAfterAToken,
    /// A stream, in its middle.
    StreamInTheMiddle,
    /// A stream of events with four tokens each, in its middle.
    StreamOfBlocks,
    /// A stream, when all its text has arrived, and before the server sends its counts.
    StreamBeforeItsCounts,
    /// A whole answer, when it has begun.
    WholeAtItsBegin,
    /// A whole answer, just before it comes.
    WholeBeforeItComes,
}

impl Leaving {
    const ALL: [Self; 8] = [
        Self::StreamBeforeItBegins,
        Self::StreamBeforeAToken,
        Self::StreamAfterAToken,
        Self::StreamInTheMiddle,
        Self::StreamOfBlocks,
        Self::StreamBeforeItsCounts,
        Self::WholeAtItsBegin,
        Self::WholeBeforeItComes,
    ];

    const fn is_streamed(self) -> bool {
        !matches!(self, Self::WholeAtItsBegin | Self::WholeBeforeItComes)
    }

    /// The tokens in one event.
    const fn tokens_in_an_event(self) -> u64 {
        if matches!(self, Self::StreamOfBlocks) { 4 } else { 1 }
    }

    /// The step of the server after which the client leaves; the prompt's come first.
    const fn step(self) -> u64 {
        match self {
            Self::StreamBeforeItBegins => 1,
            Self::StreamBeforeAToken => PROMPT_STEPS,
            Self::StreamAfterAToken | Self::WholeAtItsBegin => PROMPT_STEPS + 1,
            Self::StreamInTheMiddle | Self::StreamOfBlocks => PROMPT_STEPS + TOKENS / 2,
            Self::StreamBeforeItsCounts => PROMPT_STEPS + TOKENS,
            Self::WholeBeforeItComes => PROMPT_STEPS + TOKENS - 1,
        }
    }
}

/// An API with streams.
#[derive(Clone, Copy, Debug)]
enum Dialect {
    Chat,
    Responses,
    Messages,
}

impl Dialect {
    /// A request with this text.
    fn request(self, model: &str, text: &str) -> ClientRequest {
        let (path, limit) = match self {
            Self::Chat => ("/v1/chat/completions", "max_tokens"),
            Self::Responses => ("/v1/responses", "max_output_tokens"),
            Self::Messages => ("/v1/messages", "max_tokens"),
        };
        let messages = json!([{"role": "user", "content": text}]);
        let key = if matches!(self, Self::Responses) { "input" } else { "messages" };
        ClientRequest::to(path, json!({"model": model})).with(key, messages).with(limit, TOKENS)
    }

    /// The text of a request.
    fn text(self, body: &Value) -> String {
        let key = if matches!(self, Self::Responses) { "input" } else { "messages" };
        body[key][0]["content"].as_str().unwrap_or_default().to_owned()
    }

    /// The event before the first token. Anthropic's counts are zeros, as those of vLLM.
    fn beginning(self) -> Value {
        match self {
            Self::Chat => json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
            Self::Responses => {
                json!({"type": "response.created", "response": {"status": "in_progress", "usage": null}})
            }
            Self::Messages => json!({
                "type": "message_start", "message": {"usage": {"input_tokens": PROMPT, "output_tokens": 0}},
            }),
        }
    }

    fn piece(self, text: &str) -> Value {
        match self {
            Self::Chat => json!({"choices": [{"index": 0, "delta": {"content": text}}]}),
            Self::Responses => json!({"type": "response.output_text.delta", "delta": text}),
            Self::Messages => {
                json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}})
            }
        }
    }

    /// The last event, with the counts.
    fn end(self) -> Value {
        let usage = json!({"input_tokens": PROMPT, "output_tokens": TOKENS});
        match self {
            Self::Chat => {
                json!({"choices": [], "usage": {"prompt_tokens": PROMPT, "completion_tokens": TOKENS}})
            }
            Self::Responses => {
                json!({"type": "response.completed", "response": {"status": "completed", "usage": usage}})
            }
            Self::Messages => {
                json!({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": usage})
            }
        }
    }

    /// A whole answer.
    fn whole(self) -> Value {
        let text = "word".repeat(usize::try_from(TOKENS).expect("few"));
        let mut answer = match self {
            Self::Chat => {
                json!({"choices": [{"index": 0, "finish_reason": "length", "message": {"content": text}}]})
            }
            Self::Responses => {
                json!({"status": "completed", "output": [{"content": [{"type": "output_text", "text": text}]}]})
            }
            Self::Messages => json!({"type": "message", "content": [{"type": "text", "text": text}]}),
        };
        answer["usage"] = match self {
            Self::Chat => self.end()["usage"].clone(),
            Self::Responses => self.end()["response"]["usage"].clone(),
            Self::Messages => self.end()["usage"].clone(),
        };
        answer
    }
}

/// One pool with its server, an honest tenant and one that leaves.
struct Trial {
    dialect: Dialect,
    leaving: Leaving,
    /// The steps that the server has taken.
    steps: AtomicU64,
    /// The tokens that the server has generated in the trial: for the honest tenant, and for the other one.
    generated: [AtomicU64; 2],
    /// Clients that leave, by the text of their requests.
    leavers: Mutex<HashMap<String, oneshot::Sender<()>>>,
    next_text: AtomicU64,
}

impl Trial {
    fn model(&self) -> String {
        format!("{:?}", self.leaving).to_lowercase()
    }

    fn generated(&self) -> [u64; 2] {
        [0, 1].map(|tenant: usize| self.generated[tenant].load(Ordering::SeqCst))
    }

    /// The honest tenant's part of the tokens, in percent.
    fn honest_share(&self) -> u64 {
        let [stays, leaves] = self.generated();
        stays * 100 / (stays + leaves).max(1)
    }

    /// Computes one answer, step by step, until it is whole or its client is gone.
    async fn compute(&self, call: Call) {
        let text = self.dialect.text(&call.json());
        let leaver = self.leavers.lock().expect("no holder of the lock panics").remove(&text);
        let is_leaver = leaver.is_some();
        let answer = if call.json()["stream"] == true {
            ServerAnswer::Stream(call.stream())
        } else {
            ServerAnswer::Whole(Box::new(call))
        };
        let mut computed = Computed { trial: self, answer, leaver, is_leaver, step: 0 };
        while computed.step < PROMPT_STEPS + TOKENS {
            if computed.is_gone_within(TOKEN_TIME).await {
                return;
            }
            computed.advance();
        }
        if is_leaver && matches!(self.leaving, Leaving::StreamBeforeItsCounts) {
            // The client leaves between the last token and the counts.
            computed.gone().await;
        }
        computed.end(self.dialect);
    }

    /// One honest client.
    async fn stay(&self, gateway: &Gateway) {
        loop {
            let request = self.dialect.request(&self.model(), "stays").tenant("stays");
            let answer = gateway.send(request.streamed()).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }

    /// One client that leaves each of its requests.
    async fn leave(&self, gateway: &Gateway) {
        loop {
            let text = format!("leaves {}", self.next_text.fetch_add(1, Ordering::SeqCst));
            let (sender, left) = oneshot::channel();
            self.leavers.lock().expect("no holder of the lock panics").insert(text.clone(), sender);
            let mut request = self.dialect.request(&self.model(), &text).tenant("leaves");
            if self.leaving.is_streamed() {
                request = request.streamed();
            }
            let reading = async {
                let Ok(mut response) = gateway.open(request).await else { return };
                while let Ok(Some(_)) = response.chunk().await {}
            };
            tokio::select! {
                _ = left => {}
                () = reading => {}
            }
        }
    }
}

enum ServerAnswer {
    Stream(Events),
    Whole(Box<Call>),
}

/// An answer that the server computes.
struct Computed<'a> {
    trial: &'a Trial,
    answer: ServerAnswer,
    leaver: Option<oneshot::Sender<()>>,
    is_leaver: bool,
    step: u64,
}

impl Computed<'_> {
    async fn gone(&mut self) {
        match &mut self.answer {
            ServerAnswer::Stream(events) => events.gone().await,
            ServerAnswer::Whole(call) => call.gone().await,
        }
    }

    async fn is_gone_within(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.gone()).await.is_ok()
    }

    /// Computes the next step.
    fn advance(&mut self) {
        self.step += 1;
        let Self { trial, step, .. } = *self;
        let is_in_trial = trial.steps.fetch_add(1, Ordering::SeqCst) < TRIAL;
        if let Some(tokens) = step.checked_sub(PROMPT_STEPS) {
            let block = if self.is_leaver { trial.leaving.tokens_in_an_event() } else { 1 };
            let event = match tokens {
                0 => Some(trial.dialect.beginning()),
                _ if tokens % block == 0 => {
                    Some(trial.dialect.piece(&"word".repeat(usize::try_from(block).expect("few"))))
                }
                _ => None,
            };
            if tokens > 0 && is_in_trial {
                trial.generated[usize::from(self.is_leaver)].fetch_add(1, Ordering::SeqCst);
            }
            if let (ServerAnswer::Stream(events), Some(event)) = (&self.answer, event) {
                events.raw(format!("data: {event}\n\n"));
            }
        }
        if step == trial.leaving.step()
            && let Some(leaver) = self.leaver.take()
        {
            // A client that has left by itself doesn't listen.
            let _is_gone = leaver.send(());
        }
    }

    fn end(self, dialect: Dialect) {
        match self.answer {
            ServerAnswer::Stream(events) => events.raw(format!("data: {}\n\n", dialect.end())),
            ServerAnswer::Whole(call) => {
                call.respond(200, &[("content-type", "application/json")], dialect.whole().to_string());
            }
        }
    }
}

/// Runs all ways of leaving side by side, each at a pool of its own.
async fn shares(dialect: Dialect) {
    let mut trials = Vec::new();
    for leaving in Leaving::ALL {
        let trial = Trial {
            dialect,
            leaving,
            steps: AtomicU64::new(0),
            generated: Default::default(),
            leavers: Mutex::default(),
            next_text: AtomicU64::new(0),
        };
        trials.push((Arc::new(trial), Arc::new(Upstream::scripted().await)));
    }
    let more = slots(PLACES) + NO_METRICS + BUDGETS;
    let pools = trials.iter().map(|(trial, server)| pool(&trial.model(), &trial.model(), &[server], &more));
    let gateway = Arc::new(Gateway::start(&config("", &pools.collect::<Vec<_>>())).await);
    let mut tasks = Vec::<JoinHandle<()>>::new();
    for (trial, server) in &trials {
        let (serving, server) = (trial.clone(), server.clone());
        tasks.push(tokio::spawn(async move {
            loop {
                let (call, trial) = (server.next().await, serving.clone());
                tokio::spawn(async move { trial.compute(call).await });
            }
        }));
        for _ in 0..CLIENTS {
            let (honest, through) = (trial.clone(), gateway.clone());
            tasks.push(tokio::spawn(async move { honest.stay(&through).await }));
            let (leaver, through) = (trial.clone(), gateway.clone());
            tasks.push(tokio::spawn(async move { leaver.leave(&through).await }));
        }
    }
    for (trial, _) in &trials {
        // A slow machine may take long for all steps, but not for some of them.
        for goal in (300..=TRIAL).step_by(300) {
            until("the server goes on", || async {
                let steps = trial.steps.load(Ordering::SeqCst);
                if steps >= goal { Ok(()) } else { Err(format!("{:?}: {steps} steps", trial.leaving)) }
            })
            .await;
        }
    }
    let mut budgets = Vec::new();
    for (trial, _) in &trials {
        budgets.push(used_of_budgets(&gateway, &trial.model()).await);
    }
    tasks.iter().for_each(JoinHandle::abort);
    let honest: Vec<_> = trials.iter().map(|(trial, _)| (trial.leaving, trial.honest_share())).collect();
    println!("{dialect:?}: the honest tenant's percentage {honest:?}");
    for (trial, _) in &trials {
        assert!(trial.honest_share() >= 45, "{dialect:?}, {:?}: {:?}", trial.leaving, trial.generated());
    }
    for ((trial, _), used) in trials.iter().zip(budgets) {
        let [stays, leaves] = trial.generated();
        // Who leaves has more prompts for each token of an answer, so it uses more.
        let pays = 10 * used[1] * stays >= 9 * used[0] * leaves;
        assert!(pays && used[0] > 0, "{dialect:?}, {:?}: {used:?} for {stays}, {leaves}", trial.leaving);
    }
}

/// What both tenants have used of their budgets: the honest one, and the other one.
async fn used_of_budgets(gateway: &Gateway, pool: &str) -> [u64; 2] {
    let rows = gateway.get(&format!("/budgets?pool={pool}")).await.expect("it answers").json();
    let used = |tenant: &str| {
        let row = rows.as_array().into_iter().flatten().find(|row| row["flow"] == tenant);
        row.and_then(|row| row["windows"][0]["used"].as_u64()).unwrap_or(0)
    };
    ["stays", "leaves"].map(used)
}

#[test]
fn honest_tenant_keeps_its_share_beside_one_that_leaves_chats() {
    run_alone(shares(Dialect::Chat));
}

#[test]
fn honest_tenant_keeps_its_share_beside_one_that_leaves_responses() {
    run_alone(shares(Dialect::Responses));
}

#[test]
fn honest_tenant_keeps_its_share_beside_one_that_leaves_messages() {
    run_alone(shares(Dialect::Messages));
}
