//! Ports to listen on: chooses free ports for port 0, and reports addresses that are in use.
//!
//! Envoy and the companion need each other's addresses before they start, so a port 0 is resolved here. Each resolved
//! address is reserved as long as the gateway lives, by a socket that is bound but doesn't listen. The system then
//! never returns the port to processes that ask for any free port. Envoy and the companion still can listen on it,
//! because they set `SO_REUSEADDR`, which shares an address as long as no socket listens there.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::{Domain, Socket, Type};

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
pub struct Ports(Vec<(SocketAddr, Socket)>);

impl Ports {
    /// No address.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Reserves a free port of 127.0.0.1.
    ///
    /// # Errors
    /// The system has none.
    pub fn reserve_any(&mut self) -> io::Result<SocketAddr> {
        let (bound, socket) = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        self.0.push((bound, socket));
        Ok(bound)
    }

    /// Reserves an address. Port 0 becomes a free port. The errors name the configuration `key` of the address, and the `flag`
    /// or key that changes it.
    ///
    /// # Errors
    /// The address is reserved here already, another process listens there, or the system refuses it.
    pub fn reserve(
        &mut self,
        address: SocketAddr,
        key: &'static str,
        flag: &'static str,
    ) -> Result<SocketAddr, Error> {
        match bind(address) {
            Ok((bound, _)) if self.contains(bound) => Err(Error::Taken { address, key, flag }),
            Ok((bound, socket)) => {
                self.0.push((bound, socket));
                Ok(bound)
            }
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => Err(Error::Taken { address, key, flag }),
            Err(why) => Err(Error::Refused { address, key, why }),
        }
    }

    /// Whether the address is already reserved here, because the configuration uses it twice.
    fn contains(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(other, _)| *other == address)
    }

    /// Reserves an address, or a free port on the same IP address if it is in use. For addresses that the user didn't
    /// choose.
    ///
    /// # Errors
    /// The system refuses the address.
    pub fn reserve_or_free(
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

/// A socket that is bound to the address, and where.
fn bind(address: SocketAddr) -> io::Result<(SocketAddr, Socket)> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
    Ok((bound, socket))
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
