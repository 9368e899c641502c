//! Addresses to listen on: free ones where the port is 0, and a clear word where one is taken.
//!
//! Envoy and the companion must agree on addresses before either runs, so a port 0 is settled here. A chosen one is
//! held for as long as the gateway lives, by a socket that is bound and doesn't listen: the system gives it to nobody
//! who asks for any free port, and whoever asks for this one, as Envoy and the companion do at each start, gets it
//! (both set `SO_REUSEADDR`, which shares an address while nobody listens there).

use std::{io, net::SocketAddr};

use tokio::net::TcpSocket;

/// An address that can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Someone listens there.
    #[error("{address} ({key}) is in use: stop what listens there, or choose another with {flag}")]
    Taken {
        /// Which.
        address: SocketAddr,
        /// Where the configuration names it.
        key: &'static str,
        /// What to change.
        flag: &'static str,
    },
    /// The system says no.
    #[error("can't listen on {address} ({key}): {why}")]
    Refused {
        /// Which.
        address: SocketAddr,
        /// Where the configuration names it.
        key: &'static str,
        /// As the system says.
        why: io::Error,
    },
}

/// Holds what was chosen, until it is dropped.
#[derive(Debug, Default)]
pub(super) struct Ports(Vec<TcpSocket>);

impl Ports {
    /// `address` itself, or with a free port if it has port 0.
    pub(super) fn settle(
        &mut self,
        address: SocketAddr,
        key: &'static str,
        flag: &'static str,
    ) -> Result<SocketAddr, Error> {
        match bind(address).and_then(|held| Ok((held.local_addr()?, held))) {
            Ok((settled, held)) if self.holds(settled) => {
                drop(held);
                Err(Error::Taken { address, key, flag })
            }
            Ok((settled, held)) => {
                self.0.push(held);
                Ok(settled)
            }
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => Err(Error::Taken { address, key, flag }),
            Err(why) => Err(Error::Refused { address, key, why }),
        }
    }

    /// A shared address is ours already: the configuration names it twice.
    fn holds(&self, address: SocketAddr) -> bool {
        self.0
            .iter()
            .any(|held| held.local_addr().is_ok_and(|other| other == address))
    }

    /// As [`Self::settle`], but any free port does if that one is taken: for addresses that nobody named.
    pub(super) fn settle_near(
        &mut self,
        address: SocketAddr,
        key: &'static str,
        flag: &'static str,
    ) -> Result<SocketAddr, Error> {
        match self.settle(address, key, flag) {
            Err(Error::Taken { .. }) => self.settle(SocketAddr::new(address.ip(), 0), key, flag),
            settled => settled,
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
    fn settled_ports_differ_and_are_for_who_asks_for_them() {
        let mut ports = Ports::default();
        let first = ports.settle(any(), "a", "--a").expect("free");
        let second = ports.settle(any(), "b", "--b").expect("free");
        assert_ne!(first, second);
        let message = ports
            .settle(first, "listen.gateway", "--port")
            .expect_err("held")
            .to_string();
        assert!(
            message.contains("(listen.gateway) is in use") && message.contains("--port"),
            "{message}"
        );
        assert_ne!(
            ports.settle_near(first, "a", "--a").expect("another").port(),
            first.port()
        );
        let companion = TcpListener::bind(first).expect("who asks for it gets it");
        let taken = Ports::default().settle(first, "listen.http", "that key");
        assert!(
            taken.is_err_and(|error| error.to_string().contains("is in use")),
            "somebody listens there"
        );
        drop(companion);
        TcpListener::bind(first).expect("and gets it again");
    }
}
