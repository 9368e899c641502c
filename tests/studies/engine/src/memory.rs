//! Counts allocated bytes in front of the system's allocator: the requested sizes, without the allocator's overhead.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Off while time is measured: a counter that all threads may share costs a tenth of a cycle.
static COUNTING: AtomicBool = AtomicBool::new(false);

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTING.load(Ordering::Relaxed) {
            BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if COUNTING.load(Ordering::Relaxed) {
            BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Bytes that `fill` leaves allocated.
pub(crate) fn growth(fill: impl FnOnce()) -> usize {
    let before = BYTES.load(Ordering::Relaxed);
    COUNTING.store(true, Ordering::Relaxed);
    fill();
    COUNTING.store(false, Ordering::Relaxed);
    // Memory from before may be freed meanwhile, so the difference may wrap.
    BYTES.load(Ordering::Relaxed).wrapping_sub(before)
}
