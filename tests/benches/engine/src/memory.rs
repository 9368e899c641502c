//! How many bytes are allocated: counted beside the system's allocator, as asked for, its own overhead not.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything to the system's allocator as it came, and counts beside it.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Bytes that are allocated now.
pub(crate) fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}
