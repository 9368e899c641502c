//! CPU affinity: the measured Envoy has a core of its own if the machine has more than one.

use tokio::process::Command;

/// The core of the measured Envoy.
pub(crate) const MEASURED: Cores = Cores { from: 0, to: 1 };
/// The cores of all other processes.
pub(crate) const REST: Cores = Cores { from: 1, to: 64 };

/// A range of the machine's cores.
#[derive(Clone, Copy)]
pub(crate) struct Cores {
    from: usize,
    to: usize,
}

impl Cores {
    /// Makes a command run on these cores, if the machine has them.
    pub(crate) fn hold(self, command: &mut Command) {
        // SAFETY: the closure fills a set on its own stack and makes one system call.
        unsafe {
            command.pre_exec(move || self.pin());
        }
    }

    /// Makes this thread, and every thread and process that it starts from now on, run on these cores.
    pub(crate) fn stay(self) {
        // Without permission to set the affinity, the measurement runs without it.
        let _ = self.pin();
    }

    fn pin(self) -> std::io::Result<()> {
        // SAFETY: both calls read or write a set on this stack, or a number.
        unsafe {
            let there = usize::try_from(libc::sysconf(libc::_SC_NPROCESSORS_ONLN)).unwrap_or(1);
            let cores = self.from..self.to.min(there);
            if cores.is_empty() {
                return Ok(());
            }
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for core in cores {
                libc::CPU_SET(core, &mut set);
            }
            match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        }
    }
}
