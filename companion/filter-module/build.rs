//! Builds the filter as a wasm module, which the crate then includes.
//!
//! A second cargo builds the module into a separate target folder, `<target>/filter-wasm`, because two cargos in one
//! target folder wait for each other's lock. Build, test, clippy and doc share the folder. Their flags, wrappers,
//! profiles and targets are removed from the environment, so all of them include the same module.
//!
//! The crate has no build dependencies, so cargo can run this script beside the compilation of other crates.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const TRIPLE: &str = "wasm32-unknown-unknown";
const MODULE: &str = "penstock_filter.wasm";

fn main() {
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in ["filter", "wire", "Cargo.lock", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    ensure_wasm_target();
    let target = filter_target(&out);
    build(&workspace, &target);
    let built = target.join(TRIPLE).join("wasm").join(MODULE);
    if let Err(error) = std::fs::copy(&built, out.join(MODULE)) {
        fail(&format!("the filter was built, but {} can't be copied: {error}", built.display()));
    }
}

fn build(workspace: &Path, target: &Path) {
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(workspace)
        .args(["build", "--locked", "--package", "penstock-filter", "--profile", "wasm", "--target", TRIPLE])
        .arg("--target-dir")
        .arg(target);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(changes_the_build) {
            cargo.env_remove(name);
        }
    }
    match cargo.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            fail(&format!("the filter doesn't compile:\n{}", String::from_utf8_lossy(&output.stderr)))
        }
        Err(error) => fail(&format!("cargo can't be run to build the filter: {error}")),
    }
}

/// Whether a variable of the outer build changes cargo's output or its place. The jobserver's variables stay: both
/// builds share the cores.
fn changes_the_build(name: &str) -> bool {
    const NAMES: [&str; 7] = [
        "RUSTFLAGS",
        "RUSTDOCFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_TARGET_DIR",
        "CLIPPY_ARGS",
    ];
    const PREFIXES: [&str; 3] = ["CARGO_BUILD_", "CARGO_PROFILE_", "CARGO_TARGET_"];
    NAMES.contains(&name)
        || (name != "CARGO_BUILD_JOBS" && PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

/// `<target>/filter-wasm`. Cargo marks its target folder with the file CACHEDIR.TAG.
fn filter_target(out: &Path) -> PathBuf {
    let tagged = out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    tagged.unwrap_or(out).join("filter-wasm")
}

/// Installs Rust's standard library for wasm if it is missing; rustup usually has it, because the toolchain file names
/// the target.
fn ensure_wasm_target() {
    if has_wasm_target() {
        return;
    }
    let added = Command::new("rustup").args(["target", "add", TRIPLE]).output();
    if !has_wasm_target() {
        let attempt = match added {
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => format!("rustup can't be run: {error}"),
        };
        fail(&format!(
            "the filter needs Rust's standard library for {TRIPLE}: run `rustup target add {TRIPLE}`, or install \
             your distribution's package of it.\n(`rustup target add` was tried: {attempt})"
        ));
    }
}

fn has_wasm_target() -> bool {
    let libdir =
        Command::new(variable("RUSTC")).args(["--print", "target-libdir", "--target", TRIPLE]).output();
    libdir.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo doesn't set {name}")))
}

fn fail(message: &str) -> ! {
    println!("cargo::error={}", message.replace('\n', "\ncargo::error="));
    std::process::exit(1)
}
