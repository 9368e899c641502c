//! The binary's commands as a user runs them: their output, and their exit codes and messages on errors.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use penstock_tests::gateway::{config, pool};
use penstock_tests::{Gateway, Process, Upstream, binary, run};
use tokio::process::Command;

async fn penstock(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary::penstock());
    command.args(arguments).current_dir(binary::workspace()).kill_on_drop(true);
    penstock_tests::wait::soon("penstock ends", command.output()).await.expect("penstock starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn file(folder: &Path, content: &str) -> String {
    let path = folder.join("penstock.yaml");
    std::fs::write(&path, content).expect("write a file");
    path.to_str().expect("a plain path").to_owned()
}

#[test]
fn envoy_accepts_the_printed_bootstrap() {
    run(async {
        let server = Upstream::serving(Duration::ZERO).await;
        let folder = tempfile::tempdir().expect("a folder");
        let pools =
            [pool("a", "'x*'", &[&server], ""), pool("b", "", &[&server], "  companion_down: {hold: 1s}\n")];
        let written = file(folder.path(), &format!("pools:\n{}", pools.concat()));
        let printed = penstock(&["envoy-config", "--config", &written]).await;
        assert!(printed.status.success(), "{}", text(&printed));
        let bootstrap = folder.path().join("envoy.yaml");
        std::fs::write(&bootstrap, &printed.stdout).expect("write a file");
        let envoy = penstock_envoy::find::Search::here().find().expect("an Envoy").path;
        let checked = Command::new(envoy)
            .args(["--mode", "validate", "--config-path"])
            .arg(&bootstrap)
            .current_dir(binary::workspace())
            .output()
            .await
            .expect("Envoy runs");
        assert!(checked.status.success(), "{}\n{}", text(&checked), text(&printed));
    });
}

#[test]
fn filter_command_writes_the_module() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("penstock.wasm");
        let written = penstock(&["filter", "--out", path.to_str().expect("a plain path")]).await;
        assert!(written.status.success(), "{}", text(&written));
        let module = std::fs::read(&path).expect("the module");
        assert!(module.starts_with(b"\0asm") && module.len() > 10_000, "{} bytes", module.len());
    });
}

#[test]
fn filter_command_writes_the_native_module() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("penstock.so");
        let written = penstock(&["filter", "--native", "--out", path.to_str().expect("a plain path")]).await;
        assert!(written.status.success(), "{}", text(&written));
        let module = std::fs::read(&path).expect("the module");
        assert!(module.starts_with(b"\x7fELF") && module.len() > 10_000, "{} bytes", module.len());
    });
}

#[test]
fn an_envoy_too_old_for_the_native_filter_is_named() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let envoy = folder.path().join("envoy");
        let script = "#!/bin/sh\necho \"$0  version: abc/1.38.3/Clean/RELEASE/BoringSSL\"\n";
        std::fs::write(&envoy, script).expect("written");
        std::fs::set_permissions(&envoy, std::fs::Permissions::from_mode(0o755)).expect("executable");
        let mut command = Command::new(binary::penstock());
        command.args([
            "up",
            "--backend",
            "http://127.0.0.1:9",
            "--port",
            "0",
            "--admin-port",
            "0",
            "--filter",
            "native",
        ]);
        command.env("ENVOY_PATH", &envoy).current_dir(binary::workspace()).kill_on_drop(true);
        let ended =
            penstock_tests::wait::soon("penstock ends", command.output()).await.expect("penstock starts");
        let said = text(&ended);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(
            said.contains("Envoy 1.38.3 can't load the native filter") && said.contains("--filter wasm"),
            "{said}"
        );
    });
}

