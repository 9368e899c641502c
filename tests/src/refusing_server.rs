//! A model server that does not run yet: its reserved address refuses every connection until the server starts.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

use crate::Upstream;

/// A reserved address without a server.
pub struct RefusingServer {
    socket: TcpSocket,
    address: SocketAddr,
}

impl RefusingServer {
    /// Reserves an address.
    ///
    /// # Panics
    /// If no address is free.
    #[must_use]
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(any).expect("a free port");
        let address = socket.local_addr().expect("a bound socket has an address");
        Self { socket, address }
    }

    /// The reserved address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts a server that hands every request to the test.
    ///
    /// # Panics
    /// If it cannot start.
    pub async fn up(self) -> Upstream {
        Upstream::scripted_on(self.socket.listen(1024).expect("it listens")).await
    }
}

impl Default for RefusingServer {
    fn default() -> Self {
        Self::new()
    }
}
