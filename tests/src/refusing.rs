//! A model server that isn't up: its address is its own and refuses every connection, until it comes up.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

use crate::Upstream;

/// Such a server.
pub struct Refusing {
    socket: TcpSocket,
    address: SocketAddr,
}

impl Refusing {
    /// Takes an address.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(any).expect("a free port");
        let address = socket.local_addr().expect("a bound socket has an address");
        Self { socket, address }
    }

    /// Where it would listen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// It comes up, and hands every request to the test.
    ///
    /// # Panics
    /// When it can't.
    pub async fn up(self) -> Upstream {
        Upstream::scripted_on(self.socket.listen(1024).expect("it listens")).await
    }
}

impl Default for Refusing {
    fn default() -> Self {
        Self::new()
    }
}
