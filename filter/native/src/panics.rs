//! Panics: each ends the stream whose event it met, and is counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use penstock_filter_core::local_reply::Failure;
use penstock_wire::{Api, Code};

use crate::abi::Level;
use crate::host::{self, Filter};

/// Envoy's name of the counter, below the prefix of dynamic modules.
pub(crate) const COUNTER: &str = "penstock_filter_panics";

/// Panics that no counter has yet: Envoy lets only a stream count.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);

/// Calls `f`. `None`: it has panicked.
pub(crate) fn guard<T>(f: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(f));
    if result.is_err() {
        UNCOUNTED.fetch_add(1, Relaxed);
        host::log(
            Level::Error,
            "penstock: the filter has a defect; if a stream met it, that stream ends with status 500",
        );
    }
    result.ok()
}

/// Adds the panics that no counter has yet to `counter`, by way of a living stream.
pub(crate) fn count(filter: Filter, counter: Option<usize>) {
    if UNCOUNTED.load(Relaxed) > 0
        && let Some(counter) = counter
    {
        filter.increment(counter, UNCOUNTED.swap(0, Relaxed));
    }
}

/// Ends a living stream that met a panic.
pub(crate) fn fail(filter: Filter) {
    let replied = guard(|| {
        let failure =
            Failure::new(500, Code::Internal, "The gateway's filter has a defect. Envoy's log says more.");
        filter.reply(&failure.reply(Api::Unspecified, None), &[]);
    });
    if replied.is_none() {
        filter.reset();
    }
}

/// Panics that a test asks for.
#[cfg(feature = "panics")]
pub(crate) mod asked {
    use std::cell::Cell;
    use std::sync::Mutex;

    thread_local! {
        /// The next event at a desk on this thread panics after it was handled, before its effects are sorted.
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    /// The next event of the main thread that panics.
    static MAIN: Mutex<Option<String>> = Mutex::new(None);

    /// A request asks: `before HOOK`, `inside HOOK`, `after HOOK` of its own stream, or `main EVENT`.
    pub(crate) fn note(asked: &str, hook: &str) {
        if let Some(event) = asked.strip_prefix("main ").filter(|_| hook == "request_headers") {
            *MAIN.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(event.to_owned());
        }
        INSIDE.set(asked.strip_prefix("inside ") == Some(hook));
    }

    pub(crate) fn inside() {
        if INSIDE.replace(false) {
            panic();
        }
    }

    /// An event of the main thread.
    pub(crate) fn main(event: &str) {
        let is_asked = {
            let mut asked = MAIN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            asked.take_if(|asked| asked == event).is_some()
        };
        if is_asked {
            panic();
        }
    }

    pub(crate) fn panic() {
        std::panic::resume_unwind(Box::new("a test asked for it"));
    }
}

#[cfg(not(feature = "panics"))]
pub(crate) mod asked {
    pub(crate) const fn inside() {}
    pub(crate) const fn main(_event: &str) {}
}
