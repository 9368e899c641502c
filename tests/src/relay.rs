//! A TCP relay between two processes, which a test can cut as a network partition would: connections stay open and carry nothing.

use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The connections that carry nothing.
#[derive(Clone, Copy)]
enum Cut {
    None,
    All,
    From(IpAddr),
    /// All, which are closed at once, too.
    Closed,
}

impl Cut {
    fn passes(self, peer: IpAddr) -> bool {
        match self {
            Self::None => true,
            Self::All | Self::Closed => false,
            Self::From(cut) => cut != peer,
        }
    }
}

/// A running relay. Dropping it closes its connections.
pub struct Relay {
    address: SocketAddr,
    target: watch::Sender<SocketAddr>,
    cut: watch::Sender<Cut>,
    _task: JoinSet<()>,
}

impl Relay {
    /// Relays connections to `target`.
    ///
    /// # Panics
    /// If there is no free port.
    pub async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its own");
        let (cut, state) = watch::channel(Cut::None);
        let (to, target) = watch::channel(target);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, peer)) = listener.accept().await {
                let mut closed = state.clone();
                let connection = connect(near, peer.ip(), *target.borrow(), state.clone());
                connections.spawn(async move {
                    tokio::select! {
                        () = connection => {}
                        _ = closed.wait_for(|cut| matches!(cut, Cut::Closed)) => {}
                    }
                });
            }
        });
        Self { address, target: to, cut, _task: task }
    }

    /// Where to connect instead of to the target.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Relays new connections to another target. Those that are open stay.
    pub fn redirect(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// Carries nothing any more, in either direction.
    pub fn cut(&self) {
        self.cut.send_replace(Cut::All);
    }

    /// Carries nothing any more from and to this address.
    pub fn cut_from(&self, peer: IpAddr) {
        self.cut.send_replace(Cut::From(peer));
    }

    /// Closes all connections, and new ones at once, as if nobody listened.
    pub fn close(&self) {
        self.cut.send_replace(Cut::Closed);
    }

    /// Carries what was held back and what follows.
    pub fn mend(&self) {
        self.cut.send_replace(Cut::None);
    }
}

async fn connect(near: TcpStream, peer: IpAddr, target: SocketAddr, mut cut: watch::Receiver<Cut>) {
    if cut.wait_for(|cut| cut.passes(peer)).await.is_err() {
        return;
    }
    // The peer sees a connection that closes at once, as it would without the relay.
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    tokio::join!(copy(near_read, far_write, peer, cut.clone()), copy(far_read, near_write, peer, cut),);
}

/// Passes bytes on until either end closes.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, peer: IpAddr, mut cut: watch::Receiver<Cut>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut bytes).await {
        if read == 0
            || cut.wait_for(|cut| cut.passes(peer)).await.is_err()
            || to.write_all(&bytes[..read]).await.is_err()
        {
            break;
        }
    }
    // Fails if the connection is closed already.
    let _ = to.shutdown().await;
}
