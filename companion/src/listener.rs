//! Opens what the companion listens on, and says clearly when it can't.

use std::io;
use std::path::PathBuf;

use tokio::net::{TcpListener, UnixListener};

use crate::config::Address;

/// An open listener. A unix socket's file is removed on drop.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket, and its file.
    Unix(UnixListener, SocketFile),
}

/// Removes the file of a unix socket.
#[derive(Debug)]
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Someone else has removed it when this fails.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An address that can't be listened on.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address} ({key}): {source}{hint}")]
pub struct Error {
    address: Address,
    key: &'static str,
    source: io::Error,
    hint: &'static str,
}

impl Listener {
    /// Opens `address`; `key` is where the configuration names it.
    ///
    /// # Errors
    /// When the address is in use or not allowed.
    pub async fn open(address: &Address, key: &'static str) -> Result<Self, Error> {
        let opened = match address {
            Address::Tcp(socket) => TcpListener::bind(socket).await.map(Self::Tcp),
            Address::Unix(path) => {
                // A socket that nobody answers on was left by a process that was killed.
                if path.exists() && std::os::unix::net::UnixStream::connect(path).is_err() {
                    let _ = std::fs::remove_file(path);
                }
                UnixListener::bind(path).map(|it| Self::Unix(it, SocketFile(path.clone())))
            }
        };
        opened.map_err(|source| Error {
            address: address.clone(),
            key,
            hint: match source.kind() {
                io::ErrorKind::AddrInUse => "; stop what uses it, or choose another address",
                _ => "",
            },
            source,
        })
    }
}
