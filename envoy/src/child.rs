//! Child processes that never outlive this process, not even after `kill -9`.
//!
//! On Linux a child asks the kernel for SIGKILL when its parent ends (`PR_SET_PDEATHSIG`). For the kernel the parent is the
//! *thread* that spawned the child, and the threads of an async runtime come and go. So one thread that lives as long as the
//! process spawns all children. Other systems have only `kill_on_drop`.

use std::sync::{OnceLock, mpsc};
use std::{io, thread};

use tokio::process::{Child, Command};

type Job = Box<dyn FnOnce() + Send>;

/// Spawns a child that dies with this process and with the returned handle. The child may open as many files as the system
/// allows, because a gateway holds two sockets for each request. It doesn't receive ^C, so that the caller decides in which
/// order the children end.
///
/// # Errors
/// The program can't be started.
///
/// # Panics
/// Outside a tokio runtime, as `tokio::process` does.
pub async fn spawn(mut command: Command) -> io::Result<Child> {
    command.kill_on_drop(true).process_group(0);
    prepare(&mut command);
    let runtime = tokio::runtime::Handle::current();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let job: Job = Box::new(move || {
        let _in_runtime = runtime.enter();
        // If the caller has gone, dropping the handle kills the child.
        drop(sender.send(command.spawn()));
    });
    spawner().send(job).map_err(|_| gone())?;
    receiver.await.map_err(|_| gone())?
}

/// Sends `signal` to the child. Does nothing if the child has ended.
pub fn signal(child: &Child, signal: i32) {
    // `id` is `None` once the child was waited for, so the number can't belong to another process.
    if let Some(pid) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // SAFETY: kill takes no pointers.
        unsafe { libc::kill(pid, signal) };
    }
}

fn spawner() -> &'static mpsc::Sender<Job> {
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        // If the thread can't be started, the receiver is dropped, and every spawn returns an error.
        drop(thread::Builder::new().name("children".into()).spawn(move || {
            for job in queue {
                job();
            }
        }));
        jobs
    })
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts processes is gone")
}

#[cfg(target_os = "linux")]
fn prepare(command: &mut Command) {
    let parent = std::process::id();
    let setup = move || {
        // SAFETY: the system calls access only their arguments, and are allowed between fork and exec.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before the call to prctl.
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            if libc::getrlimit(libc::RLIMIT_NOFILE, &mut files) == 0 {
                files.rlim_cur = files.rlim_max;
                // If the system refuses, the limit stays.
                libc::setrlimit(libc::RLIMIT_NOFILE, &files);
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes async-signal-safe calls and allocates nothing.
    unsafe { command.pre_exec(setup) };
}

#[cfg(not(target_os = "linux"))]
fn prepare(_command: &mut Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn child_survives_the_thread_that_asked_for_it() {
        let runtime = tokio::runtime::Handle::current();
        let mut child = tokio::task::spawn_blocking(move || {
            let mut command = Command::new("sh");
            command.args(["-c", "read line; exit 7"]).stdin(std::process::Stdio::piped());
            thread::spawn(move || runtime.block_on(spawn(command))).join().expect("no panic")
        })
        .await
        .expect("no panic")
        .expect("sh starts");
        drop(child.stdin.take());
        assert_eq!(child.wait().await.expect("waited").code(), Some(7));
    }

    #[tokio::test]
    async fn signal_reaches_the_child_and_is_ignored_after_its_end() {
        let mut command = Command::new("sleep");
        command.arg("1000");
        let mut child = spawn(command).await.expect("sleep starts");
        signal(&child, libc::SIGTERM);
        assert!(!child.wait().await.expect("waited").success());
        signal(&child, libc::SIGTERM);
    }
}
