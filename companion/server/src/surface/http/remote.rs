//! The sender of a request.

use std::fmt;
use std::net::SocketAddr;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::{TcpListener, UnixListener};

use crate::base::admin::Peer;

/// Where a request came from; `None`: a unix socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote(Option<SocketAddr>);

impl Remote {
    pub(super) fn peer(self) -> Peer {
        self.0.map_or(Peer::ThisMachine, Peer::from)
    }
}

/// For the log.
impl fmt::Display for Remote {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => address.fmt(formatter),
            None => formatter.write_str("unix socket"),
        }
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for Remote {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(Some(*stream.remote_addr()))
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Remote {
    fn connect_info(_: IncomingStream<'_, UnixListener>) -> Self {
        Self(None)
    }
}
