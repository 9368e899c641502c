//! Ports to listen on: chooses free ports for port 0, and reports addresses that are in use.
//!
//! Envoy and the companion need each other's addresses before they start, so a port 0 is resolved here. Each resolved
//! address is reserved as long as the gateway lives, by a socket that is bound but doesn't listen. The system then
//! never returns the port to processes that ask for any free port. Envoy and the companion still can listen on it,
//! because they set `SO_REUSEADDR`, which shares an address as long as no socket listens there.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// Why an address can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process listens on the address.
    #[error(
        "{address} ({key}) is in use: stop the process that listens there, or choose another address with {flag}"
    )]
    Taken {
        /// The address.
        address: SocketAddr,
        /// The configuration key of the address.
        key: &'static str,
        /// The flag or key to change.
        flag: &'static str,
    },
    /// The system refuses the address.
    #[error("can't listen on {address} ({key}): {why}")]
    Refused {
        /// The address.
        address: SocketAddr,
        /// The configuration key of the address.
        key: &'static str,
        /// The system's error.
        why: io::Error,
    },
}

/// The reserved addresses. Dropping the value releases them.
#[derive(Debug, Default)]
pub(super) struct Ports(Vec<TcpSocket>);

impl Ports {
    /// Reserves an address. Port 0 becomes a free port.
    pub(super) fn reserve(
        &mut self,
        address: SocketAddr,
        key: &'static str,
        flag: &'static str,
    ) -> Result<SocketAddr, Error> {
        match bind(address).and_then(|socket| Ok((socket.local_addr()?, socket))) {
            Ok((bound, _)) if self.contains(bound) => Err(Error::Taken { address, key, flag }),
            Ok((bound, socket)) => {
                self.0.push(socket);
                Ok(bound)
            }
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => Err(Error::Taken { address, key, flag }),
            Err(why) => Err(Error::Refused { address, key, why }),
        }
    }

    /// Whether the address is already reserved here, because the configuration uses it twice.
    fn contains(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|socket| socket.local_addr().is_ok_and(|other| other == address))
    }

    /// Reserves an address, or a free port on the same IP address if it is in use. For addresses that the user didn't
    /// choose.
    pub(super) fn reserve_or_free(
        &mut self,
        address: SocketAddr,
        key: &'static str,
        flag: &'static str,
    ) -> Result<SocketAddr, Error> {
        match self.reserve(address, key, flag) {
            Err(Error::Taken { .. }) => self.reserve(SocketAddr::new(address.ip(), 0), key, flag),
            result => result,
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn reserved_ports_differ_and_can_be_listened_on() {
        let mut ports = Ports::default();
        let first = ports.reserve(any(), "a", "--a").expect("free");
        let second = ports.reserve(any(), "b", "--b").expect("free");
        assert_ne!(first, second);
        let message = ports.reserve(first, "listen.gateway", "--port").expect_err("reserved").to_string();
        assert!(message.contains("(listen.gateway) is in use") && message.contains("--port"), "{message}");
        assert_ne!(ports.reserve_or_free(first, "a", "--a").expect("another").port(), first.port());
        let companion = TcpListener::bind(first).expect("a reserved port can be listened on");
        let taken = Ports::default().reserve(first, "listen.http", "that key");
        assert!(
            taken.is_err_and(|error| error.to_string().contains("is in use")),
            "another socket listens there"
        );
        drop(companion);
        TcpListener::bind(first).expect("the port can be listened on again");
    }
}
