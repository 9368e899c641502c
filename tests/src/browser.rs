//! A real Chromium without a window, driven by its DevTools protocol over a pipe: `CHROMIUM`, or `chromium` on the PATH.
//!
//! The messages are JSON, each ended by a zero byte, on the file descriptors 3 (commands) and 4 (answers and events). A pipe needs
//! no port, and the browser ends when the pipe does.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex as AsyncMutex, oneshot};

use crate::wait::{on_runtime_thread, soon, until};

const FLAGS: [&str; 14] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--metrics-recording-only",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
];

/// The messages of the browser.
#[derive(Default)]
struct Received {
    /// Callers that wait for the answer to a command, by its number.
    waiting: HashMap<u64, oneshot::Sender<Value>>,
    events: Vec<Value>,
}

/// A browser with one page.
pub struct Browser {
    _process: Child,
    commands: AsyncMutex<ChildStdin>,
    received: Arc<Mutex<Received>>,
    last: AtomicU64,
    /// Of the page; empty before there is one.
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser with an empty page of this width and height.
    ///
    /// # Panics
    /// If it can't start.
    pub async fn start(width: u32, height: u32) -> Self {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let chromium = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
        let mut command = Command::new("sh");
        // The pipes of standard input and output become the descriptors that the browser uses.
        command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#, &chromium]);
        command.args(FLAGS);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.arg("about:blank");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.kill_on_drop(true);
        let spawned = on_runtime_thread(async move { command.spawn() }).await;
        let mut process = spawned.unwrap_or_else(|why| panic!("{chromium} can't be started: {why}"));
        let commands = process.stdin.take().expect("a pipe");
        let answers = process.stdout.take().expect("a pipe");
        let received = Arc::<Mutex<Received>>::default();
        on_runtime_thread({
            let received = received.clone();
            async move { drop(tokio::spawn(receive(answers, received))) }
        })
        .await;
        let mut browser = Self {
            _process: process,
            commands: AsyncMutex::new(commands),
            received,
            last: AtomicU64::new(0),
            session: String::new(),
            _profile: profile,
        };
        let created = browser.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attach = json!({"targetId": created["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach).await;
        attached["sessionId"].as_str().unwrap_or_default().clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        browser.resize(width, height).await;
        browser
    }

    /// Sends a command and returns its result.
    ///
    /// # Panics
    /// If the browser rejects it, or doesn't answer.
    pub async fn call(&self, method: &str, parameters: Value) -> Value {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        let (sender, answer) = oneshot::channel();
        self.locked(|received| received.waiting.insert(id, sender));
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        let written = self.commands.lock().await.write_all(&bytes).await;
        written.unwrap_or_else(|why| panic!("{method}: the browser has ended: {why}"));
        let answer = soon(method, answer).await;
        let mut answer = answer.unwrap_or_else(|_| panic!("{method}: the browser has ended"));
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].take()
    }

    /// Opens an address and waits until the page has loaded.
    ///
    /// # Panics
    /// If it can't be opened.
    pub async fn open(&self, url: &str) {
        let opened = self.call("Page.navigate", json!({"url": url})).await;
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
        until("the page has loaded", || async {
            match self.evaluate("document.readyState").await {
                Value::String(state) if state == "complete" => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
    }

    /// The value of an expression in the page; a promise is awaited.
    ///
    /// # Panics
    /// If it throws.
    pub async fn evaluate(&self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", parameters).await;
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Presses and releases a key, named as in `KeyboardEvent.key`, with the modifiers of the protocol (8: shift).
    pub async fn press(&self, key: &str, modifiers: u32) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "End" => 35,
            "Home" => 36,
            "ArrowLeft" => 37,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        for kind in ["rawKeyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers});
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Types a text where the focus is.
    pub async fn write(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Gives the page another size.
    pub async fn resize(&self, width: u32, height: u32) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Sets whether the user prefers a dark page.
    pub async fn prefer_dark(&self, is_dark: bool) {
        let value = if is_dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": value}]});
        self.call("Emulation.setEmulatedMedia", features).await;
    }

    /// The addresses of all requests of the page.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let is_request = |event: &&Value| event["method"] == "Network.requestWillBeSent";
        self.locked(|received| {
            let requests = received.events.iter().filter(is_request);
            let urls = requests.filter_map(|event| event["params"]["request"]["url"].as_str());
            urls.map(str::to_owned).collect()
        })
    }

    /// Exceptions of the page's scripts, and the browser's errors about the page, such as violations of its content policy. Failed
    /// requests aren't among them.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let is_problem = |event: &&Value| {
            let entry = &event["params"]["entry"];
            event["method"] == "Runtime.exceptionThrown"
                || (event["method"] == "Log.entryAdded"
                    && entry["level"] == "error"
                    && entry["source"] != "network")
        };
        self.locked(|received| {
            let problems = received.events.iter().filter(is_problem);
            problems.map(Value::to_string).collect()
        })
    }

    /// The page as PNG, encoded in base64; `height`: only so much of it, from its top.
    pub async fn screenshot(&self, width: u32, height: u32) -> String {
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let parameters = json!({"format": "png", "clip": clip, "captureBeyondViewport": true});
        let shot = self.call("Page.captureScreenshot", parameters).await;
        shot["data"].as_str().unwrap_or_default().to_owned()
    }

    fn locked<T>(&self, action: impl FnOnce(&mut Received) -> T) -> T {
        action(&mut self.received.lock().expect("no holder of the lock panics"))
    }
}

async fn receive(answers: impl AsyncRead + Unpin, received: Arc<Mutex<Received>>) {
    let mut answers = BufReader::new(answers);
    loop {
        let mut bytes = Vec::new();
        match answers.read_until(0, &mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let Ok(message) = serde_json::from_slice::<Value>(bytes.strip_suffix(&[0]).unwrap_or(&bytes)) else {
            continue;
        };
        let mut received = received.lock().expect("no holder of the lock panics");
        match message["id"].as_u64().and_then(|id| received.waiting.remove(&id)) {
            // Fails when the caller no longer waits.
            Some(caller) => drop(caller.send(message)),
            None => received.events.push(message),
        }
    }
    // Their callers fail.
    received.lock().expect("no holder of the lock panics").waiting.clear();
}
