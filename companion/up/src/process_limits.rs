//! What the operating system lets Envoy use here: file descriptors and memory. Envoy's own limits stay below, so that it refuses clients
//! rather than fail.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where Linux mounts control groups.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Raises the soft limit of this process's open files to the hard one, as Envoy does. Containers often have a soft one of 1,024.
///
/// # Errors
/// The system refuses, and the limit stays.
pub fn raise_open_files() -> io::Result<()> {
    let mut limit = open_files_limit()?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the call reads the one struct that it is given.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The files that a child may have open: the hard limit, to which [`penstock_envoy::child`] raises the soft one.
pub(crate) fn open_files() -> io::Result<u64> {
    open_files_limit().map(|limit| limit.rlim_max)
}

fn open_files_limit() -> io::Result<libc::rlimit> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the call writes the one struct that it is given, and only if it succeeds is the struct read.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, limit.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(limit.assume_init())
    }
}

/// The memory, in bytes, that this process and its children may use; `None`: no control group limits it.
pub(crate) fn memory() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    memory_of(&groups, Path::new(CONTROL_GROUPS))
}

/// The smallest limit of the process's group and those above it. `groups`: the content of `/proc/self/cgroup`.
fn memory_of(groups: &str, root: &Path) -> Option<u64> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut folder: PathBuf = root.join(group);
    let mut least = None;
    while folder.starts_with(root) {
        let limit = fs::read_to_string(folder.join("memory.max")).ok();
        // A group without a limit has `max`.
        let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
        least = [least, limit].into_iter().flatten().min();
        if !folder.pop() {
            break;
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_raise_its_soft_limit_to_the_hard_one() {
        let hard = open_files().expect("the system has a limit");
        assert!(hard > 0);
        raise_open_files().expect("raised");
        let limit = open_files_limit().expect("the system has a limit");
        assert_eq!((limit.rlim_cur, limit.rlim_max), (hard, hard));
    }

    #[test]
    fn the_least_memory_of_all_groups_above_is_the_limit() {
        let root = tempfile::tempdir().expect("a folder");
        let group = root.path().join("pod/gateway");
        fs::create_dir_all(&group).expect("created");
        fs::write(group.join("memory.max"), "max\n").expect("written");
        assert_eq!(memory_of("0::/pod/gateway\n", root.path()), None);
        fs::write(root.path().join("pod/memory.max"), "1073741824\n").expect("written");
        assert_eq!(memory_of("0::/pod/gateway\n", root.path()), Some(1 << 30));
        fs::write(group.join("memory.max"), "4294967296\n").expect("written");
        assert_eq!(memory_of("0::/pod/gateway\n", root.path()), Some(1 << 30));
        assert_eq!(memory_of("1:memory:/pod\n", root.path()), None, "the older form");
    }
}