#[test]
fn bad_configuration_is_rejected_with_file_and_line() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let good = "pools:\n- name: p\n  endpoints: {static: ['127.0.0.1:9']}\n";
        let cases = [
            ("pools:\n- name: p\n  endpoints: {static: ['127.0.0.1:9']}\n  que: {ttl: 1s}\n", "que"),
            ("pools:\n- name: p\n  endpoints: {static: ['127.0.0.1:9']}\n  queue: {ttl: 0s}\n", "ttl"),
            (
                "pools:\n- name: p\n  endpoints: {static: ['127.0.0.1:9']}\n  queue: {flow_capacity: 0}\n",
                "flow_capacity",
            ),
            ("pools:\n- name: p\n  endpoints: {static: ['nowhere']}\n", "nowhere"),
            (
                "pools:\n- name: p\n  endpoints: {static: ['127.0.0.1:9']}\n  stock: {deviation: 1.5}\n",
                "deviation",
            ),
            ("pools: []\n", "pools"),
            ("pools: [\n", "yaml"),
        ];
        for (content, word) in cases {
            let written = file(folder.path(), content);
            for command in ["validate", "serve", "up", "envoy-config"] {
                let refused = penstock(&[command, "--config", &written]).await;
                let said = text(&refused);
                assert_eq!(refused.status.code(), Some(2), "{command} {content}: {said}");
                assert!(said.contains(word), "{command} {content}: {said}");
                assert!(said.contains("penstock.yaml"), "{command} doesn't name the file: {said}");
            }
        }
        let refused = penstock(&["validate", "--config", &file(folder.path(), cases[0].0)]).await;
        assert!(text(&refused).contains("penstock.yaml:4"), "the line: {}", text(&refused));
        let accepted = penstock(&["validate", "--config", &file(folder.path(), good)]).await;
        assert_eq!(accepted.status.code(), Some(0), "{}", text(&accepted));
        let missing = penstock(&["validate", "--config", "no-such-file.yaml"]).await;
        assert_eq!(missing.status.code(), Some(2), "{}", text(&missing));
        assert!(text(&missing).contains("no-such-file.yaml"), "{}", text(&missing));
    });
}

#[test]
fn bad_usage_exits_2_and_help_shows_an_example() {
    run(async {
        for arguments in [&["no-such-command"][..], &["up", "--no-such-flag"], &["serve", "--config"], &[]] {
            let refused = penstock(arguments).await;
            assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {}", text(&refused));
        }
        for command in ["serve", "up", "demo", "validate", "envoy-config", "filter", "mock-server"] {
            let help = penstock(&[command, "--help"]).await;
            assert_eq!(help.status.code(), Some(0), "{}", text(&help));
            let shown = text(&help);
            assert!(shown.contains(&format!("penstock {command}")) && shown.contains("xample"), "{shown}");
        }
    });
}

#[test]
fn port_in_use_is_named() {
    run(async {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = taken.local_addr().expect("an address").port().to_string();
        let server = Upstream::serving(Duration::ZERO).await;
        let folder = tempfile::tempdir().expect("a folder");
        let written = file(folder.path(), &config("", &[pool("p", "", &[&server], "")]));
        for flag in ["--port", "--admin-port"] {
            let other = if flag == "--port" { "--admin-port" } else { "--port" };
            let ended = penstock(&["up", "--config", &written, flag, &port, other, "0"]).await;
            assert_eq!(ended.status.code(), Some(1), "{flag}: {}", text(&ended));
            assert!(text(&ended).contains(&port), "{flag}: {}", text(&ended));
        }
    });
}

#[test]
fn missing_envoy_is_explained() {
    run(async {
        let mut command = Command::new(binary::penstock());
        command.args(["up", "--backend", "http://127.0.0.1:9", "--port", "0", "--admin-port", "0"]);
        command.env("ENVOY_PATH", "no/such/envoy").current_dir(binary::workspace()).kill_on_drop(true);
        let ended =
            penstock_tests::wait::soon("penstock ends", command.output()).await.expect("penstock starts");
        assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
        let said = text(&ended);
        assert!(said.contains("ENVOY_PATH") && said.contains("no/such/envoy"), "{said}");
    });
}

