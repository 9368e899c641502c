//! The resources of `penstock gateway-resources`, and the endpoint picker, in a real Envoy Gateway, which runs without Kubernetes and reads them from a folder.
//!
//! `ENVOY_GATEWAY` names its binary. It listens on fixed ports, so one test runs at a time.

mod picker;

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use penstock_tests::gateway::{pool, slots};
use penstock_tests::h2c::H2c;
use penstock_tests::pages::Pages;
use penstock_tests::ports::free_address;
use penstock_tests::process::Process;
use penstock_tests::raw::Raw;
use penstock_tests::wait::soon;
use penstock_tests::{Answer, ClientRequest, Upstream, binary, run, until};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::JoinHandle;

/// A chat request for the model `m`.
const GZIPPED: &str = "H4sIAAAAAAACA6tWys1PSc1RslLKVdJRyk0tLk5MTy1WsoquVirKz0kFipcWpxYBpZLz80pS80qAAhmpOTn5CkikUm1sLQDt3taVSAAAAA==";

/// A companion on TCP, Envoy Gateway and its Envoy.
struct Gateway {
    companion: Option<Process>,
    gateway: Process,
    pages: Pages,
    client: reqwest::Client,
    address: SocketAddr,
    folder: TempDir,
}

fn envoy_gateway() -> PathBuf {
    std::env::var_os("ENVOY_GATEWAY").expect("ENVOY_GATEWAY is the path of envoy-gateway").into()
}

async fn output(mut command: Command) -> String {
    let output = soon("a command", command.output()).await.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).expect("text")
}

/// The configuration of Envoy Gateway.
fn control_plane(folder: &Path) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    format!(
        "apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {{controllerName: gateway.envoyproxy.io/gatewayclass-controller}}
provider:
  type: Custom
  custom:
    resource: {{type: File, file: {{paths: [{}]}}}}
    infrastructure:
      type: Host
      host: {{configHome: {}, dataHome: {}, stateHome: {}, runtimeDir: {}}}
logging: {{level: {{default: info}}}}
extensionApis: {{enableBackend: true, enableEnvoyPatchPolicy: true}}
",
        path("resources"),
        path("config"),
        path("data"),
        path("state"),
        path("run"),
    )
}

/// The Gateway and its class. `proxy`: the lines of the printed `EnvoyProxy`'s spec.
fn gateway(port: u16, proxy: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: eg}}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef: {{group: gateway.envoyproxy.io, kind: EnvoyProxy, name: proxy, namespace: default}}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {{name: proxy, namespace: default}}
spec:
  concurrency: 1
  provider: {{type: Host, host: {{envoyVersion: 1.40.0}}}}
{proxy}---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: eg, namespace: default}}
spec:
  gatewayClassName: eg
  listeners: [{{name: http, protocol: HTTP, port: {port}}}]
"
    )
}

/// The folder and the addresses of a gateway that isn't started yet.
struct Plan {
    folder: TempDir,
    address: SocketAddr,
    http: SocketAddr,
}

impl Plan {
    /// A gateway whose companion has these pools, and further top-level keys.
    fn new(pools: &[String], head: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [address, grpc, http] = [free_address(), free_address(), free_address()];
        let config = format!(
            "listen: {{gateway: '127.0.0.1:0', envoy_admin: '127.0.0.1:0', grpc: '{grpc}', http: '{http}'}}\n{head}pools:\n{}",
            pools.concat()
        );
        std::fs::write(folder.path().join("penstock.yaml"), config).expect("written");
        Self { folder, address, http }
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("penstock.yaml")
    }

    /// Starts Envoy Gateway with these resources, and a companion. `proxy`: lines of the EnvoyProxy's spec.
    async fn start(self, proxy: &str, resources: &str) -> Gateway {
        let Self { folder, address, http } = self;
        let base = gateway(address.port(), proxy);
        let sub = |name: &str| folder.path().join(name);
        for name in ["config", "state", "run", "resources", "data/envoy-versions/1.40.0/bin"] {
            std::fs::create_dir_all(sub(name)).expect("a folder");
        }
        let envoy = tokio::task::spawn_blocking(|| penstock_envoy::find::Search::here().find());
        let envoy = envoy.await.expect("no panic").expect("an Envoy").path;
        symlink(envoy, sub("data/envoy-versions/1.40.0/bin/envoy")).expect("a link");
        std::fs::write(sub("resources/base.yaml"), base).expect("written");
        std::fs::write(sub("resources/penstock.yaml"), resources).expect("written");
        std::fs::write(sub("gateway.yaml"), control_plane(folder.path())).expect("written");
        let mut certificates = Command::new(envoy_gateway());
        certificates.args(["certgen", "--local", "--config-home"]).arg(sub("config"));
        output(certificates).await;
        let mut command = Command::new(envoy_gateway());
        command.args(["server", "--config-path"]).arg(sub("gateway.yaml"));
        let mut gateway = Gateway {
            companion: None,
            gateway: Process::start("envoy-gateway", command).await,
            pages: Pages::at(format!("http://{http}")),
            client: reqwest::Client::builder().no_proxy().build().expect("a client"),
            address,
            folder,
        };
        // Envoy fetches the module from a companion that starts after it.
        gateway.start_companion().await;
        gateway
    }
}

