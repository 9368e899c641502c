//! The thread on which decisions are made: the driver and the streams of gRPC, on a runtime of their own.
//!
//! Between a frame that comes in and the one that goes out lie four tasks. On one thread they follow each other as
//! calls do; spread over several, every hand-over wakes a thread, which costs more than the decision. And nothing else
//! runs here: whoever reads the metrics, or has Kubernetes watched, takes nothing from a request that waits.

use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime, which ends when this is dropped, and with it all that was spawned there.
#[derive(Debug)]
pub struct DataPath {
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DataPath {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread, or no way to wait for its sockets.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("data-path".into())
            .spawn(move || {
                // An error is an end as well: its sender has gone.
                let _ = runtime.block_on(ended);
            })?;
        Ok(Self {
            runtime: handle,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Runs `f`, whose tasks and sockets belong to the thread; `f` itself runs here.
    pub fn within<T>(&self, f: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        f()
    }
}

impl Drop for DataPath {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It fails if a task of it panicked where that ends the thread: that has been said.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_spawned_there_runs_there_and_ends_with_it() {
        struct Told(Option<oneshot::Sender<()>>);
        impl Drop for Told {
            fn drop(&mut self) {
                let _ = self.0.take().map(|it| it.send(()));
            }
        }
        let (ended, end) = oneshot::channel();
        let data_path = DataPath::start().expect("a thread");
        let task =
            data_path.within(|| tokio::spawn(async { std::thread::current().name().map(str::to_owned) }));
        assert_eq!(task.await.expect("ends").as_deref(), Some("data-path"));
        let told = Told(Some(ended));
        let task = data_path.within(|| {
            tokio::spawn(async move {
                let _told = told;
                std::future::pending::<()>().await;
            })
        });
        tokio::task::spawn_blocking(move || drop(data_path))
            .await
            .expect("ends");
        assert_eq!(end.await, Ok(()), "dropped with its runtime");
        assert!(task.await.expect_err("cancelled").is_cancelled());
    }
}
