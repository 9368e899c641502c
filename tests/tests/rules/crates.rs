//! Which crate may import which, and what no crate of a kind may use.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};

use crate::source::{read, root, rust_files, shown, without_tests};

/// What one crate may import.
struct Arrow {
    name: &'static str,
    /// Crates of this workspace.
    workspace: &'static [&'static str],
    /// The only crates from outside; `None`: any that isn't in `never`.
    outside: Option<&'static [&'static str]>,
    /// Crates that mustn't be reached, however long the way.
    never: &'static [&'static str],
}

const ARROWS: &[Arrow] = &[
    Arrow {
        name: "penstock-wire",
        workspace: &[],
        outside: Some(&["prost"]),
        never: &["serde", "tonic", "tokio"],
    },
    Arrow {
        name: "penstock-engine",
        workspace: &[],
        // serde and schemars are optional: only the configuration turns them on.
        outside: Some(&[
            "libm",
            "hashbrown",
            "hashlink",
            "jiff",
            "schemars",
            "serde",
            "smallvec",
            "thiserror",
            "wildmatch",
        ]),
        never: &["tokio", "tracing", "prometheus", "prost", "serde", "rand"],
    },
    Arrow { name: "penstock-model", workspace: &[], outside: None, never: &["tokio", "tonic", "rand"] },
    Arrow {
        name: "penstock-autopilot",
        workspace: &["penstock-engine", "penstock-model"],
        outside: Some(&["hashbrown"]),
        never: &["tokio", "tonic", "serde", "rand", "prost"],
    },
    Arrow {
        name: "penstock-election",
        workspace: &["penstock-engine"],
        // serde is optional: only the service turns it on.
        outside: Some(&["serde", "siphasher"]),
        never: &["tokio", "tonic", "serde", "rand", "prost"],
    },
    Arrow {
        name: "penstock-control",
        workspace: &[
            "penstock-autopilot",
            "penstock-election",
            "penstock-engine",
            "penstock-model",
            "penstock-wire",
        ],
        outside: None,
        never: &["tokio", "tonic", "serde", "rand"],
    },
    Arrow {
        name: "penstock-filter-core",
        workspace: &["penstock-wire"],
        outside: Some(&[
            "base64",
            "serde",
            "serde_json",
            "hashbrown",
            "memchr",
            "prost",
            "sha2",
            "simdutf8",
            "siphasher",
            "wide",
            "wildmatch",
            "xxhash-rust",
        ]),
        never: &["proxy-wasm", "tokio", "tonic"],
    },
    Arrow {
        name: "penstock-filter",
        workspace: &["penstock-filter-core", "penstock-wire"],
        outside: Some(&["proxy-wasm"]),
        never: &["tokio", "tonic"],
    },
    Arrow {
        name: "penstock-filter-native",
        workspace: &["penstock-filter-core", "penstock-wire"],
        outside: Some(&["getrandom", "hashbrown", "siphasher"]),
        never: &["proxy-wasm", "tokio", "tonic"],
    },
    Arrow {
        name: "penstock-model-server",
        workspace: &["penstock-engine"],
        outside: None,
        never: &["tokio", "tonic", "serde"],
    },
    Arrow {
        name: "penstock-simulate",
        workspace: &["penstock-autopilot", "penstock-engine", "penstock-model", "penstock-model-server"],
        outside: None,
        never: &["tokio", "tonic", "proxy-wasm"],
    },
    Arrow {
        name: "penstock-envoy",
        workspace: &["penstock-wire"],
        outside: None,
        never: &["proxy-wasm", "tonic"],
    },
    Arrow { name: "penstock-errors", workspace: &[], outside: Some(&[]), never: &[] },
    Arrow { name: "penstock-filter-module", workspace: &[], outside: None, never: &["tokio", "serde"] },
    Arrow {
        name: "penstock-config",
        workspace: &["penstock-autopilot", "penstock-engine", "penstock-model", "penstock-wire"],
        outside: None,
        never: &[
            "tonic",
            "axum",
            "kube",
            "penstock-control",
            "penstock-envoy",
            "penstock-world",
            "penstock-filter-core",
            "proxy-wasm",
        ],
    },
    Arrow {
        name: "penstock-data-plane",
        workspace: &["penstock-config", "penstock-engine", "penstock-envoy", "penstock-wire"],
        outside: None,
        never: &[
            "tonic",
            "axum",
            "kube",
            "penstock-filter-module",
            "penstock-world",
            "penstock-filter-core",
            "proxy-wasm",
        ],
    },
    Arrow {
        name: "penstock-base",
        workspace: &["penstock-engine"],
        outside: Some(&["futures-util", "tokio", "tracing"]),
        never: &["serde", "tonic", "rand"],
    },
    Arrow {
        name: "penstock-stores",
        workspace: &[
            "penstock-base",
            "penstock-config",
            "penstock-control",
            "penstock-engine",
            "penstock-model",
        ],
        outside: None,
        never: &["tonic", "axum", "kube", "penstock-envoy", "penstock-server", "penstock-filter-core"],
    },
    Arrow {
        name: "penstock-picker",
        workspace: &["penstock-base", "penstock-filter-core", "penstock-wire"],
        outside: None,
        never: &["kube", "penstock-control", "penstock-config", "penstock-world", "proxy-wasm"],
    },
    Arrow {
        name: "penstock-server",
        workspace: &[
            "penstock-base",
            "penstock-config",
            "penstock-control",
            "penstock-data-plane",
            "penstock-election",
            "penstock-engine",
            "penstock-envoy",
            "penstock-errors",
            "penstock-model",
            "penstock-picker",
            "penstock-stores",
            "penstock-wire",
        ],
        outside: None,
        never: &["penstock-filter-module", "ratatui", "plotters", "penstock-world", "proxy-wasm"],
    },
    Arrow {
        name: "penstock-up",
        workspace: &[
            "penstock-config",
            "penstock-data-plane",
            "penstock-engine",
            "penstock-envoy",
            "penstock-errors",
            "penstock-filter-module",
        ],
        outside: None,
        never: &["tonic", "kube", "penstock-world", "penstock-filter-core", "proxy-wasm"],
    },
    Arrow {
        name: "penstock-mock",
        workspace: &["penstock-engine", "penstock-errors", "penstock-model-server", "penstock-up"],
        outside: None,
        never: &["tonic", "kube", "penstock-world", "penstock-filter-core", "proxy-wasm"],
    },
    Arrow {
        name: "penstock-tools",
        workspace: &[
            "penstock-config",
            "penstock-control",
            "penstock-engine",
            "penstock-errors",
            "penstock-model",
            "penstock-model-server",
            "penstock-simulate",
            "penstock-wire",
        ],
        outside: None,
        never: &[
            "tonic",
            "kube",
            "penstock-envoy",
            "penstock-filter-module",
            "penstock-world",
            "penstock-filter-core",
            "proxy-wasm",
        ],
    },
    Arrow {
        name: "penstock",
        workspace: &[
            "penstock-config",
            "penstock-errors",
            "penstock-filter-module",
            "penstock-mock",
            "penstock-server",
            "penstock-tools",
            "penstock-up",
        ],
        outside: None,
        never: &["penstock-world", "proxy-wasm"],
    },
    Arrow {
        name: "penstock-tests",
        // The corpora of `tests/fuzz` are run on the code that they were made for; the model has the truth about a mock server.
        workspace: &[
            "penstock-config",
            "penstock-control",
            "penstock-data-plane",
            "penstock-election",
            "penstock-engine",
            "penstock-envoy",
            "penstock-filter-core",
            "penstock-model",
            "penstock-server",
            "penstock-stores",
            "penstock-tools",
            "penstock-wire",
        ],
        outside: None,
        never: &["proxy-wasm"],
    },
    // The engine is compared with it, so it shares no code with the engine.
    Arrow { name: "penstock-budget-model", workspace: &[], outside: Some(&[]), never: &[] },
    Arrow {
        name: "penstock-world",
        workspace: &[
            "penstock-budget-model",
            "penstock-control",
            "penstock-election",
            "penstock-engine",
            "penstock-filter-core",
            "penstock-model",
            "penstock-wire",
        ],
        outside: None,
        never: &["tokio", "tonic", "proxy-wasm"],
    },
];