impl Gateway {
    /// Starts a gateway with these pools and the resources that load the filter. `edit` changes the resources.
    async fn start(pools: &[String], flags: &[&str], edit: impl FnOnce(String) -> String) -> Self {
        let plan = Plan::new(pools, "");
        let mut print = Command::new(binary::penstock());
        print.arg("gateway-resources").arg("--config").arg(plan.config());
        print.args(["--gateway", "default/eg"]).args(flags);
        if !flags.contains(&"native") {
            print.args(["--listener", &format!("http:{}", plan.address.port())]);
        }
        let resources = output(print).await;
        // Of the EnvoyProxy, which is the last resource.
        let (_, proxy) = resources.split_once("kind: EnvoyProxy\n").unwrap_or_default();
        let (_, proxy) = proxy.split_once("spec:\n").unwrap_or_default();
        let proxy = proxy.to_owned();
        plan.start(&proxy, &edit(resources)).await
    }

    async fn start_companion(&mut self) {
        let mut command = Command::new(binary::penstock());
        command.arg("serve").arg("--config").arg(self.folder.path().join("penstock.yaml"));
        self.companion = Some(Process::start("companion", command).await);
    }

    async fn kill_companion(&mut self) {
        let mut companion = self.companion.take().expect("it runs");
        companion.signal(libc::SIGKILL);
        companion.exit().await;
    }

    /// Waits until the listener is open.
    async fn listens(&self) {
        until("the gateway listens", || async {
            let connected = tokio::net::TcpStream::connect(self.address).await;
            connected.map(drop).map_err(|error| format!("{error}\n{}", self.gateway.tail()))
        })
        .await;
    }

    /// Waits until the filter has its sessions: of the one worker, and as WebAssembly of the main thread.
    async fn sessions(&self, count: usize) {
        self.listens().await;
        self.pages.sessions("default/eg", count).await;
    }

    async fn send(&self, ask: ClientRequest) -> Answer {
        self.spawn(ask).await.unwrap_or_else(|e| panic!("{e:?}\n{}", self.gateway.tail()))
    }

    fn spawn(&self, ask: ClientRequest) -> JoinHandle<Answer> {
        let url = format!("http://{}{}", self.address, ask.path());
        let request = self.client.post(url).json(&ask.body());
        tokio::spawn(async move {
            let response = request.send().await.expect("an answer comes");
            Answer::read(response).await.expect("the answer is whole")
        })
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Envoy is a child of Envoy Gateway, and not in its group.
        for (pid, _) in self.gateway.children() {
            penstock_tests::process::send(pid, libc::SIGKILL);
        }
    }
}

/// A server of the pool `chat` runs one request at a time.
fn chat(servers: &[&Upstream]) -> Vec<String> {
    vec![pool("chat", "m", servers, &format!("  health: {{path: null}}\n{}", slots(1)))]
}

