//! Waiting for conditions, and the one runtime of a test process.
//!
//! The runtime outlives every test, so that a gateway or a model server that several tests share keeps running.

use std::future::Future;
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

/// How long a condition may take on a busy machine before its test fails. Not a performance limit.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Time between two checks of a condition.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime can be built")
});

/// Held by every test that runs, exclusively by one that runs alone.
static TESTS: RwLock<()> = RwLock::new(());

/// Runs a test's future to its end on the shared runtime.
pub fn run<F: Future>(test: F) -> F::Output {
    let _together = TESTS.read().unwrap_or_else(PoisonError::into_inner);
    RUNTIME.block_on(test)
}

/// Runs a test as [`run`] does, while no other test of this program runs: it loads the machine, or a busy machine would fail it.
pub fn run_alone<F: Future>(test: F) -> F::Output {
    let _alone = TESTS.write().unwrap_or_else(PoisonError::into_inner);
    RUNTIME.block_on(test)
}

/// Runs `future` on a thread that lives as long as the process.
pub(crate) async fn on_runtime_thread<F>(future: F) -> F::Output
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    RUNTIME.spawn(future).await.expect("the task ends without a panic")
}

/// Calls `probe` until it returns a value. The failure's message contains its last error.
///
/// # Panics
/// If `probe` returns no value within [`WAIT_MAX`].
pub async fn until<T, F, Fut>(what: &str, mut probe: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, String>>,
{
    let start = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return value,
            Err(seen) => {
                assert!(start.elapsed() < WAIT_MAX, "{what}: not within {WAIT_MAX:?}; last seen: {seen}")
            }
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Awaits `future` for at most [`WAIT_MAX`].
///
/// # Panics
/// If it takes longer.
pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(WAIT_MAX, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {WAIT_MAX:?}"),
    }
}
