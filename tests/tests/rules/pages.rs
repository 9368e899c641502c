//! The pages match the code: ARCHITECTURE.md lists every crate and stays short, the README shows both commands, and no file names
//! the machine it was written on.

use std::collections::BTreeSet;
use std::path::Path;

use crate::crates::{directory, metadata, own};
use crate::source::{files, read, root, shown};

/// Lines of ARCHITECTURE.md.
const ARCHITECTURE_LINES_MAX: usize = 150;

#[test]
fn architecture_lists_every_crate_and_stays_short() {
    let page = read(&root().join("ARCHITECTURE.md"));
    let lines = page.lines().count();
    assert!(
        lines <= ARCHITECTURE_LINES_MAX,
        "ARCHITECTURE.md has {lines} lines; the limit is {ARCHITECTURE_LINES_MAX}"
    );
    let listed: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|rest| rest.split_once("/` |"))
        .map(|(directory, _)| directory.to_owned())
        .collect();
    let metadata = metadata();
    let have: BTreeSet<String> = own(&metadata)
        .into_iter()
        .map(|package| shown(&directory(package)))
        .collect();
    assert_eq!(
        listed, have,
        "ARCHITECTURE.md lists the first, the workspace has the second"
    );
}

#[test]
fn no_file_names_a_machine() {
    let mut words = vec![
        ["/ho", "me/"].concat(),
        ["/ro", "ot/"].concat(),
        ["/Us", "ers/"].concat(),
        ["../sh", "ared"].concat(),
        ["/wo", "rk/"].concat(),
    ];
    words.push(format!("{}/", root().display()));
    let text = [
        "rs", "toml", "md", "yaml", "yml", "json", "proto", "svg", "py", "lua", "lock", "justfile", "run",
    ];
    let is_text = |path: &Path| {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        text.contains(
            &path
                .extension()
                .and_then(|extension| extension.to_str())
                .unwrap_or(name),
        )
    };
    let mut wrong = Vec::new();
    for file in files(&root(), &is_text) {
        for (number, line) in read(&file).lines().enumerate() {
            if words.iter().any(|word| line.contains(word.as_str())) {
                wrong.push(format!("{}:{}: {}", shown(&file), number + 1, line.trim()));
            }
        }
    }
    assert!(wrong.is_empty(), "paths of one machine:\n{}", wrong.join("\n"));
}

#[test]
fn readme_shows_both_commands_on_its_first_screen() {
    let readme = read(&root().join("README.md"));
    let first_screen: Vec<_> = readme.lines().take(60).map(str::trim).collect();
    for command in ["cargo demo", "cargo test --workspace"] {
        let is_shown = first_screen.iter().any(|line| line.starts_with(command));
        assert!(is_shown, "README.md's first screen does not show `{command}`");
    }
}
