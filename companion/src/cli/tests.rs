//! Every command has a complete help page within the page width, and its examples are valid commands.

use clap::{Command, ValueEnum as _};

use super::command;

/// Columns of a help page.
const WIDTH: usize = 110;

/// Collects the paths of `command` and all commands below it.
fn paths(command: &Command, path: &[String], found: &mut Vec<Vec<String>>) {
    found.push(path.to_vec());
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        let path = [path, &[below.get_name().to_owned()]].concat();
        paths(below, &path, found);
    }
}

fn all_paths() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    paths(&command(), &[], &mut found);
    found
}

/// The output of a help flag.
fn help(path: &[String], flag: &str) -> String {
    let typed = [&["penstock".to_owned()], path, &[flag.to_owned()]].concat();
    let output = command().term_width(WIDTH).try_get_matches_from(typed).expect_err("a help page");
    assert_eq!(output.kind(), clap::error::ErrorKind::DisplayHelp, "{path:?}");
    output.to_string()
}

/// The commands in a page's examples.
fn examples(page: &str) -> Vec<String> {
    let page = page.replace("\\\n", " ");
    let start = page.find("Example").expect("an example");
    page[start..]
        .lines()
        .map(str::trim)
        .filter_map(|line| {
            let line = line.rsplit("| penstock ").next().map_or(line.into(), |rest| {
                if rest == line { line.to_owned() } else { format!("penstock {rest}") }
            });
            let mut words = line.split(' ').skip_while(|word| word.contains('=') && !word.starts_with('-'));
            (words.next() == Some("penstock")).then(|| words.collect::<Vec<_>>().join(" "))
        })
        .map(|line| {
            let end = [" > ", " >> ", " | ", " && ", " & "]
                .iter()
                .filter_map(|separator| line.find(separator))
                .min();
            line[..end.unwrap_or(line.len())].trim().to_owned()
        })
        .collect()
}

#[test]
fn command_tree_is_consistent() {
    command().debug_assert();
}

#[test]
fn every_page_is_complete_and_within_its_width() {
    for path in all_paths() {
        let page = help(&path, "--help");
        for part in ["Usage: penstock", "Example", "Exit codes:", "  0  ", "  2  "] {
            assert!(page.contains(part), "{path:?} lacks {part}:\n{page}");
        }
        let short = help(&path, "-h");
        assert!(short.contains("Example"), "{path:?}:\n{short}");
        assert!(short.len() < page.len(), "{path:?}: -h is shorter than --help");
        for line in page.lines().chain(short.lines()) {
            assert!(line.chars().count() <= WIDTH, "{path:?}: {line}");
        }
    }
}

#[test]
fn every_example_is_a_valid_command() {
    for path in all_paths() {
        for flag in ["-h", "--help"] {
            let page = help(&path, flag);
            let examples = examples(&page);
            assert!(!examples.is_empty(), "{path:?} has no example:\n{page}");
            for example in examples {
                let typed = std::iter::once("penstock").chain(example.split_whitespace());
                if let Err(error) = command().try_get_matches_from(typed) {
                    panic!("{path:?}: penstock {example}: {error}");
                }
                let path_text = path.join(" ");
                assert!(path.is_empty() || example.contains(&path_text), "{path:?}: {example}");
            }
        }
    }
}

/// The lines of a section of a page.
fn section<'a>(page: &'a str, title: &str) -> Vec<&'a str> {
    page.lines().skip_while(|line| *line != title).skip(1).take_while(|line| !line.is_empty()).collect()
}

/// The command of this path.
fn find<'a>(mut command: &'a Command, path: &[String]) -> &'a Command {
    for name in path {
        command = command.find_subcommand(name).expect("the command exists");
    }
    command
}

#[test]
fn files_and_variables_of_all_flags_are_documented() {
    for path in all_paths() {
        let page = help(&path, "--help");
        let root = command();
        let command = find(&root, &path);
        let arguments: Vec<_> = command.get_arguments().filter(|argument| !argument.is_hide_set()).collect();
        let value =
            |argument: &clap::Arg| argument.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
        for argument in &arguments {
            if let Some(variable) = argument.get_env().and_then(std::ffi::OsStr::to_str) {
                let table = section(&page, "Environment:").concat();
                assert!(table.contains(variable), "{path:?} lacks {variable}:\n{page}");
            }
            if argument.get_value_parser().type_id() != std::any::TypeId::of::<std::path::PathBuf>() {
                continue;
            }
            let name = value(argument).expect("a flag with a path has a value name");
            let same_name = |other: &&&clap::Arg| value(other).as_ref() == Some(&name);
            let unique = arguments.iter().filter(same_name).count() == 1;
            let start = match argument.get_long() {
                Some(long) if !unique => format!("  {name} of --{long} "),
                Some(_) | None => format!("  {name} "),
            };
            let table = section(&page, "Files:");
            let found = table.iter().any(|line| line.starts_with(&start));
            assert!(found, "{path:?} lacks {start}:\n{page}");
        }
    }
}

#[test]
fn every_command_and_flag_has_a_description() {
    for path in all_paths() {
        let root = command();
        let command = find(&root, &path);
        assert!(path.is_empty() || command.get_about().is_some(), "{path:?}");
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            assert!(argument.get_help().is_some(), "{path:?} {}", argument.get_id());
        }
    }
}

#[test]
fn missing_and_unknown_commands_are_usage_errors() {
    for typed in [
        &["penstock"][..],
        &["penstock", "model"],
        &["penstock", "nothing"],
        &["penstock", "up", "--nothing"],
    ] {
        let error = command().try_get_matches_from(typed).expect_err("a usage error");
        assert_eq!(error.exit_code(), 2, "{typed:?}");
        assert!(error.to_string().contains("Usage:"), "{typed:?}: {error}");
    }
}

#[test]
fn every_shell_completes_every_command() {
    for shell in clap_complete::Shell::value_variants() {
        let script = super::completions(*shell);
        for path in all_paths().iter().filter(|path| path.len() == 1) {
            assert!(script.contains(&path[0]), "{shell}: {path:?}");
        }
    }
}
