//! The decision thread: the driver and the gRPC streams run on a single-threaded runtime of their own.
//!
//! Between an incoming frame and its answer, four tasks run. On one thread, control passes between them like a function
//! call. On several threads, each hand-over wakes a thread, which costs more than the decision itself. Metrics, HTTP,
//! discovery and health checks run on another runtime, so that they never delay a waiting request.

use std::io;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime. Dropping it ends the thread and everything that was spawned on it.
#[derive(Debug)]
pub(crate) struct DecisionRuntime {
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DecisionRuntime {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the operating system gives no thread or no event queue for sockets.
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("data-path".into()).spawn(move || {
            // An error means that the sender was dropped, which ends the thread as well.
            let _ = runtime.block_on(ended);
        })?;
        Ok(Self { runtime: handle, end: Some(end), thread: Some(thread) })
    }

    /// Runs `create` on the calling thread. Tasks and sockets that it creates belong to the decision thread.
    pub(crate) fn enter<T>(&self, create: impl FnOnce() -> T) -> T {
        let _entered = self.runtime.enter();
        create()
    }
}

impl Drop for DecisionRuntime {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // Joining fails after a panic on the thread, which the panic hook has logged.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_run_on_the_thread_and_end_with_it() {
        struct SendOnDrop(Option<oneshot::Sender<()>>);
        impl Drop for SendOnDrop {
            fn drop(&mut self) {
                let _ = self.0.take().map(|sender| sender.send(()));
            }
        }
        let (dropped, drop_seen) = oneshot::channel();
        let decisions = DecisionRuntime::start().expect("a thread");
        let task =
            decisions.enter(|| tokio::spawn(async { std::thread::current().name().map(str::to_owned) }));
        assert_eq!(task.await.expect("ends").as_deref(), Some("data-path"));
        let send_on_drop = SendOnDrop(Some(dropped));
        let task = decisions.enter(|| {
            tokio::spawn(async move {
                let _send_on_drop = send_on_drop;
                std::future::pending::<()>().await;
            })
        });
        tokio::task::spawn_blocking(move || drop(decisions)).await.expect("ends");
        assert_eq!(drop_seen.await, Ok(()), "dropped with its runtime");
        assert!(task.await.expect_err("cancelled").is_cancelled());
    }
}