async fn requests_pass(flags: &[&str]) {
    let servers = Upstream::several(2, Duration::from_millis(50), 0).await;
    let [one, two] = servers.try_into().unwrap_or_else(|_| panic!("two servers"));
    let scripted = Upstream::scripted().await;
    let mut pools = chat(&[&one, &two]);
    let one_at_a_time = format!("  health: {{path: null}}\n{}", slots(1));
    pools.push(pool("script", "s", &[&scripted], &one_at_a_time));
    let mut gateway = Gateway::start(&pools, flags, |resources| resources).await;
    let is_native = flags.contains(&"native");
    gateway.sessions(if is_native { 1 } else { 2 * (1 + usize::from(flags.contains(&"--requeue"))) }).await;

    let answer = gateway.send(ClientRequest::chat("m", "plain")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // The first request may come before the policy.
    assert!(["bypassed", "leased", "dispatched"].contains(&answer.outcome()), "{}", answer.outcome());
    let served = answer.header("x-gateway-destination-endpoint-served").to_owned();
    assert!([&one, &two].iter().any(|server| server.address().to_string() == served), "{served}");
    assert!(!answer.header("x-request-id").is_empty());

    let streamed = gateway.spawn(ClientRequest::chat("s", "streamed").streamed());
    let events = scripted.next().await.stream();
    events.text("one");
    events.text("two");
    events.finish(1, 2);
    let answer = streamed.await.expect("no panic").text();
    assert!(answer.contains("one") && answer.contains("two"), "{answer}");

    let answers = (0..12).map(|number| gateway.send(ClientRequest::chat("m", &format!("{number}"))));
    for answer in futures_util::future::join_all(answers).await {
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!((one.peak(), two.peak()), (1, 1), "no bound is exceeded");

    let large = || ClientRequest::chat("m", &"x".repeat(20 << 20));
    let answer = gateway.send(large()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut client = H2c::connect(gateway.address).await;
    let asked = client.ask(&large()).await;
    let answer = H2c::answer(asked).await.expect("an answer over HTTP/2");
    assert_eq!(answer.status, 200, "{}", answer.text());

    let body = BASE64_STANDARD.decode(GZIPPED).expect("base64");
    let url = format!("http://{}/v1/chat/completions", gateway.address);
    let asked = gateway
        .client
        .post(url)
        .header("content-type", "application/json")
        .header("content-encoding", "gzip");
    let answer = Answer::read(asked.body(body).send().await.expect("an answer")).await.expect("whole");
    // Envoy Gateway's own resources have no filter that decodes a request's body.
    let expected = if is_native { 400 } else { 200 };
    assert_eq!(answer.status, expected, "{}", answer.text());
    let mut client = Raw::connect(gateway.address).await;
    let body = r#"{"model":"m","messages":[]}"#;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.0\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.send(head).await;
    assert_eq!(client.answer().await.status, 200);

    // Dropped, a server refuses connections.
    drop(two);
    for number in 0..8 {
        let answer = gateway.send(ClientRequest::chat("m", &format!("alive {number}"))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    // One request runs and one waits; both outlive the companion.
    let running = gateway.spawn(ClientRequest::chat("s", "running"));
    let call = scripted.next().await;
    let waiting = gateway.spawn(ClientRequest::chat("s", "waiting"));
    gateway.pages.waiting("script", 1).await;
    gateway.kill_companion().await;
    gateway.start_companion().await;
    gateway.pages.waiting("script", 1).await;
    call.answer();
    scripted.next().await.answer();
    for request in [running, waiting] {
        let answer = request.await.expect("no panic");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[test]
fn requests_pass_through_the_resources() {
    run(requests_pass(&[]));
}

#[test]
fn requests_pass_through_the_native_filter() {
    run(requests_pass(&["--filter", "native"]));
}

#[test]
fn requests_pass_with_requeue() {
    run(requests_pass(&["--requeue"]));
}

/// Asserts that a gateway with edited resources answers 503 with this code, and that no request reaches a server.
async fn refused(flags: &[&str], edit: impl FnOnce(String) -> String, code: &str) {
    let server = Upstream::scripted().await;
    let gateway = Gateway::start(&chat(&[&server]), flags, edit).await;
    gateway.listens().await;
    let answer = gateway.send(ClientRequest::chat("m", "refused")).await;
    assert_eq!((answer.status, answer.code().as_str()), (503, code), "{}", answer.text());
    assert_eq!(server.total(), 0, "no request reaches a server");
}

#[test]
fn without_the_filter_no_request_passes() {
    let without = |kind: &'static str| {
        move |resources: String| {
            let documents = resources.split("---\n").filter(|document| !document.contains(kind));
            documents.collect::<Vec<_>>().join("---\n")
        }
    };
    run(async {
        refused(&[], without("kind: EnvoyPatchPolicy"), "gateway_unavailable").await;
        let native = ["--filter", "native"];
        refused(&native, without("kind: EnvoyExtensionPolicy"), "gateway_unavailable").await;
    });
}

#[test]
fn with_another_name_of_the_listener_no_request_passes() {
    let edit = |resources: String| {
        resources
            .replace("name: default/eg/http", "name: default/eg/other")
            .replace("name: tcp-", "name: other-")
    };
    run(refused(&[], edit, "gateway_unavailable"));
}

#[test]
fn without_the_flag_a_request_is_refused() {
    let flag = "allow_on_headers_stop_iteration";
    let edit = |resources: String| resources.replace(&format!("{flag}: true"), &format!("{flag}: false"));
    run(refused(&[], edit, "filter_misconfigured"));
}
