//! A child process of a test: its output is collected, and it ends when it is dropped or when the test process ends.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::wait::{on_runtime_thread, soon, until};

/// The last lines of output that are kept.
const LOG_LINES_MAX: usize = 20_000;
/// Lines that a failure's message shows.
const LOG_LINES_SHOWN: usize = 120;

/// The output of a process, stdout and stderr in the order of arrival.
#[derive(Default)]
struct Log {
    lines: Mutex<VecDeque<String>>,
    changed: Notify,
}

impl Log {
    fn push(&self, line: String) {
        let mut lines = self.lines.lock().expect("no one panics with the log");
        if lines.len() == LOG_LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
        drop(lines);
        self.changed.notify_waiters();
    }

    fn find(&self, prefix: &str) -> Option<String> {
        let lines = self.lines.lock().expect("no one panics with the log");
        lines.iter().find_map(|l| l.strip_prefix(prefix).map(str::to_owned))
    }
}

/// A running process, in a group of its own.
pub struct Process {
    name: String,
    child: Child,
    pid: i32,
    log: Arc<Log>,
    readers: JoinSet<()>,
    /// What the process writes into the folder for temporary files; a process that is killed doesn't remove it.
    _temporary: TempDir,
}

impl Process {
    /// Starts `command` without input; its outputs go to the log.
    ///
    /// # Panics
    /// If it cannot start.
    pub async fn start(name: &str, mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true).process_group(0);
        let temporary = tempfile::tempdir().expect("a temporary folder");
        command.env("TMPDIR", temporary.path());
        // SAFETY: prctl with these arguments only sets a flag of the new process and is async-signal-safe.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        // The kernel sends the parent-death signal when the starting *thread* ends, so a lasting thread starts the process.
        let mut child = on_runtime_thread(async move { command.spawn() })
            .await
            .unwrap_or_else(|e| panic!("{name} can't be started: {e}"));
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).expect("a started process has an id");
        let log = Arc::new(Log::default());
        let mut readers = JoinSet::new();
        if let Some(out) = child.stdout.take() {
            readers.spawn(collect(out, log.clone()));
        }
        if let Some(err) = child.stderr.take() {
            readers.spawn(collect(err, log.clone()));
        }
        Self { name: name.to_owned(), child, pid, log, readers, _temporary: temporary }
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The rest of the first line that starts with `prefix`; waits for it.
    ///
    /// # Panics
    /// With the log, if the process ends or the line does not appear in time.
    pub async fn line(&mut self, prefix: &str) -> String {
        let log = self.log.clone();
        let found = async {
            loop {
                let changed = log.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if let Some(rest) = log.find(prefix) {
                    return rest;
                }
                changed.await;
            }
        };
        let result = tokio::select! {
            line = soon("a line", found) => Ok(line),
            status = self.child.wait() => Err(status),
        };
        match result {
            Ok(line) => line,
            Err(status) => match self.log.find(prefix) {
                Some(line) => line,
                None => panic!("{} ended with {status:?} before `{prefix}`:\n{}", self.name, self.tail()),
            },
        }
    }

    /// Waits until the process has ended and the log holds the whole output of it and its children.
    ///
    /// # Panics
    /// With the log, if it does not end in time.
    pub async fn exit(&mut self) -> ExitStatus {
        self.exit_within(crate::wait::WAIT_MAX).await
    }

    /// [`Self::exit`] for a process that takes longer.
    ///
    /// # Panics
    /// With the log, if it does not end within `limit`.
    pub async fn exit_within(&mut self, limit: Duration) -> ExitStatus {
        let end = async {
            let status = self.child.wait().await;
            while self.readers.join_next().await.is_some() {}
            status
        };
        match tokio::time::timeout(limit, end).await {
            Ok(status) => status.expect("a child can be waited for"),
            Err(_) => panic!("{} doesn't end:\n{}", self.name, self.tail()),
        }
    }

    /// Sends a signal to the process alone.
    pub fn signal(&self, signal: i32) {
        send(self.pid, signal);
    }

    /// The process's children: process id and command line.
    #[must_use]
    pub fn children(&self) -> Vec<(i32, String)> {
        children(self.pid)
    }

    /// The kept output.
    #[must_use]
    pub fn log(&self) -> String {
        let lines = self.log.lines.lock().expect("no one panics with the log");
        lines.iter().map(|l| format!("{l}\n")).collect()
    }

    /// The end of its log, for messages.
    #[must_use]
    pub fn tail(&self) -> String {
        let lines = self.log.lines.lock().expect("no one panics with the log");
        let skip = lines.len().saturating_sub(LOG_LINES_SHOWN);
        lines.iter().skip(skip).map(|l| format!("  {}| {l}\n", self.name)).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.tail());
        }
        if self.child.id().is_some() {
            send(-self.pid, libc::SIGKILL);
        }
    }
}

async fn collect(output: impl AsyncRead + Unpin, log: Arc<Log>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        log.push(line);
    }
}

/// Sends a signal to a process that a test has started, or to its group if `pid` is negative.
pub fn send(pid: i32, signal: i32) {
    // SAFETY: kill takes two integers; the process is this test's own and hasn't been waited for.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Stops a process and waits until each of its threads has stopped: a running thread could still answer.
pub async fn freeze(pid: i32) {
    send(pid, libc::SIGSTOP);
    until("every thread is stopped", || async {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| e.to_string())?;
        let states =
            tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        let states: Vec<_> = states
            .filter_map(|stat| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()))
            .collect();
        if states.iter().all(|state| *state == 'T') { Ok(()) } else { Err(format!("{states:?}")) }
    })
    .await;
}

/// Lets a process open files up to this descriptor, if that is below the present limit. Returns the limit before. Files that are open stay
/// open.
///
/// # Panics
/// If the process is gone.
pub fn limit_open_files(pid: i32, most: u64) -> u64 {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the calls read or write the structs that they are given.
    unsafe {
        let got = libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut before);
        assert_eq!(got, 0, "{}", std::io::Error::last_os_error());
        let limit = libc::rlimit { rlim_cur: most.min(before.rlim_max), rlim_max: before.rlim_max };
        let set = libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut());
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
    before.rlim_cur
}

/// Raises this process's limit of open files to the system's maximum; child processes inherit it.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the one struct that they are given.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// The children of a process, from /proc: process id and command line.
#[must_use]
pub fn children(parent: i32) -> Vec<(i32, String)> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let mut found: Vec<_> =
        pids.filter(|pid| parent_of(*pid) == Some(parent)).map(|p| (p, command_line(p))).collect();
    found.sort();
    found
}

fn parent_of(pid: i32) -> Option<i32> {
    // pid (comm) state ppid ...; comm may hold any character, including a parenthesis.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn command_line(pid: i32) -> String {
    let raw = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&raw).replace('\0', " ")
}

/// CPU time of a process since its start, user and system.
#[must_use]
pub fn cpu_time(pid: i32) -> Option<Duration> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: each call writes to the one place that it is given.
    let read = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0 && libc::clock_gettime(clock, &raw mut time) == 0
    };
    let whole = Duration::from_secs(time.tv_sec.try_into().ok()?);
    read.then(|| whole + Duration::from_nanos(time.tv_nsec.try_into().unwrap_or_default()))
}

/// Resident memory of a process, in bytes.
#[must_use]
pub fn resident_bytes(pid: i32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1_024)
}