/// Directories of crates whose time is an argument: nothing in them may read a clock or wait.
const CLOCKLESS: &[&str] = &[
    "wire/src",
    "filter/core/src",
    "companion/autopilot/src",
    "companion/control/src",
    "companion/election/src",
    "companion/engine/src",
    "companion/model/src",
    "companion/model-server/src",
    "companion/simulate/src",
    "tests/budget-model/src",
    "tests/world/src",
];

/// The dependency graph for this machine's platform, so that no package of another one is downloaded.
pub(crate) fn metadata() -> Metadata {
    let rustc = std::process::Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let version = String::from_utf8(rustc.stdout).expect("rustc prints UTF-8");
    let host = version.lines().find_map(|l| l.strip_prefix("host: ")).expect("rustc names its host");
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(["--filter-platform".to_owned(), host.to_owned(), "--locked".to_owned()])
        .exec()
        .expect("cargo metadata")
}

/// The packages of this workspace.
pub(crate) fn own(metadata: &Metadata) -> Vec<&Package> {
    metadata.workspace_packages()
}

/// The folder of a package.
pub(crate) fn directory(package: &Package) -> PathBuf {
    package.manifest_path.parent().expect("a manifest lies in a folder").as_std_path().to_path_buf()
}

/// Whether `package`, a crate of this workspace, links an optional dependency only when another crate turns on a feature.
fn only_by_feature(package: &Package, dependency: &str) -> bool {
    let mut open = vec!["default"];
    let mut enabled = BTreeSet::new();
    while let Some(feature) = open.pop() {
        if enabled.insert(feature) {
            let names = package.features.get(feature).into_iter().flatten();
            open.extend(names.map(|name| name.strip_prefix("dep:").unwrap_or(name)));
        }
    }
    let is_optional = package.dependencies.iter().any(|d| d.name == dependency && d.optional);
    is_optional && !enabled.contains(dependency)
}

