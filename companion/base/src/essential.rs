//! Essential tasks: without one of them the companion would go on with a part missing, such as decisions or the reload of
//! the configuration. A panic in one ends the process. Its supervisor starts another companion, to which the filters
//! announce their requests again.
//!
//! Tasks of one connection aren't essential: a panic in one ends that connection alone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The name of the first essential task that panicked. One for the process, because the panic ends the process.
static FAILED: LazyLock<watch::Sender<Option<&'static str>>> = LazyLock::new(|| watch::Sender::new(None));

/// Starts a task whose panic ends the companion. `name` completes the sentence "the task for ... failed".
///
/// # Panics
/// Outside a tokio runtime.
pub fn spawn<T: Send + 'static>(
    name: &'static str,
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(async move {
        // What the task leaves behind is dropped with it, and the process ends.
        match AssertUnwindSafe(task).catch_unwind().await {
            Ok(output) => output,
            Err(panic) => fail(name, panic),
        }
    })
}

/// Runs the work of a thread of its own. A panic in it ends the companion, as that of a task does.
pub fn guard<T>(name: &'static str, work: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(output) => output,
        Err(panic) => fail(name, panic),
    }
}

fn fail(name: &'static str, panic: Box<dyn Any + Send>) -> ! {
    tracing::error!(
        task = name,
        why = message(&*panic),
        "a defect ended an essential task, so the companion exits; its supervisor must start it again; please \
         report this with the log"
    );
    FAILED.send_replace(Some(name));
    resume_unwind(panic)
}

/// Returns the name of an essential task that panicked, as soon as there is one.
pub async fn failed() -> &'static str {
    let mut failed = FAILED.subscribe();
    loop {
        if let Some(name) = *failed.borrow_and_update() {
            return name;
        }
        if failed.changed().await.is_err() {
            // The sender is never dropped.
            std::future::pending::<()>().await;
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "panic without a message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_panic_is_a_failure() {
        assert_eq!(spawn("nothing", async { 7 }).await.expect("ends"), 7);
        let aborted = spawn("an abort", std::future::pending::<()>());
        aborted.abort();
        assert!(aborted.await.expect_err("aborted").is_cancelled());
        assert_eq!(failed().now_or_never(), None, "neither is a failure");

        let number = 3;
        let broken = spawn("the test", async move { assert_eq!(number, 4, "invariant") });
        assert!(broken.await.expect_err("it panicked").is_panic());
        assert_eq!(failed().await, "the test");
        assert_eq!(failed().await, "the test", "every caller learns of it");
    }

    #[test]
    fn the_log_has_the_panics_message() {
        let formatted: Box<dyn Any + Send> = Box::new(format!("index {}", 3));
        assert_eq!(message(&*formatted), "index 3");
        let fixed: Box<dyn Any + Send> = Box::new("invariant: it was pushed");
        assert_eq!(message(&*fixed), "invariant: it was pushed");
        let other: Box<dyn Any + Send> = Box::new(3);
        assert_eq!(message(&*other), "panic without a message");
    }
}
