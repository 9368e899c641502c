//! Waiting for conditions, and the one runtime of a test process.
//!
//! The runtime outlives every test, so that what several tests share (a gateway, a model server) goes on while they
//! come and go.

use std::future::Future;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

/// How long a condition may take on a busy machine before its test fails. Never a measure of anything.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime can be built")
});

/// Runs a test's future to its end on the shared runtime.
pub fn run<F: Future>(test: F) -> F::Output {
    RUNTIME.block_on(test)
}

/// Runs `future` on a thread that lives as long as the process.
pub(crate) async fn on_lasting_thread<F>(future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    RUNTIME
        .spawn(future)
        .await
        .expect("the task ends without a panic")
}

/// Looks again and again until `probe` gives a value; what it saw last is part of the failure's message.
///
/// # Panics
/// When [`PATIENCE`] is over.
pub async fn until<T, F, Fut>(what: &str, mut probe: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(seen) => assert!(
                start.elapsed() < PATIENCE,
                "{what}: not within {PATIENCE:?}; last seen: {seen}"
            ),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Awaits `future`, for [`PATIENCE`] at most.
///
/// # Panics
/// When it takes longer.
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}
