//! The command: addresses and servers from configuration and flags, and what it refuses.

use clap::{CommandFactory as _, FromArgMatches as _, Parser};

use super::*;

const STATIC: &str = "pools: [{name: chat, endpoints: {static: ['127.0.0.1:8001']}}]";
const DNS: &str = "pools: [{name: chat, endpoints: {dns: {name: vllm.models, port: 8000}}}]";
const POOL: &str =
    "pools: [{name: chat, endpoints: {kubernetes: {namespace: models, inference_pool: vllm}}}]";

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

/// The output for a configuration and flags.
fn printed(config: &str, flags: &[&str]) -> Result<String, Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("penstock.yaml");
    std::fs::write(&file, config).expect("written");
    let file = file.to_str().expect("UTF-8");
    let start = ["penstock", "--config", file, "--gateway", "models/eg"];
    let matches = Command::command().get_matches_from(start.iter().chain(flags));
    let command = Command::from_arg_matches(&matches).expect("valid flags");
    render(&command.args, &Environment::default())
}

fn wrong(config: &str, flags: &[&str], part: &str) {
    let error = printed(config, flags).expect_err(part);
    assert!(error.to_string().contains(part), "{error}");
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn the_addresses_are_those_of_the_configuration_unless_given() {
    let text = printed(STATIC, &[]).expect("printed");
    assert!(
        text.contains("127.0.0.1:9190") && text.contains("http://127.0.0.1:9191/penstock.wasm"),
        "{text}"
    );
    assert!(
        text.contains(&filter_module::sha256(filter_module::Kind::Wasm.bytes().expect("always there"))),
        "{text}"
    );
    let flags = ["--companion", "penstock.models:9190", "--module", "http://penstock.models:9191/p.wasm?v=1"];
    let text = printed(STATIC, &flags).expect("printed");
    assert!(text.contains("uri: http://penstock.models:9191/p.wasm?v=1"), "{text}");
    assert!(text.contains("connect to the companion at penstock.models:9190"), "{text}");
    let replicas = format!(
        "replicas: {{companions: ['127.0.0.1:9190', '127.0.0.1:9290'], lease: {{file: l}}}}\n{STATIC}"
    );
    let text = printed(&replicas, &[]).expect("printed");
    assert!(text.contains("127.0.0.1:9190, 127.0.0.1:9290"), "{text}");
    assert!(text.contains("header: x-penstock-companion"), "chosen by the filter: {text}");
}

#[test]
fn addresses_that_envoy_cannot_use_are_refused() {
    let listen = |keys: &str| format!("listen: {{{keys}}}\nadmin: {{token_file: t}}\n{STATIC}");
    wrong(&listen("grpc: 'unix:/run/p.sock'"), &[], "--companion HOST:PORT");
    wrong(&listen("http: 'unix:/run/p.sock'"), &[], "--module http://HOST:PORT");
    for (url, shown) in [
        ("https://penstock/penstock.wasm", "https://penstock/penstock.wasm"),
        ("http://user:secret@penstock/p", "http://user@penstock/p"),
        ("file:///p.wasm", "file:///p.wasm"),
    ] {
        wrong(STATIC, &["--module", url], &format!("{shown}: must be an http URL"));
    }
}

#[test]
fn a_pool_that_a_gateway_cannot_find_needs_its_service() {
    wrong(POOL, &[], "found by an InferencePool");
    let flags = ["--service", "chat=vllm:8000", "--requeue"];
    let text = printed(POOL, &flags).expect("printed");
    assert!(
        text.contains("kind: Service\n      namespace: models\n      name: vllm\n      port: 8000"),
        "{text}"
    );
    assert!(printed(DNS, &[]).expect("printed").contains("hostname: vllm.models"));
    wrong(DNS, &["--requeue"], "pool `chat` is found by DNS");
    let consul = DNS.replace("port: 8000", "port: 8000, resolver: ['127.0.0.1:8600']");
    wrong(&consul, &[], "endpoints.dns.resolver");
    printed(DNS, &flags).expect("a Service takes the place of DNS");
    wrong(POOL, &["--service", "other=vllm:8000"], "the pools are chat");
    wrong(STATIC, &["--service", "chat=vllm:8000"], "leave it out");
    let twice = ["--service", "chat=a:1", "--service", "chat=b:1"];
    wrong(POOL, &twice, "one Service");
}

#[test]
fn istio_has_limits_of_its_own() {
    let text = printed(STATIC, &["--for", "istio"]).expect("printed");
    assert!(text.contains("kind: EnvoyFilter") && !text.contains("EnvoyPatchPolicy"), "{text}");
    assert!(!text.contains("portNumber"), "all listeners: {text}");
    let text = printed(STATIC, &["--for", "istio", "--listener", "llm:8080"]).expect("printed");
    assert!(text.contains("portNumber: 8080"), "{text}");
    wrong(STATIC, &["--for", "istio", "--listener", "llm"], "--listener llm:PORT");
    wrong(STATIC, &["--for", "istio", "--requeue"], "leave it out");
}

#[test]
fn the_comment_says_what_the_resources_need() {
    let text = printed(STATIC, &["--requeue"]).expect("printed");
    for part in ["enableEnvoyPatchPolicy: true", "infrastructure.parametersRef", "new version of Penstock"] {
        assert!(text.lines().any(|line| line.starts_with("# ") && line.contains(part)), "{part}: {text}");
    }
    let tls = format!("tls: {{cert: /etc/c.pem, key: /etc/k.pem, client_ca: /etc/a.pem}}\n{STATIC}");
    let text = printed(&tls, &[]).expect("printed");
    assert!(text.contains("/etc/c.pem, /etc/k.pem and /etc/a.pem: mount"), "{text}");
}

#[test]
fn the_native_filter_is_in_resources_of_its_own() {
    let native = |flags: &[&'static str]| [&["--filter", "native"], flags].concat();
    let Ok(module) = filter_module::Kind::Native.bytes() else {
        return wrong(STATIC, &native(&[]), "this build of Penstock has no native filter");
    };
    let text = printed(STATIC, &native(&[])).expect("printed");
    for part in [
        "kind: EnvoyExtensionPolicy",
        "url: http://127.0.0.1:9191/penstock.so",
        "extensionApis: {enableBackend: true}. It needs Envoy 1.39",
        "infrastructure.parametersRef",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains(&filter_module::sha256(module)), "{text}");
    let text = printed(STATIC, &native(&["--module", "file:///lib/penstock.so"])).expect("printed");
    assert!(
        text.contains("path: /lib/penstock.so") && text.contains("gets the filter from /lib/penstock.so"),
        "{text}"
    );
    printed(STATIC, &native(&["--requeue"])).expect("it always does so");
    printed(DNS, &native(&["--requeue"])).expect("it needs no host of its own");
    wrong(STATIC, &native(&["--for", "istio"]), "--for istio");
    wrong(STATIC, &native(&["--listener", "llm:8080"]), "leave it out");
    wrong(STATIC, &native(&["--module", "https://a/p.so"]), "must be an http URL");
    let metadata = format!("identity: {{fairness_id: [{{metadata: a/b/c}}]}}\n{STATIC}");
    wrong(&metadata, &native(&[]), "claimToHeaders");
}
