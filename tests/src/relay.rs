//! A TCP relay between two processes, which a test can cut as a network partition would: connections stay open and carry nothing.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A running relay. Dropping it closes its connections.
pub struct Relay {
    address: SocketAddr,
    passes: watch::Sender<bool>,
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
        let (passes, state) = watch::channel(true);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(connect(near, target, state.clone()));
            }
        });
        Self {
            address,
            passes,
            _task: task,
        }
    }

    /// Where to connect instead of to the target.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Carries nothing any more, in either direction.
    pub fn cut(&self) {
        self.passes.send_replace(false);
    }

    /// Carries what was held back and what follows.
    pub fn mend(&self) {
        self.passes.send_replace(true);
    }
}

async fn connect(near: TcpStream, target: SocketAddr, mut passes: watch::Receiver<bool>) {
    if passes.wait_for(|passes| *passes).await.is_err() {
        return;
    }
    // The peer sees a connection that closes at once, as it would without the relay.
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    tokio::join!(
        copy(near_read, far_write, passes.clone()),
        copy(far_read, near_write, passes),
    );
}

/// Passes bytes on until either end closes.
async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut passes: watch::Receiver<bool>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut bytes).await {
        if read == 0
            || passes.wait_for(|passes| *passes).await.is_err()
            || to.write_all(&bytes[..read]).await.is_err()
        {
            break;
        }
    }
    // Fails if the connection is closed already.
    let _ = to.shutdown().await;
}
