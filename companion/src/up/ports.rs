//! Addresses to listen on: free ones where the port is 0, and a clear word where one is taken.
//!
//! Envoy and the companion must agree on addresses before either runs, so a port 0 is settled here. All chosen
//! ones are held until the last is, or two of them could be the same.

use std::{
    io,
    net::{SocketAddr, TcpListener},
};

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
pub(super) struct Ports(Vec<TcpListener>);

impl Ports {
    /// `address` itself, or with a free port if it has port 0.
    pub(super) fn settle(
        &mut self,
        address: SocketAddr,
        key: &'static str,
        flag: &'static str,
    ) -> Result<SocketAddr, Error> {
        let bound = TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener)));
        match bound {
            Ok((settled, listener)) => {
                self.0.push(listener);
                Ok(settled)
            }
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => Err(Error::Taken { address, key, flag }),
            Err(why) => Err(Error::Refused { address, key, why }),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn settled_ports_differ_and_are_free_afterwards() {
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
        drop(ports);
        TcpListener::bind(first).expect("free again");
    }
}
