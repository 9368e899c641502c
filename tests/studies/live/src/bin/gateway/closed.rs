//! The closed loop: wrk, with one thread; each connection sends its next request when the previous one is answered.

use std::process::Stdio;

use serde_json::Value;
use tokio::process::Command;

use crate::body;
use crate::cores::REST;

/// The result of one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) requests: f64,
    pub(crate) seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Load {
    pub(crate) fn rate(&self) -> f64 {
        self.requests / self.seconds
    }
}

/// Checks that wrk is installed.
pub(crate) fn installed() -> Result<(), String> {
    let how = "`apt-get install wrk`, `brew install wrk`, or https://github.com/wg/wrk";
    body::installed("wrk", "closed loop", how)
}

/// Loads `url` with bodies of `bytes` bytes over `connections` connections for `time`.
///
/// # Panics
/// If wrk fails or an answer is an error, because errors would falsify the figure.
pub(crate) async fn run(url: &str, bytes: usize, connections: u32, seconds: u32) -> Load {
    let script = format!(
        "wrk.method = 'POST'\nwrk.body = [==[{}]==]\nwrk.headers['content-type'] = 'application/json'\n\
         done = function(s, l)\n\
         \x20 io.write(string.format('RESULT {{\"requests\":%d,\"us\":%d,\"p50\":%d,\"p99\":%d,\"errors\":%d}}\\n', s.requests,\n\
         \x20   s.duration, l:percentile(50), l:percentile(99),\n\
         \x20   s.errors.connect + s.errors.read + s.errors.write + s.errors.status + s.errors.timeout))\n\
         end\n",
        body::chat(bytes)
    );
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("chat.lua");
    std::fs::write(&file, script).expect("write the script");
    let mut wrk = Command::new("wrk");
    wrk.args(["--threads", "1", "--timeout", "10s"]);
    wrk.args(["--connections", &connections.to_string()]);
    wrk.args(["--duration", &format!("{seconds}s")]);
    wrk.arg("--script").arg(&file).arg(url);
    wrk.stdin(Stdio::null()).kill_on_drop(true);
    REST.hold(&mut wrk);
    let output = wrk.output().await.expect("wrk runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.lines().find_map(|l| l.strip_prefix("RESULT ")).unwrap_or_else(|| {
        panic!("wrk says nothing: {text}{}", String::from_utf8_lossy(&output.stderr));
    });
    let result: Value = serde_json::from_str(result).expect("the script prints JSON");
    let number = |key: &str| result[key].as_f64().expect("a number");
    assert!(number("errors") == 0.0 && number("requests") > 0.0, "{url}: {text}");
    Load {
        requests: number("requests"),
        seconds: number("us") / 1e6,
        p50_us: number("p50"),
        p99_us: number("p99"),
    }
}
