//! Opens the companion's listeners, with errors that name the configuration key and the way out.

use std::fs::Permissions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use penstock_config::Address;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, UnixListener};

/// Connections that wait to be accepted.
const BACKLOG: u16 = 1_024;

/// An open listener. A unix socket's file is removed on drop.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The file of a unix socket. Removed on drop, unless another file has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // Fails when the file is removed already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// An address that can't be opened.
#[derive(Debug, thiserror::Error)]
#[error("can't listen on {address} ({key}): {source}{hint}")]
pub struct Error {
    address: Address,
    key: &'static str,
    source: io::Error,
    hint: &'static str,
}

impl Listener {
    /// Opens `address` on the current runtime; `key` is the address's configuration key.
    ///
    /// # Errors
    /// When the address is in use or not allowed.
    pub(crate) fn open(address: &Address, key: &'static str) -> Result<Self, Error> {
        let opened = match address {
            Address::Tcp(socket) => tcp(*socket).map(Self::Tcp),
            Address::Unix(path) => unix(path),
        };
        opened.map_err(|source| Error::new(address.clone(), key, source))
    }
}

impl Error {
    fn new(address: Address, key: &'static str, source: io::Error) -> Self {
        let hint = match source.kind() {
            io::ErrorKind::AddrInUse => "; stop the process that uses it, or choose another address",
            _ => "",
        };
        Self { address, key, source, hint }
    }
}

/// Opens a TCP address on the current runtime; `key` is its configuration key.
///
/// # Errors
/// When the address is in use or not allowed.
pub(crate) fn open_tcp(address: SocketAddr, key: &'static str) -> Result<TcpListener, Error> {
    tcp(address).map_err(|source| Error::new(Address::Tcp(address), key, source))
}

fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Allows the bind while connections of an earlier companion are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG.into())
}

/// Opens a unix socket that only this user can connect to.
fn unix(path: &Path) -> io::Result<Listener> {
    remove_stale(path);
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile { path: path.into(), identity: identity(path) };
    // Before `listen`, so that no other user can connect at any time.
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG.into())?;
    let listener = UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))?;
    Ok(Listener::Unix(listener, file))
}

/// Removes a socket that a killed process has left, and that refuses connections. Any other file is left alone.
fn remove_stale(path: &Path) {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    if is_socket
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|why| why.kind() == io::ErrorKind::ConnectionRefused)
    {
        // If this fails, the bind that follows returns the error.
        let _ = std::fs::remove_file(path);
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<Listener, Error> {
        Listener::open(&Address::Unix(path.into()), "listen.http")
    }

    #[tokio::test]
    async fn a_socket_is_private_and_removed_with_its_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.sock");
        let listener = open(&path).expect("open");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let taken = open(&path).expect_err("in use").to_string();
        assert!(taken.contains("listen.http") && taken.contains("choose another"), "{taken}");
        assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_other_files_are_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("p.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "std leaves the file");
        let listener = open(&path).expect("replaced");
        // Another socket in its place isn't removed.
        std::fs::remove_file(&path).expect("removed");
        let other = open(&path).expect("open");
        drop(listener);
        assert!(path.exists());
        drop(other);
        std::fs::write(&path, "other").expect("written");
        open(&path).expect_err("no socket");
        assert_eq!(std::fs::read_to_string(&path).expect("still there"), "other");
    }
}