#[test]
fn up_runs_without_a_configuration_file() {
    run(async {
        let server = Upstream::serving(Duration::ZERO).await;
        let mut command = Command::new(binary::penstock());
        command.args(["up", "--port", "0", "--admin-port", "0", "--backend"]);
        command.arg(format!("http://{}", server.address())).current_dir(binary::workspace());
        // Without a file the companion listens on the default ports, which other processes may hold.
        for (key, value) in
            [("PENSTOCK_LISTEN__GRPC", "127.0.0.1:0"), ("PENSTOCK_LISTEN__HTTP", "127.0.0.1:0")]
        {
            command.env(key, value);
        }
        let mut up = Process::start("up", command).await;
        let gateway = up.line("gateway ").await;
        up.line("dashboard http://").await;
        let metrics = up.line("metrics http://").await;
        assert!(metrics.ends_with("/metrics"), "{metrics}");
        let body = penstock_tests::ClientRequest::chat("any", "x").body();
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        penstock_tests::until("an answer", || async {
            let url = format!("{}/v1/chat/completions", gateway.trim_end_matches('/'));
            match client.post(url).json(&body).send().await {
                Ok(response) if response.status() == 200 => Ok(()),
                Ok(response) => Err(response.text().await.unwrap_or_default()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        up.signal(libc::SIGTERM);
        assert_eq!(up.exit().await.code(), Some(0), "{}", up.tail());
    });
}

#[test]
fn simulate_prints_json_writes_a_report_and_names_the_line_of_a_bad_trace() {
    run(async {
        let folder = tempfile::tempdir().expect("a folder");
        let written = file(folder.path(), "pools:\n- name: a\n  endpoints: {static: ['127.0.0.1:1']}\n");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let (out, trace) = (path("out"), path("trace.csv"));
        let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
        std::fs::write(&trace, format!("{header}2024-05-12 00:00:00,100,10\n")).expect("write a trace");
        let simulate = ["simulate", "--config", &written, "--trace", &trace];
        let done = penstock(&[&simulate[..], &["--json", "--out", &out]].concat()).await;
        assert_eq!(done.status.code(), Some(0), "{}", text(&done));
        let document: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON alone on stdout");
        assert_eq!(document["runs"][0]["served"], 1);
        let report = std::fs::read_to_string(folder.path().join("out/report.html")).expect("a report");
        assert!(report.starts_with("<!doctype html>"));
        assert!(folder.path().join("out/results.json").is_file());

        std::fs::write(&trace, format!("{header}yesterday,100,10\n")).expect("write a trace");
        let refused = penstock(&simulate).await;
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).starts_with(&format!("{trace}:2: ")), "{}", text(&refused));
        let refused = penstock(&["simulate", "--config", &written, "--scenario", "storm"]).await;
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        assert!(text(&refused).contains("greedy"), "{}", text(&refused));
    });
}

#[test]
fn mock_server_answers_like_vllm() {
    run(async {
        let mut command = Command::new(binary::penstock());
        command.args(["mock-server", "--port", "0", "--alpha", "1", "--beta", "0.01", "--gamma", "0.0001"]);
        let mut server = Process::start("mock-server", command).await;
        let address = server.line("mock-server http://").await;
        let base = format!("http://{}", address.trim().trim_end_matches('/'));
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let ask = penstock_tests::ClientRequest::chat("m", "hello").with("max_tokens", 5);
        let url = format!("{base}/v1/chat/completions");
        let whole = client.post(&url).json(&ask.body()).send().await.expect("an answer");
        assert_eq!(whole.status(), 200);
        let whole: serde_json::Value = whole.json().await.expect("JSON");
        assert_eq!(whole["usage"]["completion_tokens"], 5, "{whole}");
        assert!(whole["choices"][0]["message"]["content"].is_string(), "{whole}");
        let ask = ask.streamed().with("stream_options", serde_json::json!({"include_usage": true}));
        let streamed = client.post(&url).json(&ask.body()).send().await.expect("an answer");
        let streamed = streamed.text().await.expect("whole");
        assert!(streamed.ends_with("data: [DONE]\n\n"), "{streamed}");
        assert!(streamed.matches("\"content\":\"").count() >= 5, "{streamed}");
        assert!(streamed.contains("\"completion_tokens\":5"), "{streamed}");
        let health = client.get(format!("{base}/health")).send().await.expect("an answer");
        assert_eq!(health.status(), 200);
        let metrics = client
            .get(format!("{base}/metrics"))
            .send()
            .await
            .expect("an answer")
            .text()
            .await
            .expect("whole");
        for name in ["vllm:num_requests_running", "vllm:num_requests_waiting"] {
            assert!(metrics.contains(name), "{metrics}");
        }
        let none = penstock(&["mock-server", "--port", "0", "--max-num-seqs", "0"]).await;
        assert_eq!(none.status.code(), Some(2), "{}", text(&none));
    });
}

#[test]
fn configuration_in_the_readme_is_valid() {
    run(async {
        let readme = std::fs::read_to_string(binary::workspace().join("README.md")).expect("README.md");
        let folder = tempfile::tempdir().expect("a folder");
        let examples: Vec<_> =
            readme.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(!examples.is_empty());
        for example in examples {
            let checked = penstock(&["validate", "--config", &file(folder.path(), example)]).await;
            assert_eq!(checked.status.code(), Some(0), "{example}\n{}", text(&checked));
        }
    });
}

#[test]
fn up_prints_each_address_on_one_line() {
    run(async {
        let server = Upstream::serving(Duration::ZERO).await;
        let gateway = Gateway::start(&config("", &[pool("p", "", &[&server], "")])).await;
        let lines = gateway.process.log();
        for prefix in
            ["gateway http://127.0.0.1:", "dashboard http://127.0.0.1:", "metrics http://127.0.0.1:"]
        {
            assert_eq!(lines.lines().filter(|l| l.starts_with(prefix)).count(), 1, "{prefix}:\n{lines}");
        }
    });
}
