//! A client for health checks and metrics of one model server: it connects to one address, the way that requests do, with TLS, HTTP/2 and the credential of the
//! pool. It follows no redirect and uses no proxy.
//!
//! It is built on hyper's connections, because a client that is shared by many servers resolves names and chooses TLS by URL, while here the
//! address is given and the name in the certificate may be another.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use penstock_config::{Upstream, UpstreamTls};
use penstock_errors::root_cause;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::server_tls::Connector;

/// The way to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) tls: Option<UpstreamTls>,
    pub(crate) http2: bool,
    /// Headers of each request, by name.
    pub(crate) headers: Vec<(String, String)>,
}

impl Route {
    /// The way of a pool's requests.
    pub(crate) fn of_requests(upstream: &Upstream) -> Self {
        let headers = upstream
            .headers
            .iter()
            .filter_map(|header| Some((header.name.clone(), header.value.as_ref()?.reveal().to_owned())));
        Self { tls: upstream.tls.clone(), http2: upstream.http2, headers: headers.collect() }
    }
}

/// A client of one server. It keeps a connection open between requests.
pub(crate) struct ServerClient {
    address: SocketAddr,
    /// `host` of the requests.
    authority: String,
    route: Route,
    headers: HeaderMap,
    /// The connector, or why there is none.
    tls: Option<Result<Connector, String>>,
    connection: Option<Connection>,
}

enum Connection {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

impl ServerClient {
    pub(crate) fn new(address: SocketAddr, route: Route) -> Self {
        let tls = route.tls.as_ref().map(|tls| Connector::new(tls, address.ip(), route.http2));
        let name = route.tls.as_ref().and_then(|tls| tls.server_name.as_ref());
        let authority = name.map_or_else(|| address.to_string(), |name| format!("{name}:{}", address.port()));
        let headers = route.headers.iter().filter_map(|(name, value)| {
            let mut value = HeaderValue::from_str(value).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        });
        let mut headers: HeaderMap = headers.collect();
        // A server's log shows who asks.
        headers
            .entry(header::USER_AGENT)
            .or_insert(HeaderValue::from_static(concat!("penstock/", env!("CARGO_PKG_VERSION"))));
        Self { address, authority, headers, route, tls, connection: None }
    }

    /// The URL of a path, for log lines.
    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.route.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.address)
    }

    /// Sends a GET request with further headers. The connection is used again once the whole response was read.
    ///
    /// # Errors
    /// A sentence about the cause.
    pub(crate) async fn get(
        &mut self,
        path: &str,
        more: &[(HeaderName, HeaderValue)],
    ) -> Result<Response<Incoming>, String> {
        if let Some(mut connection) = self.connection.take() {
            // The server may have closed it meanwhile, which says nothing about the server.
            if let Ok(response) = self.send(&mut connection, path, more).await {
                self.connection = Some(connection);
                return Ok(response);
            }
        }
        let mut connection = self.connect().await?;
        let response = self.send(&mut connection, path, more).await?;
        self.connection = Some(connection);
        Ok(response)
    }

    async fn send(
        &self,
        connection: &mut Connection,
        path: &str,
        more: &[(HeaderName, HeaderValue)],
    ) -> Result<Response<Incoming>, String> {
        let request = self.request(path, more)?;
        let sent = match connection {
            Connection::Http1(sender) => {
                sender.ready().await.map_err(|error| sentence(&root_cause(&error)))?;
                sender.send_request(request).await
            }
            Connection::Http2(sender) => {
                sender.ready().await.map_err(|error| sentence(&root_cause(&error)))?;
                sender.send_request(request).await
            }
        };
        sent.map_err(|error| sentence(&root_cause(&error)))
    }

    fn request(
        &self,
        path: &str,
        more: &[(HeaderName, HeaderValue)],
    ) -> Result<Request<Empty<Bytes>>, String> {
        let scheme = if self.route.tls.is_some() { "https" } else { "http" };
        let uri =
            if self.route.http2 { format!("{scheme}://{}{path}", self.authority) } else { path.to_owned() };
        let uri: Uri = uri.parse().map_err(|_| format!("`{path}` is no path of a URL"))?;
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = uri;
        if self.route.http2 {
            *request.version_mut() = Version::HTTP_2;
        } else {
            let host = HeaderValue::from_str(&self.authority).map_err(|error| error.to_string())?;
            request.headers_mut().insert(header::HOST, host);
        }
        request.headers_mut().extend(self.headers.clone());
        for (name, value) in more {
            request.headers_mut().insert(name, value.clone());
        }
        Ok(request)
    }

    async fn connect(&self) -> Result<Connection, String> {
        let stream = TcpStream::connect(self.address).await.map_err(|error| error.to_string())?;
        let _ = stream.set_nodelay(true);
        match &self.tls {
            None => self.handshake(stream).await,
            Some(Ok(connector)) => {
                let stream = connector.connect(stream).await.map_err(|why| sentence(&why))?;
                self.handshake(stream).await
            }
            Some(Err(why)) => Err(why.clone()),
        }
    }

    async fn handshake<S>(&self, stream: S) -> Result<Connection, String>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let failed = |error: hyper::Error| sentence(&root_cause(&error));
        if self.route.http2 {
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.map_err(failed)?;
            // Ends when the sender is dropped, or the server closes the connection.
            tokio::spawn(async move { drop(connection.await) });
            return Ok(Connection::Http2(sender));
        }
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        tokio::spawn(async move { drop(connection.await) });
        Ok(Connection::Http1(sender))
    }
}

/// An error of the TLS library, with its remedy.
fn sentence(why: &str) -> String {
    let remedy = [
        ("UnknownIssuer", "its certificate isn't signed by an authority of upstream.tls.ca"),
        ("Expired", "its certificate has expired"),
        ("NotValidYet", "its certificate isn't valid yet"),
        ("NotValidForName", "its certificate is for another name: see upstream.tls.server_name"),
        ("not valid for name", "its certificate is for another name: see upstream.tls.server_name"),
        (
            "CertificateRequired",
            "it requires a certificate of the gateway: set upstream.tls.cert and upstream.tls.key",
        ),
        ("UnknownCA", "it doesn't accept the certificate of upstream.tls.cert"),
        ("InvalidContentType", "it doesn't speak TLS: leave upstream.tls out"),
        ("NoApplicationProtocol", "it speaks another version of HTTP: see upstream.http2"),
    ];
    match remedy.into_iter().find(|(word, _)| why.contains(word)) {
        Some((_, remedy)) => format!("{remedy} ({why})"),
        None => why.to_owned(),
    }
}
