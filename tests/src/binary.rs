//! What tests run: built once per test process, with the test's profile and target folder. Cargo holds no lock while tests
//! run, so a test can call it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The root of the workspace.
#[must_use]
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

/// The profile's folder (`target/debug`), from the place of the running test.
///
/// # Panics
/// If the test does not run from a target folder.
#[must_use]
pub fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a process knows its executable");
    let folder = test.parent().expect("an executable lies in a folder");
    let folder = if folder.ends_with("deps") || folder.ends_with("examples") {
        folder.parent().expect("both lie in a profile's folder")
    } else {
        folder
    };
    folder.to_path_buf()
}

/// The target folder; everything that tests download or write lies below it.
///
/// # Panics
/// As [`profile_folder`].
#[must_use]
pub fn target_folder() -> PathBuf {
    profile_folder().parent().expect("a profile's folder lies in the target folder").to_path_buf()
}

/// The path of the `penstock` binary, current with the sources.
///
/// # Panics
/// If it does not compile.
pub fn penstock() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let folder = profile_folder();
        // `--workspace` with one binary: the same features of shared dependencies as in `cargo test --workspace`.
        let mut build = cargo_build(&["--workspace", "--bin", "penstock"], &target_folder());
        if folder.ends_with("release") {
            build.arg("--release");
        }
        run(build);
        folder.join("penstock")
    })
}

/// The path of the native filter whose hooks panic when a request asks for it.
///
/// # Panics
/// If it does not compile.
pub fn panicking_filter() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // In a folder of its own: it must not replace the module that other tests load.
        let target = target_folder().join("panicking-filter");
        let what = ["--package", "penstock-filter-native", "--features", "panics", "--profile", "native"];
        let mut build = cargo_build(&what, &target);
        // The profile of the module that is shipped decides what a panic does; the rest only takes long to compile.
        for (key, value) in [("LTO", "off"), ("OPT_LEVEL", "0"), ("CODEGEN_UNITS", "16")] {
            build.env(format!("CARGO_PROFILE_NATIVE_{key}"), value);
        }
        run(build);
        target.join("native/libpenstock_filter_native.so")
    })
}

fn cargo_build(what: &[&str], target: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet"]).args(what).arg("--target-dir").arg(target);
    // Cargo's variables for this test must not reach the build: a build script that reads them, as ring's does, would run again,
    // and every dependent crate would be rebuilt, now and at the next `cargo test`.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "OUT_DIR" {
            build.env_remove(&name);
        }
    }
    build.current_dir(workspace()).stdin(Stdio::null());
    build
}

fn run(mut build: Command) {
    let built = build.output().expect("cargo runs");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{build:?} fails:\n{said}");
}
