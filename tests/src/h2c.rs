//! An HTTP/2 client on one connection, and so at one Envoy worker; it can end a request with trailers.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::client_request::{Answer, ClientRequest};
use crate::wait::soon;

/// A connection by prior knowledge.
pub struct H2c {
    requests: SendRequest<Bytes>,
    driver: AbortHandle,
}

impl H2c {
    /// Connects.
    ///
    /// # Panics
    /// If no server listens, or it does not use HTTP/2.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("the gateway listens");
        Self::over(socket).await
    }

    /// Speaks HTTP/2 on this connection.
    ///
    /// # Panics
    /// If the server does not use HTTP/2.
    pub async fn over<S>(connection: S) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (requests, connection) = h2::client::handshake(connection).await.expect("HTTP/2");
        let driver = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        Self { requests, driver }
    }

    /// Sends a JSON POST in these pieces; await its answer with [`H2c::status`].
    ///
    /// # Panics
    /// If the connection is closed.
    pub async fn post(
        &mut self,
        path: &str,
        pieces: &[Bytes],
        trailers: Option<HeaderMap>,
    ) -> ResponseFuture {
        let request = Request::post(format!("http://gateway{path}"))
            .header("content-type", "application/json")
            .body(())
            .expect("a valid request");
        let ready = soon("room for a stream", self.requests.clone().ready()).await;
        let mut requests = ready.expect("an open connection");
        let (response, mut stream) = requests.send_request(request, false).expect("sent");
        for (index, piece) in pieces.iter().enumerate() {
            let last = index + 1 == pieces.len() && trailers.is_none();
            stream.send_data(piece.clone(), last).expect("sent");
        }
        if let Some(trailers) = trailers {
            stream.send_trailers(trailers).expect("sent");
        }
        response
    }

    /// Sends a whole request; await its answer with [`H2c::answer`].
    ///
    /// # Panics
    /// If the connection is closed.
    pub async fn ask(&mut self, ask: &ClientRequest) -> ResponseFuture {
        let mut request = Request::post(format!("http://gateway{}", ask.path));
        request = request.header("content-type", "application/json");
        for (name, value) in &ask.headers {
            request = request.header(name, value);
        }
        let request = request.body(()).expect("a valid request");
        let ready = soon("room for a stream", self.requests.clone().ready()).await;
        let mut requests = ready.expect("an open connection");
        let (response, mut stream) = requests.send_request(request, false).expect("sent");
        let body = ask.body.to_string().into();
        stream.send_data(body, true).expect("sent");
        response
    }

    /// A whole answer.
    ///
    /// # Errors
    /// If the stream ends without an answer.
    pub async fn answer(response: ResponseFuture) -> Result<Answer, h2::Error> {
        let (head, mut stream) = soon("an answer", response).await?.into_parts();
        let mut body = Vec::new();
        while let Some(piece) = soon("the rest of an answer", stream.data()).await {
            let piece = piece?;
            stream.flow_control().release_capacity(piece.len())?;
            body.extend_from_slice(&piece);
        }
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body: body.into() })
    }

    /// The status and the headers of an answer.
    ///
    /// # Panics
    /// If no answer arrives.
    pub async fn status(response: ResponseFuture) -> (StatusCode, HeaderMap) {
        let response = soon("an answer", response).await.expect("a whole head");
        (response.status(), response.headers().clone())
    }
}

impl Drop for H2c {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
