//! Builds the filter as a wasm module, and as a native one if the feature asks for it. The crate then includes them.
//!
//! A second cargo builds a module into a separate target folder, `<target>/filter-wasm` or `<target>/filter-native`, because two cargos in one
//! target folder wait for each other's lock. Build, test, clippy and doc share the folder. Their flags, wrappers,
//! profiles and targets are removed from the environment, so all of them include the same module.
//!
//! The modules are compressed, because they would be a twentieth of the binary. The crate has one small build dependency for that, so cargo can
//! run this script beside the compilation of other crates.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use miniz_oxide::deflate::compress_to_vec;

/// The strongest level of miniz_oxide.
const COMPRESSION: u8 = 10;

const WASM: Module = Module {
    package: "penstock-filter",
    profile: "wasm",
    folder: "filter-wasm",
    file: "penstock_filter.wasm",
};
const NATIVE: Module = Module {
    package: "penstock-filter-native",
    profile: "native",
    folder: "filter-native",
    file: "libpenstock_filter_native.so",
};

struct Module {
    package: &'static str,
    profile: &'static str,
    folder: &'static str,
    file: &'static str,
}

fn main() {
    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in ["filter", "wire", "Cargo.lock", "Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    WASM.make(&workspace, &out, "wasm32-unknown-unknown");
    if env::var_os("CARGO_FEATURE_NATIVE").is_some() && variable("CARGO_CFG_TARGET_OS") == "linux" {
        // Envoy's own C library, also for a binary of another one.
        NATIVE.make(&workspace, &out, &format!("{}-unknown-linux-gnu", variable("CARGO_CFG_TARGET_ARCH")));
    } else if let Err(error) = std::fs::write(out.join(NATIVE.file), []) {
        fail(&format!("{}: {error}", out.display()));
    }
}

impl Module {
    /// Builds the module for a target, and copies it to `out`.
    fn make(&self, workspace: &Path, out: &Path, triple: &str) {
        ensure_target(triple);
        let target = self.target(out);
        self.build(workspace, &target, triple);
        let built = target.join(triple).join(self.profile).join(self.file);
        let compressed = std::fs::read(&built).map(|module| compress_to_vec(&module, COMPRESSION));
        if let Err(error) = compressed.and_then(|module| std::fs::write(out.join(self.file), module)) {
            fail(&format!("the filter was built, but {} can't be compressed: {error}", built.display()));
        }
    }

    fn build(&self, workspace: &Path, target: &Path, triple: &str) {
        let mut cargo = Command::new(variable("CARGO"));
        cargo
            .current_dir(workspace)
            .args([
                "build",
                "--locked",
                "--package",
                self.package,
                "--profile",
                self.profile,
                "--target",
                triple,
            ])
            .arg("--target-dir")
            .arg(target);
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(changes_the_build) {
                cargo.env_remove(name);
            }
        }
        match cargo.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => fail(&format!(
                "{} doesn't compile:\n{}",
                self.package,
                String::from_utf8_lossy(&output.stderr)
            )),
            Err(error) => fail(&format!("cargo can't be run to build the filter: {error}")),
        }
    }

    /// The module's folder in the target folder. Cargo marks its target folder with the file CACHEDIR.TAG.
    fn target(&self, out: &Path) -> PathBuf {
        let tagged = out.ancestors().find(|dir| dir.join("CACHEDIR.TAG").is_file());
        tagged.unwrap_or(out).join(self.folder)
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
    // A linker has to suit the target, and changes nothing in the module's code.
    let is_linker = name.starts_with("CARGO_TARGET_") && name.ends_with("_LINKER");
    NAMES.contains(&name)
        || (name != "CARGO_BUILD_JOBS"
            && !is_linker
            && PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

/// Installs Rust's standard library for a target if it is missing; rustup usually has it, because the toolchain file names
/// WebAssembly's, and the machine's own comes with the compiler.
fn ensure_target(triple: &str) {
    if has_target(triple) {
        return;
    }
    let added = Command::new("rustup").args(["target", "add", triple]).output();
    if !has_target(triple) {
        let attempt = match added {
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => format!("rustup can't be run: {error}"),
        };
        fail(&format!(
            "the filter needs Rust's standard library for {triple}: run `rustup target add {triple}`, or install \
             your distribution's package of it.\n(`rustup target add` was tried: {attempt})"
        ));
    }
}

fn has_target(triple: &str) -> bool {
    let libdir =
        Command::new(variable("RUSTC")).args(["--print", "target-libdir", "--target", triple]).output();
    libdir.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo doesn't set {name}")))
}

fn fail(message: &str) -> ! {
    println!("cargo::error={}", message.replace('\n', "\ncargo::error="));
    std::process::exit(1)
}
