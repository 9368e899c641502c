//! The commands and files of a page: what a reader types, and in which order.
//!
//! A block ```` ```console ```` has commands, which begin with `$ ` and continue after a backslash, each followed by its output. A block
//! ```` ```yaml ```` or ```` ```sh ```` is a file, whose name its first line says: `# penstock.yaml`. A page has no other code.

use std::fmt;

/// What the reader does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Writes a file.
    File {
        /// The file's name in the present folder.
        name: String,
        /// All of it.
        content: String,
        /// The line of the page, from 1.
        line: usize,
    },
    /// Runs a command.
    Command {
        /// What is typed after the prompt.
        text: String,
        /// The lines that the page shows as its output.
        shown: Vec<String>,
        /// The line of the page, from 1.
        line: usize,
    },
}

/// A page's steps in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Everything that the reader does.
    pub(crate) steps: Vec<Step>,
    /// The number of commands: lines of the page that begin with a prompt, wherever they are.
    pub(crate) prompts: usize,
}

impl Step {
    /// The line of the page, from 1.
    pub(crate) fn line(&self) -> usize {
        match self {
            Self::File { line, .. } | Self::Command { line, .. } => *line,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, .. } => write!(f, "file {name}"),
            Self::Command { text, .. } => write!(f, "$ {}", text.trim_end()),
        }
    }
}

/// The block that a line belongs to.
enum Place {
    Prose,
    Console,
    File { line: usize, content: String },
}

impl Page {
    /// Reads a page.
    ///
    /// # Errors
    /// The line and the reason, if the page has code that is neither a command nor a file with a name.
    pub(crate) fn parse(page: &str) -> Result<Self, String> {
        let mut steps = Vec::new();
        let mut place = Place::Prose;
        for (index, text) in page.lines().enumerate() {
            let line = index + 1;
            let wrong = |why: &str| format!("{line}: {why}: {text}");
            let fence = text.trim_start().strip_prefix("```");
            match (&mut place, fence) {
                (Place::Prose, Some("console")) => place = Place::Console,
                (Place::Prose, Some("yaml" | "sh")) => {
                    let content = String::new();
                    place = Place::File { line, content };
                }
                (Place::Prose, Some(_)) => return Err(wrong("a block is console, yaml or sh")),
                (Place::Prose, None) if text.starts_with("    ") || text.starts_with('\t') => {
                    return Err(wrong("an indented block would not run"));
                }
                (Place::Prose, None) => {}
                (Place::Console, Some("")) => place = Place::Prose,
                (Place::Console, _) => console(text, line, &mut steps).map_err(wrong)?,
                (Place::File { line, content }, Some("")) => {
                    steps.push(file(*line, content)?);
                    place = Place::Prose;
                }
                (Place::File { content, .. }, _) => content.extend([text, "\n"]),
            }
        }
        if !matches!(place, Place::Prose) {
            return Err("the last block doesn't end".into());
        }
        let prompts = page.lines().filter(|text| text.trim_start().starts_with("$ ")).count();
        let commands = steps.iter().filter(|step| matches!(step, Step::Command { .. })).count();
        if commands != prompts {
            return Err(format!("1: the page has {prompts} prompts, and {commands} of them are commands"));
        }
        Ok(Self { steps, prompts })
    }
}

/// Adds a line of a console to the commands.
fn console(line_text: &str, line: usize, steps: &mut Vec<Step>) -> Result<(), &'static str> {
    if let Some(command) = line_text.strip_prefix("$ ") {
        steps.push(Step::Command { text: format!("{command}\n"), shown: Vec::new(), line });
        return Ok(());
    }
    match steps.last_mut() {
        Some(Step::Command { text, shown, .. }) => {
            if shown.is_empty() && text.ends_with("\\\n") {
                text.extend([line_text, "\n"]);
            } else {
                shown.push(line_text.to_owned());
            }
            Ok(())
        }
        Some(Step::File { .. }) | None => Err("output without a command"),
    }
}

/// The file of a block. Its first line is a comment that begins with its name.
fn file(line: usize, content: &str) -> Result<Step, String> {
    let name = content.strip_prefix("# ").and_then(|comment| comment.split_whitespace().next());
    match name {
        Some(name) if name.contains('.') => {
            Ok(Step::File { name: name.trim_end_matches(':').to_owned(), content: content.to_owned(), line })
        }
        Some(_) | None => {
            Err(format!("{line}: the block's first line doesn't name its file: # penstock.yaml"))
        }
    }
}

#[test]
fn page_without_a_runnable_form_is_rejected() {
    for page in [
        "```bash\nls\n```\n",
        "```\nls\n```\n",
        "text\n\n    ls\n",
        "```console\noutput\n```\n",
        "```yaml\npools: []\n```\n",
        "```console\n$ ls\n",
        "text\n$ ls\n",
        "```console\n$ ls\n ls\n  $ ls\n```\n",
        "```sh\n# a.sh\n$ ls\n```\n",
    ] {
        assert!(Page::parse(page).is_err(), "{page}");
    }
}

#[test]
fn commands_files_and_output_are_told_apart() {
    let text =
        "Text `$ not`.\n```console\n$ a \\\n   b\none\n\ntwo\n$ c &\n```\n```sh\n# d.sh: does\necho\n```\n";
    let page = Page::parse(text).expect("a page");
    let command = |text: &str, shown: &[&str], line| Step::Command {
        text: text.into(),
        shown: shown.iter().map(|line| (*line).to_owned()).collect(),
        line,
    };
    let file = Step::File { name: "d.sh".into(), content: "# d.sh: does\necho\n".into(), line: 10 };
    let steps = vec![command("a \\\n   b\n", &["one", "", "two"], 3), command("c &\n", &[], 8), file];
    assert_eq!(page, Page { steps, prompts: 2 });
}
