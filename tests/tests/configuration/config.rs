//! The configuration as a user sees it: the binary rejects wrong files with file and line, the environment overrides the file,
//! the schema is printed, and the reference page is current (`just reference` writes it).

use std::path::Path;
use std::process::Output;

use penstock_tests::{binary, run, wait};
use tokio::process::Command;

const POOL: &str = "pools:\n- name: a\n  endpoints: {static: ['127.0.0.1:8001']}\n";

/// Runs `penstock validate` on a file `penstock.yaml` with this content.
async fn validate(content: &[u8], variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("penstock.yaml"), content).expect("write a file");
    let mut command = Command::new(binary::penstock());
    command
        .args(["validate", "--config", "penstock.yaml"])
        .envs(variables.iter().copied())
        // That of the test which writes the reference page.
        .env_remove("PENSTOCK_REGENERATE")
        .current_dir(folder.path())
        .kill_on_drop(true);
    ended(command).await
}

async fn ended(mut command: Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        wait::soon("penstock ends", command.output()).await.expect("penstock starts");
    let said = [stdout, stderr].concat();
    (status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn wrong_files_are_rejected_with_line_path_and_allowed_values() {
    run(async {
        let with = |keys: &str| format!("{POOL}{keys}").into_bytes();
        let cases: Vec<(Vec<u8>, &str, &str)> = vec![
            (with("  queue:\n    ttl: soon\n"), "5: pools[0].queue.ttl: ", "30s"),
            (with("  queue:\n    flow_capacity: 0\n"), "5: pools[0].queue.flow_capacity: ", "at least 1"),
            (with("  queue: {tll: 3s}\n"), "4: pools[0].queue.tll: ", "did you mean `ttl`?"),
            (with("  colour: red\n"), "4: pools[0].colour: ", "known: name"),
            (with("  stock: {deviation: 1}\n"), "4: pools[0].stock.deviation: ", "below 1"),
            (with("  slo: {target_itl: 5}\n"), "4: pools[0].slo.target_itl: ", "both, or neither"),
            (
                with("  usage: {store: {redis: 'redis:/x'}}\n"),
                "4: pools[0].usage.store: ",
                "not the URL of a redis server",
            ),
            (with("  name: b\n"), "4: pools[0].name: ", "twice"),
            (with("listen: {grpc: '0.0.0.0:1'}\n"), "4: listen.grpc: ", "tls"),
            (with("---\npools: []\n"), "4: document: ", "second document"),
            (with("limits:\n\tflows: 3\n"), "5: document: ", "isn't YAML"),
            (b"".into(), "1: pools: ", "at least one pool"),
            (b"pools: [\xff]\n".into(), "1: document: ", "UTF-8"),
            (b"# a\n\n\xfe\xff\n".into(), "3: document: ", "UTF-8"),
        ];
        for (content, place, word) in cases {
            let (code, said) = validate(&content, &[]).await;
            let content = String::from_utf8_lossy(&content);
            assert_eq!(code, Some(2), "{content}: {said}");
            assert!(said.contains(&format!("penstock.yaml:{place}")), "{content}: {said}");
            assert!(said.contains(word), "{content}: {said}");
        }
    });
}

#[test]
fn environment_overrides_the_file() {
    run(async {
        let ttl = "PENSTOCK_POOLS__0__QUEUE__TTL";
        let (code, said) = validate(POOL.as_bytes(), &[(ttl, "90s")]).await;
        assert_eq!(code, Some(0), "{said}");
        let (code, said) = validate(POOL.as_bytes(), &[(ttl, "soon")]).await;
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(&format!("environment: {ttl}: pools[0].queue.ttl: ")), "{said}");
        let wrong = format!("{POOL}  queue: {{ttl: soon}}\n");
        let (code, said) = validate(wrong.as_bytes(), &[(ttl, "90s")]).await;
        assert_eq!(code, Some(0), "the wrong value isn't in force: {said}");
        let whole =
            [("PENSTOCK_POOLS__0__NAME", "a"), ("PENSTOCK_POOLS__0__ENDPOINTS__STATIC__0", "127.0.0.1:1")];
        let (code, said) = validate(b"", &whole).await;
        assert_eq!(code, Some(0), "{said}");
        let (code, said) = validate(POOL.as_bytes(), &[("PENSTOCK_QUEU", "x"), ("PENSTOCK_PORT", "x")]).await;
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("PENSTOCK_QUEU: no key") && !said.contains("PENSTOCK_PORT:"), "{said}");
    });
}

#[test]
fn schema_is_printed_without_a_file() {
    run(async {
        let mut command = Command::new(binary::penstock());
        command.args(["validate", "--schema"]).kill_on_drop(true);
        let (code, said) = ended(command).await;
        assert_eq!(code, Some(0), "{said}");
        let schema: serde_json::Value = serde_json::from_str(&said).expect("JSON and nothing else");
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert_eq!(schema, penstock_config::schema());
    });
}

#[test]
fn pages_of_keys_and_paths_are_current() {
    is_current("reference.md", &penstock_config::reference());
    is_current("paths.md", &penstock_config::paths_page());
}

fn is_current(name: &str, fresh: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var_os("PENSTOCK_REGENERATE").is_some() {
        std::fs::write(&page, fresh).expect("write the page");
        return;
    }
    let stored = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(stored == fresh, "docs/{name} isn't what companion/config/src gives: run `just reference`");
}
