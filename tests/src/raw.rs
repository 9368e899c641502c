//! An HTTP/1.1 client that sends exactly the given bytes, in exactly the given pieces.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client_request::Answer;
use crate::wait::soon;

/// A connection.
pub struct Raw {
    socket: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    /// Connects.
    ///
    /// # Panics
    /// If no server listens.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("the gateway listens");
        socket.set_nodelay(true).expect("a socket option");
        Self { socket, read: Vec::new() }
    }

    /// Sends the bytes as one segment; on a closed connection they are lost silently.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _closed = self.socket.write_all(bytes.as_ref()).await;
        let _closed = self.socket.flush().await;
    }

    /// Reads one answer, which may be an interim one (1xx).
    ///
    /// # Panics
    /// If no answer arrives, or it is not HTTP.
    pub async fn answer(&mut self) -> Answer {
        let end = loop {
            if let Some(position) = find(&self.read, b"\r\n\r\n") {
                break position + 4;
            }
            assert!(self.more().await, "closed inside the head: {}", String::from_utf8_lossy(&self.read));
        };
        let head = String::from_utf8(self.read.drain(..end).collect()).expect("a head is ASCII");
        let mut lines = head.lines();
        let status =
            lines.next().and_then(|l| l.split(' ').nth(1)).and_then(|s| s.parse().ok()).expect("a status");
        let mut headers = http::HeaderMap::new();
        for (name, value) in lines.filter_map(|l| l.split_once(':')) {
            let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a header's name");
            headers.append(name, value.trim().parse().expect("a header's value"));
        }
        let mut answer = Answer { status, headers, body: bytes::Bytes::new() };
        if !(100..200).contains(&status) && status != 204 {
            answer.body = self.body(&answer).await.into();
        }
        answer
    }

    /// Whether bytes have arrived, or the other side has closed.
    pub fn is_answered(&mut self) -> bool {
        let mut buffer = [0; 1024];
        match self.socket.try_read(&mut buffer) {
            Ok(count) => {
                self.read.extend(buffer.iter().take(count));
                true
            }
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }

    /// True when the other side closes without a further byte.
    pub async fn closed(&mut self) -> bool {
        self.read.is_empty() && !self.more().await
    }

    async fn body(&mut self, answer: &Answer) -> Vec<u8> {
        if answer.header("transfer-encoding") == "chunked" {
            return self.chunks().await;
        }
        match answer.header("content-length").parse::<usize>() {
            Ok(length) => self.exactly(length).await,
            Err(_) => {
                while self.more().await {}
                std::mem::take(&mut self.read)
            }
        }
    }

    async fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                if let Some(position) = find(&self.read, b"\r\n") {
                    break position + 2;
                }
                assert!(self.more().await, "closed inside a chunk's head");
            };
            let line: Vec<u8> = self.read.drain(..end).collect();
            let size = String::from_utf8_lossy(&line).trim().to_owned();
            let size = usize::from_str_radix(&size, 16).expect("a chunk's size");
            let mut chunk = self.exactly(size + 2).await;
            chunk.truncate(size);
            if size == 0 {
                return body;
            }
            body.append(&mut chunk);
        }
    }

    async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.read.len() < length {
            assert!(self.more().await, "closed inside a body");
        }
        self.read.drain(..length).collect()
    }

    async fn more(&mut self) -> bool {
        matches!(soon("bytes of an answer", self.socket.read_buf(&mut self.read)).await, Ok(read) if read > 0)
    }
}

/// The head of a POST, with `more` header lines, each ended by `\r\n`.
#[must_use]
pub fn post(path: &str, more: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n{more}\r\n")
}

fn find(bytes: &[u8], word: &[u8]) -> Option<usize> {
    bytes.windows(word.len()).position(|w| w == word)
}
