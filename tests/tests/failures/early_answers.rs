//! Model servers that answer before they have read the whole request, and close the connection. The client gets that answer where Envoy has
//! sent the whole request by then. While Envoy still sends, it meets the closed connection before it reads the answer (envoyproxy/envoy#2929).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_tests::gateway::{config, slots};
use penstock_tests::{ClientRequest, Gateway, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// What a server has read of a request when it answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    Headers,
    APart,
}

/// A server that answers so, and closes with the rest of the request unread, which resets the connection.
struct Early {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Early {
    async fn start(status: &'static str, reads: Reads) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = requests.clone();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(refuse(socket, status, reads));
            }
        });
        Self { address, requests, task: task.abort_handle() }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn refuse(mut socket: TcpStream, status: &str, reads: Reads) {
    let mut read = Vec::new();
    let mut part = [0; 4096];
    let wanted = |read: &[u8]| match reads {
        Reads::Headers => read.windows(4).any(|end| end == b"\r\n\r\n"),
        Reads::APart => read.len() > 300_000,
    };
    while !wanted(&read) {
        match socket.read(&mut part).await {
            Ok(0) | Err(_) => return,
            Ok(count) => read.extend_from_slice(&part[..count]),
        }
    }
    let body = r#"{"error": {"message": "too long for me", "code": "mine"}}"#;
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let _closed = socket.write_all(format!("{head}{body}").as_bytes()).await;
}

/// A pool of two such servers, with some requests of this size. Returns the gateway, the statuses, and how often each request was sent.
async fn answers(
    status: &'static str,
    reads: Reads,
    size: usize,
) -> (Gateway, Vec<(u16, String)>, Vec<usize>) {
    let servers = [Early::start(status, reads).await, Early::start(status, reads).await];
    let addresses = servers.each_ref().map(|server| format!("'{}'", server.address)).join(", ");
    let pool = format!(
        "- name: p\n  endpoints: {{static: [{addresses}]}}\n  health: {{path: null}}\n  scrape: {{path: null}}\n{}",
        slots(4)
    );
    let gateway = Gateway::start(&config("", &[pool])).await;
    let requests = || servers.iter().map(Early::requests).sum::<usize>();
    let (mut answers, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let before = requests();
        let answer = gateway.send(ClientRequest::chat("m", &"x".repeat(size))).await;
        answers.push((answer.status, answer.code()));
        sent.push(requests() - before);
    }
    (gateway, answers, sent)
}

#[test]
fn answer_before_the_end_of_a_request_that_was_sent_is_the_clients() {
    run(async {
        for (status, code) in [("413 Payload Too Large", 413), ("400 Bad Request", 400)] {
            for size in [100, 100_000] {
                let (_gateway, answers, sent) = answers(status, Reads::Headers, size).await;
                assert_eq!(answers, vec![(code, "mine".to_owned()); 10], "{size}");
                assert_eq!(sent, [1; 10], "{size}");
            }
        }
    });
}

#[test]
fn answer_while_envoy_sends_costs_two_attempts_and_marks_no_endpoint() {
    run(async {
        for reads in [Reads::Headers, Reads::APart] {
            let (gateway, answers, sent) = answers("413 Payload Too Large", reads, 8_000_000).await;
            for (status, code) in answers {
                assert!(
                    matches!((status, &*code), (413, "mine") | (502, "upstream_reset")),
                    "{status} {code}"
                );
            }
            // The first attempt, and one more by `queue.resets`.
            assert!(sent.iter().all(|count| *count <= 2), "{sent:?}");
            let pool = gateway.pool("p").await;
            let states: Vec<_> =
                pool["endpoints"].as_array().into_iter().flatten().map(|e| &e["state"]).collect();
            assert_eq!(states, ["healthy", "healthy"], "{pool}");
        }
    });
}
