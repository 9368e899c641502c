//! Waits until a gateway is ready: asks the companions for /readyz.

use std::time::Duration;

use penstock_config::Address;
use reqwest::{Client, Response, StatusCode, Url};
use serde_json::Value;
use tokio::time;

use super::companions::Companion;

/// Time between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// Time limit of an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns when /readyz of the only companion returns 200, or that of the leader of several. A standby is ready too, but
/// doesn't know whether Envoy is. Discovery isn't waited for: the object that it looks for may be created much later.
/// `last_answer` is the last other response.
pub(super) async fn ready(companions: &[Companion], last_answer: &mut String) {
    let clients: Option<Vec<_>> = companions.iter().map(|companion| client(&companion.http)).collect();
    let Some(clients) = clients else {
        "the HTTP client can't be created".clone_into(last_answer);
        return std::future::pending().await;
    };
    loop {
        for (client, url) in &clients {
            // A companion may not listen yet.
            let Ok(response) = client.get(url.clone()).send().await else {
                continue;
            };
            let is_ready = response.status() == StatusCode::OK;
            let text = text(response).await;
            if is_ready && (clients.len() == 1 || is_leader(&text)) {
                return;
            }
            *last_answer = text;
        }
        time::sleep(POLL_INTERVAL).await;
    }
}

fn client(address: &Address) -> Option<(Client, Url)> {
    let builder = Client::builder().no_proxy().timeout(TIMEOUT);
    let (builder, url) = match address {
        Address::Tcp(address) => (builder, format!("http://{address}/readyz?discovery=false")),
        Address::Unix(path) => {
            (builder.unix_socket(path.as_path()), "http://localhost/readyz?discovery=false".to_owned())
        }
    };
    builder.build().ok().zip(url.parse().ok())
}

async fn text(response: Response) -> String {
    response.text().await.unwrap_or_default()
}

fn is_leader(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|body| body["role"] == "leader")
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::StatusCode;
    use axum::routing::get;
    use tokio::sync::watch;

    use super::*;

    type Answer = (StatusCode, &'static str);

    const STARTING: Answer = (StatusCode::SERVICE_UNAVAILABLE, "0 of 6 sessions");
    const READY: Answer = (StatusCode::OK, "ready");
    const STANDBY: Answer = (StatusCode::OK, r#"{"ready": true, "role": "standby", "leader": null}"#);
    const NOT_READY: Answer =
        (StatusCode::SERVICE_UNAVAILABLE, r#"{"ready": false, "role": "leader", "leader": "127.0.0.1:1"}"#);
    const LEADER: Answer = (StatusCode::OK, r#"{"ready": true, "role": "leader", "leader": "127.0.0.1:1"}"#);

    /// A companion that only answers /readyz.
    struct Served {
        companion: Companion,
        answer: watch::Sender<Answer>,
        /// The number of requests.
        asked: watch::Receiver<u32>,
    }

    async fn serve(answer: Answer) -> Served {
        let (answer, answers) = watch::channel(answer);
        let (count, asked) = watch::channel(0);
        let page = get(move || async move {
            let answer = *answers.borrow();
            count.send_modify(|count| *count += 1);
            answer
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let http = Address::Tcp(listener.local_addr().expect("bound"));
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/readyz", page)).await });
        let companion = Companion { grpc: http.clone(), http, variables: Vec::new() };
        Served { companion, answer, asked }
    }

    /// Checks that the last of `served` makes the gateway ready by `answer`, and nothing before does.
    async fn becomes_ready(mut served: Vec<Served>, answer: Answer) {
        let companions: Vec<_> = served.iter().map(|served| served.companion.clone()).collect();
        let last = served.last_mut().expect("a companion");
        let mut reason = String::new();
        let mut ready = Box::pin(ready(&companions, &mut reason));
        tokio::select! {
            () = &mut ready => panic!("ready too early"),
            // The second question comes after the answers of the first round.
            asked = last.asked.wait_for(|count| *count >= 2) => { asked.expect("served"); }
        }
        last.answer.send_replace(answer);
        let in_time = time::timeout(Duration::from_secs(20), ready).await;
        assert!(in_time.is_ok(), "never ready");
        assert!(!reason.is_empty(), "the reason is kept");
    }

    #[tokio::test]
    async fn the_only_companion_is_ready_with_200() {
        becomes_ready(vec![serve(STARTING).await], READY).await;
    }

    #[tokio::test]
    async fn of_several_companions_the_leader_counts() {
        becomes_ready(vec![serve(STANDBY).await, serve(NOT_READY).await], LEADER).await;
    }
}
