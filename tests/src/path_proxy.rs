//! A reverse proxy that shows a server under a path of its own, as an ingress does.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::wait::on_runtime_thread;

/// A running proxy. Requests outside its path are answered 404.
pub struct PathProxy {
    address: SocketAddr,
    path: &'static str,
    serving: tokio::task::AbortHandle,
}

impl PathProxy {
    /// Serves the root of `target`, such as `http://127.0.0.1:9191`, below `path`, which begins and ends with a slash.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(path: &'static str, target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let target = target.to_owned();
        let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build();
        let client = client.expect("a client can be built");
        let accepting = async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (client, target) = (client.clone(), target.clone());
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        forward(request, client.clone(), path, target.clone())
                    });
                    // An error means that the browser has cut the connection.
                    let _cut = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(socket), service)
                        .await;
                });
            }
        };
        let serving = on_runtime_thread(async move { tokio::spawn(accepting).abort_handle() }).await;
        Self { address, path, serving }
    }

    /// The address of the target's root.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }
}

impl Drop for PathProxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn forward(
    request: Request<Incoming>,
    client: reqwest::Client,
    path: &str,
    target: String,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let whole = head.uri.path_and_query().map_or("/", |path| path.as_str());
    let Some(rest) = whole.strip_prefix(path) else {
        return Ok(answer(StatusCode::NOT_FOUND, Bytes::new()));
    };
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let mut headers = head.headers;
    headers.remove(http::header::HOST);
    let forwarded = client.request(head.method, format!("{target}/{rest}")).headers(headers).body(body);
    let Ok(answered) = forwarded.send().await else {
        return Ok(answer(StatusCode::BAD_GATEWAY, Bytes::new()));
    };
    let (status, mut headers) = (answered.status(), answered.headers().clone());
    let Ok(body) = answered.bytes().await else {
        return Ok(answer(StatusCode::BAD_GATEWAY, Bytes::new()));
    };
    headers.remove(http::header::TRANSFER_ENCODING);
    let mut response = answer(status, body);
    *response.headers_mut() = headers;
    Ok(response)
}

fn answer(status: StatusCode, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
}
