//! A clock of this thread's CPU time, which stops while another thread has the core.

use std::time::Duration;

/// The CPU time of this thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuClock(Duration);

impl CpuClock {
    pub(crate) fn now() -> Self {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call fills the structure it is given, which lives on this stack.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(failed, 0, "every thread has a CPU clock");
        let whole = u64::try_from(time.tv_sec).expect("time isn't negative");
        let part = u32::try_from(time.tv_nsec).expect("less than a second");
        Self(Duration::new(whole, part))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0 - self.0
    }
}
