//! Builds the filter for Envoy, so that the `penstock` binary carries it inside.
//!
//! A second cargo builds it into a target folder of its own, `<target>/filter-wasm`: in the same one the two would
//! wait for each other's lock. It is shared by build, test, clippy and doc, and nothing of theirs (flags, wrappers,
//! profiles, targets) reaches it: the module is the same whoever asks.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

const TRIPLE: &str = "wasm32-unknown-unknown";
const MODULE: &str = "penstock_filter.wasm";

fn main() {
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in ["filter", "wire", "Cargo.lock", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    have_target();
    let target = own_target(&out);
    build(&workspace, &target);
    let built = target.join(TRIPLE).join("wasm").join(MODULE);
    if let Err(why) = std::fs::copy(&built, out.join(MODULE)) {
        fail(&format!(
            "the filter was built but {} can't be copied: {why}",
            built.display()
        ));
    }
}

fn build(workspace: &Path, target: &Path) {
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .current_dir(workspace)
        .args([
            "build",
            "--locked",
            "--package",
            "penstock-filter",
            "--profile",
            "wasm",
            "--target",
            TRIPLE,
        ])
        .arg("--target-dir")
        .arg(target);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_the_outer_build) {
            cargo.env_remove(name);
        }
    }
    match cargo.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => fail(&format!(
            "the filter doesn't build:\n{}",
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(why) => fail(&format!("cargo can't be run for the filter: {why}")),
    }
}

/// Variables that change what cargo builds, or where. The jobserver's are kept: both builds share the cores.
fn is_of_the_outer_build(name: &str) -> bool {
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

/// `<target>/filter-wasm`; cargo marks its target folder with a tag.
fn own_target(out: &Path) -> PathBuf {
    let tagged = out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
    tagged.unwrap_or(out).join("filter-wasm")
}

/// The toolchain file names the target, so rustup usually has it; else it is added here.
fn have_target() {
    if has_target() {
        return;
    }
    let added = Command::new("rustup").args(["target", "add", TRIPLE]).output();
    if !has_target() {
        let why = match added {
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(why) => format!("rustup can't be run: {why}"),
        };
        fail(&format!(
            "the filter needs Rust's standard library for {TRIPLE}: run `rustup target add {TRIPLE}`, or install \
             your distribution's package of it.\n(`rustup target add` was tried: {why})"
        ));
    }
}

fn has_target() -> bool {
    let asked = Command::new(variable("RUSTC"))
        .args(["--print", "target-libdir", "--target", TRIPLE])
        .output();
    asked.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo gives no {name}")))
}

fn fail(why: &str) -> ! {
    println!("cargo::error={}", why.replace('\n', "\ncargo::error="));
    std::process::exit(1)
}
