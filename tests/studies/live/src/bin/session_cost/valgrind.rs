//! A companion under valgrind, and its count.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};

use penstock_tests::ports::free_address;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{Budgets, ENDPOINT, Load, POOL, filter};

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Tool {
    /// Instructions in user space.
    Instructions,
    /// Calls of the allocator that return new memory.
    Allocations,
}

impl Tool {
    fn command(self, folder: &Path) -> Command {
        let mut command = Command::new("valgrind");
        match self {
            Self::Instructions => {
                let out = folder.join("callgrind.out");
                command.arg("--tool=callgrind");
                command.arg(format!("--callgrind-out-file={}", out.display()));
            }
            Self::Allocations => {
                command.arg("--tool=dhat").arg("--dhat-out-file=/dev/null");
            }
        }
        command
    }

    /// The count in valgrind's report.
    fn read(self, report: &str) -> Option<u64> {
        let (line, place) = match self {
            Self::Instructions => ("Collected :", 0),
            // Total: 1,234 bytes in 56 blocks
            Self::Allocations => ("Total:", 3),
        };
        let (_, rest) = report.lines().find_map(|text| text.split_once(line))?;
        let number = rest.split_whitespace().nth(place)?;
        number.replace(',', "").parse().ok()
    }
}

/// The companion's count for this load and number of requests.
///
/// # Panics
/// With the companion's log, if it fails.
pub(crate) async fn count(tool: Tool, load: Load, requests: u64) -> u64 {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let address = free_address();
    let config = config(&folder, address, load);
    let mut command = tool.command(folder.path());
    command
        .arg(std::env::current_exe().expect("a process knows its executable"))
        .args(["serve".as_ref(), config.as_path()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut companion = command.spawn().expect("valgrind is installed");
    let stdin = companion.stdin.take();
    let script = async {
        filter::run(address, load, requests).await;
        drop(stdin);
        std::future::pending::<()>().await
    };
    let ended: std::io::Result<Output> = tokio::select! {
        ended = companion.wait_with_output() => ended,
        () = script => unreachable!("the script never returns"),
    };
    let report = ended.expect("the companion runs").stderr;
    let report = String::from_utf8_lossy(&report);
    match tool.read(&report) {
        Some(count) => count,
        None => panic!("valgrind printed no count:\n{report}"),
    }
}

/// The lines of a pool's configuration for its budgets.
fn budgets(budgets: Budgets) -> String {
    let windows = "windows: [{tokens: 1000000000, per: 1h}, {tokens: 10000000000, per: day}], over: refuse";
    let entry = |glob: String| format!("      - {{match: '{glob}', {windows}}}\n");
    let entries: String = match budgets {
        Budgets::None => return String::new(),
        Budgets::OfOthers(count) => (0..count).map(|number| entry(format!("other-{number}-*"))).collect(),
        Budgets::OfAll => entry("tenant-*".to_owned()),
    };
    format!("  arbitration:\n    flows:\n      budgets:\n{entries}")
}

fn config(folder: &TempDir, address: SocketAddr, load: Load) -> std::path::PathBuf {
    let http = folder.path().join("http");
    let places = load.places;
    let text = format!(
        "listen: {{gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', grpc: '{address}', http: 'unix:{}'}}\n\
         pools:\n\
         - name: {POOL}\n  \
           models: [m]\n  \
           endpoints: {{static: ['{ENDPOINT}']}}\n  \
           health: {{path: null}}\n  \
           scrape: {{path: null}}\n  \
           stock: {{lower_bound_per_backend: {places}, upper_bound_per_backend: {places}, watermark_per_backend: {places}}}\n{}",
        http.display(),
        budgets(load.budgets)
    );
    let path = folder.path().join("penstock.yaml");
    std::fs::write(&path, text).expect("write a file");
    path
}
