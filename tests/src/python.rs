//! Python clients, installed once below the target folder with their versions pinned.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::binary::target_folder;

/// The version of the openai client that the tests use.
pub const OPENAI: &str = "openai==3.52.0";

/// Installs `requirement` and gives the folder to put on PYTHONPATH.
///
/// # Panics
/// If Python or pip is missing, or the package cannot be installed.
#[must_use]
pub fn package(requirement: &str) -> PathBuf {
    let folder = target_folder().join("python").join(requirement.replace("==", "-"));
    if !folder.exists() {
        let parent = folder.parent().expect("a folder has a parent");
        std::fs::create_dir_all(parent).expect("create a folder");
        // Installed beside the target and moved when complete, so that an interrupted installation is not taken for a complete one.
        let half = tempfile::tempdir_in(parent).expect("a temporary folder");
        let pip = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
            .arg(half.path())
            .arg(requirement)
            .stdin(Stdio::null())
            .output()
            .expect("python3 with pip is needed for this test");
        assert!(pip.status.success(), "pip install {requirement}: {}", String::from_utf8_lossy(&pip.stderr));
        let half = half.keep();
        if std::fs::rename(&half, &folder).is_err() {
            assert!(folder.exists(), "{} can't be moved to {}", half.display(), folder.display());
        }
    }
    folder
}

/// A command that runs `script` with `packages` importable.
#[must_use]
pub fn script(packages: &Path, script: &str) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("python3");
    command.arg("-c").arg(script).env("PYTHONPATH", packages).env("PYTHONUNBUFFERED", "1");
    command.kill_on_drop(true).stdin(Stdio::null());
    command
}
