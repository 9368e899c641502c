//! Every command's help: complete, within its width, and with examples that the commands take.

use clap::{Command, ValueEnum as _};

use super::command;

/// Columns of a help page.
const WIDTH: usize = 110;

/// Every command below `command`, as it is typed.
fn paths(command: &Command, path: &[String], found: &mut Vec<Vec<String>>) {
    found.push(path.to_vec());
    for below in command.get_subcommands().filter(|it| it.get_name() != "help") {
        let path = [path, &[below.get_name().to_owned()]].concat();
        paths(below, &path, found);
    }
}

fn all() -> Vec<Vec<String>> {
    let mut found = Vec::new();
    paths(&command(), &[], &mut found);
    found
}

/// What a help flag prints.
fn help(path: &[String], flag: &str) -> String {
    let typed = [&["penstock".to_owned()], path, &[flag.to_owned()]].concat();
    let said = command()
        .term_width(WIDTH)
        .try_get_matches_from(typed)
        .expect_err("a help page");
    assert_eq!(said.kind(), clap::error::ErrorKind::DisplayHelp, "{path:?}");
    said.to_string()
}

/// The commands of a page's examples, one a line.
fn examples(page: &str) -> Vec<String> {
    let page = page.replace("\\\n", " ");
    let from = page.find("Example").expect("an example");
    page[from..]
        .lines()
        .map(str::trim)
        .filter_map(|line| {
            let line = line.rsplit("| penstock ").next().map_or(line.into(), |rest| {
                if rest == line {
                    line.to_owned()
                } else {
                    format!("penstock {rest}")
                }
            });
            let mut words = line
                .split(' ')
                .skip_while(|word| word.contains('=') && !word.starts_with('-'));
            (words.next() == Some("penstock")).then(|| words.collect::<Vec<_>>().join(" "))
        })
        .map(|line| {
            let end = [" > ", " >> ", " | ", " && ", " & "]
                .iter()
                .filter_map(|it| line.find(it))
                .min();
            line[..end.unwrap_or(line.len())].trim().to_owned()
        })
        .collect()
}

#[test]
fn the_commands_fit_together() {
    command().debug_assert();
}

#[test]
fn every_page_is_whole_and_within_its_width() {
    for path in all() {
        let page = help(&path, "--help");
        for part in ["Usage: penstock", "Example", "Exit codes:", "  0  ", "  2  "] {
            assert!(page.contains(part), "{path:?} lacks {part}:\n{page}");
        }
        let short = help(&path, "-h");
        assert!(short.contains("Example"), "{path:?}:\n{short}");
        assert!(short.len() < page.len(), "{path:?}: -h is the short one");
        for line in page.lines().chain(short.lines()) {
            assert!(line.chars().count() <= WIDTH, "{path:?}: {line}");
        }
    }
}

#[test]
fn every_example_is_one_that_the_commands_take() {
    for path in all() {
        for flag in ["-h", "--help"] {
            let page = help(&path, flag);
            let examples = examples(&page);
            assert!(!examples.is_empty(), "{path:?} has no example:\n{page}");
            for example in examples {
                let typed = std::iter::once("penstock").chain(example.split_whitespace());
                if let Err(error) = command().try_get_matches_from(typed) {
                    panic!("{path:?}: penstock {example}: {error}");
                }
                let own = path.join(" ");
                assert!(path.is_empty() || example.contains(&own), "{path:?}: {example}");
            }
        }
    }
}

/// The lines of a part of a page.
fn part<'a>(page: &'a str, title: &str) -> Vec<&'a str> {
    page.lines()
        .skip_while(|line| *line != title)
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect()
}

#[test]
fn every_file_and_every_variable_of_a_flag_is_in_its_table() {
    for path in all() {
        let page = help(&path, "--help");
        let mut at = &command();
        for name in &path {
            at = at.find_subcommand(name).expect("it is there");
        }
        let said: Vec<_> = at.get_arguments().filter(|it| !it.is_hide_set()).collect();
        let value = |it: &clap::Arg| {
            it.get_value_names()
                .and_then(<[_]>::first)
                .map(ToString::to_string)
        };
        for argument in &said {
            if let Some(variable) = argument.get_env().and_then(std::ffi::OsStr::to_str) {
                let table = part(&page, "Environment:").concat();
                assert!(table.contains(variable), "{path:?} lacks {variable}:\n{page}");
            }
            if argument.get_value_parser().type_id() != std::any::TypeId::of::<std::path::PathBuf>() {
                continue;
            }
            let name = value(argument).expect("a flag with a path says what it is");
            let alone = said.iter().filter(|it| value(it).as_ref() == Some(&name)).count() == 1;
            let begin = match argument.get_long() {
                Some(long) if !alone => format!("  {name} of --{long} "),
                Some(_) | None => format!("  {name} "),
            };
            let table = part(&page, "Files:");
            let found = table.iter().any(|line| line.starts_with(&begin));
            assert!(found, "{path:?} lacks {begin}:\n{page}");
        }
    }
}

#[test]
fn commands_and_flags_say_what_they_are() {
    for path in all() {
        let mut at = &command();
        for name in &path {
            at = at.find_subcommand(name).expect("it is there");
        }
        assert!(path.is_empty() || at.get_about().is_some(), "{path:?}");
        for argument in at.get_arguments().filter(|it| !it.is_hide_set()) {
            assert!(argument.get_help().is_some(), "{path:?} {}", argument.get_id());
        }
    }
}

#[test]
fn nothing_is_a_usage_error_and_unknown_things_are_too() {
    for typed in [
        &["penstock"][..],
        &["penstock", "model"],
        &["penstock", "nothing"],
        &["penstock", "up", "--nothing"],
    ] {
        let error = command().try_get_matches_from(typed).expect_err("refused");
        assert_eq!(error.exit_code(), 2, "{typed:?}");
        assert!(error.to_string().contains("Usage:"), "{typed:?}: {error}");
    }
}

#[test]
fn every_shell_completes_every_command() {
    for shell in clap_complete::Shell::value_variants() {
        let script = super::completions(*shell);
        for path in all().iter().filter(|it| it.len() == 1) {
            assert!(script.contains(&path[0]), "{shell}: {path:?}");
        }
    }
}
