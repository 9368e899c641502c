//! The repository's files, as the rules read them.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

/// Files below `directory` that `keep` accepts, sorted; build products and git's files are left out.
pub(crate) fn files(directory: &Path, keep: &dyn Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries {
            let path = entry.expect("directory entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !matches!(name, "target" | ".git" | "node_modules") {
                    open.push(path);
                }
            } else if name != ".git" && keep(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The Rust files below `directory`, sorted.
pub(crate) fn rust_files(directory: &Path) -> Vec<PathBuf> {
    files(directory, &|path| path.extension().is_some_and(|extension| extension == "rs"))
}

/// The text of a file that must exist.
pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether a file was generated, so that its size and comments do not count.
pub(crate) fn is_generated(text: &str) -> bool {
    text.starts_with("// This file is @generated")
}

/// Whether a file holds only tests: of a crate, or of the module beside it.
pub(crate) fn is_test_file(file: &Path) -> bool {
    let path = file.strip_prefix(root()).unwrap_or(file);
    path.iter().any(|part| part == "tests") || path.file_name().is_some_and(|name| name == "tests.rs")
}

/// The text of a file up to its `mod tests`.
pub(crate) fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests").map_or(text, |end| &text[..end])
}

/// A path relative to the repository, for messages.
pub(crate) fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