/// Every package that `from` links, directly or not. Left out are `from`, build- and dev-dependencies, and dependencies of workspace
/// crates behind features that are off by default.
fn linked(metadata: &Metadata, from: &PackageId) -> BTreeSet<PackageId> {
    let resolve = metadata.resolve.as_ref().expect("cargo metadata resolves");
    let nodes: BTreeMap<_, _> = resolve.nodes.iter().map(|n| (&n.id, n)).collect();
    let inside: BTreeSet<_> = own(metadata).iter().map(|p| &p.id).collect();
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(id) = open.pop() {
        for dependency in &nodes[id].deps {
            let normal = dependency.dep_kinds.iter().any(|k| k.kind == DependencyKind::Normal);
            let by_feature =
                inside.contains(id) && only_by_feature(&metadata[id], &metadata[&dependency.pkg].name);
            if normal && !by_feature && found.insert(dependency.pkg.clone()) {
                open.push(&dependency.pkg);
            }
        }
    }
    found
}

#[test]
fn every_crate_has_a_rule() {
    let metadata = metadata();
    let have: BTreeSet<_> = own(&metadata).iter().map(|p| p.name.to_string()).collect();
    let ruled: BTreeSet<_> = ARROWS.iter().map(|a| a.name.to_owned()).collect();
    assert_eq!(have, ruled, "a crate without a rule in ARROWS, or a rule without its crate");
}

#[test]
fn imports_follow_the_arrows() {
    let metadata = metadata();
    let inside: BTreeSet<_> = own(&metadata).iter().map(|p| p.name.to_string()).collect();
    let mut wrong = Vec::new();
    for package in own(&metadata) {
        let arrow = ARROWS.iter().find(|a| a.name == package.name.as_str()).expect("every crate has a rule");
        for dependency in package.dependencies.iter().filter(|d| d.kind == DependencyKind::Normal) {
            let name = dependency.name.as_str();
            if inside.contains(name) {
                if !arrow.workspace.contains(&name) {
                    wrong.push(format!("{} imports {name}", arrow.name));
                }
            } else if arrow.outside.is_some_and(|allowed| !allowed.contains(&name)) {
                wrong.push(format!("{} imports {name}, which isn't on its list", arrow.name));
            }
        }
        for id in linked(&metadata, &package.id) {
            let name = metadata[&id].name.to_string();
            if arrow.never.contains(&name.as_str()) {
                wrong.push(format!("{} reaches {name}", arrow.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn only_the_filter_speaks_proxy_wasm() {
    let metadata = metadata();
    let users: Vec<_> = own(&metadata)
        .into_iter()
        .filter(|p| p.dependencies.iter().any(|d| d.name == "proxy-wasm"))
        .map(|p| p.name.to_string())
        .collect();
    assert_eq!(users, ["penstock-filter"]);
}

#[test]
fn the_engine_needs_no_operating_system() {
    let metadata = metadata();
    let engine = own(&metadata).into_iter().find(|p| p.name.as_str() == "penstock-engine").expect("engine");
    for dependency in engine.dependencies.iter().filter(|d| d.kind == DependencyKind::Normal) {
        assert!(!dependency.uses_default_features || dependency.name == "libm", "{}", dependency.name);
        assert!(!dependency.features.iter().any(|f| f == "std"), "{} with std", dependency.name);
    }
    let source = root().join("companion/engine/src");
    assert!(read(&source.join("lib.rs")).contains("#![no_std]"));
    for file in rust_files(&source) {
        let text = read(&file);
        let text = without_tests(&text);
        for word in ["std::", "extern crate std"] {
            let found = text.lines().any(|l| {
                let code = l.split("//").next().unwrap_or_default();
                code.match_indices(word)
                    .any(|(at, _)| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
            });
            assert!(!found, "{} uses `{word}`", shown(&file));
        }
    }
}

#[test]
fn decisions_read_no_clock() {
    for directory in CLOCKLESS {
        for file in rust_files(&root().join(directory)) {
            let text = read(&file);
            for word in ["Instant::now", "SystemTime", "thread::sleep", "get_current_time"] {
                assert!(!without_tests(&text).contains(word), "{} uses `{word}`", shown(&file));
            }
        }
    }
}
