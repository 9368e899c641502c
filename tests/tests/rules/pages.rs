//! The pages match the code: ARCHITECTURE.md lists every crate and stays short, the README shows both commands, every file that is named
//! exists, and no file names the machine it was written on.

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
    let have: BTreeSet<String> =
        own(&metadata).into_iter().map(|package| shown(&directory(package))).collect();
    assert_eq!(listed, have, "ARCHITECTURE.md lists the first, the workspace has the second");
}

/// Whether a file is text, by its name.
fn is_text(path: &Path) -> bool {
    const TEXT: [&str; 13] =
        ["rs", "toml", "md", "yaml", "yml", "json", "proto", "svg", "py", "lua", "lock", "justfile", "run"];
    let name = path.file_name().and_then(|name| name.to_str());
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.or(name).is_some_and(|kind| TEXT.contains(&kind))
}

/// The pages whose names are capitals, in a text: those at the root of a repository.
fn capital_pages(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || "-_./".contains(letter)));
    words.filter(|word| {
        let name = word.strip_suffix(".md").unwrap_or_default();
        name.len() > 1 && name.bytes().all(|letter| letter.is_ascii_uppercase() || letter == b'_')
    })
}

/// The paths of this repository that a page names, in backquotes and without wildcards. A path that begins with no folder of the root is
/// that of another place.
fn named_paths<'a>(page: &'a str, folders: &[String]) -> Vec<&'a str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let is_path = |word: &&str| {
        let first = word.split('/').next().unwrap_or_default();
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
        word.contains('/') && word.chars().all(is_plain) && folders.iter().any(|folder| folder == first)
    };
    quoted.filter(is_path).collect()
}

#[test]
fn every_file_that_is_named_exists() {
    let entries = std::fs::read_dir(root()).expect("the repository");
    let folders: Vec<String> = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir() && entry.file_name() != "target")
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let mut missing = Vec::new();
    let mut found = 0;
    for file in files(&root(), &is_text) {
        let text = read(&file);
        let is_page = file.extension().is_some_and(|extension| extension == "md");
        let paths = if is_page { named_paths(&text, &folders) } else { Vec::new() };
        for name in capital_pages(&text).chain(paths) {
            found += 1;
            if !root().join(name).exists() {
                missing.push(format!("{} names {name}", shown(&file)));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(found > 50, "{found}");
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
