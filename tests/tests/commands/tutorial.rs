//! docs/tutorial.md: every command of the page runs, in order, in one shell and an empty folder, and prints what the page shows.

mod output;
mod page;
mod ports;

use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_tests::{Process, binary, prometheus, run};
use tempfile::TempDir;
use tokio::process::Command;

use self::page::{Page, Step};
use self::ports::Ports;

/// How long the whole page may take on a busy machine. Not a performance limit.
const PAGE_MAX: Duration = Duration::from_secs(600);

/// Runs the steps' scripts in one shell, which keeps its variables, its folder and its background processes. Fails at the first script that
/// fails, and if a process still runs at the end; then everything that the scripts have started is killed.
const SHELL: &str = r#"
trap 'kill -KILL 0' EXIT
for script in "$STEPS"/*.sh; do
    . "$script" > "${script%.sh}.out" 2>&1
    code=$?
    echo $code > "${script%.sh}.code"
    [ $code = 0 ] || exit 1
done
[ -z "$(jobs -pr)" ] || { echo "still running: $(jobs -r)"; exit 1; }
trap - EXIT
"#;

#[test]
fn every_command_of_the_page_runs_and_prints_what_the_page_shows() {
    run(async {
        let page =
            Page::parse(&read("docs/tutorial.md")).unwrap_or_else(|why| panic!("docs/tutorial.md:{why}"));
        let ports = Ports::reserve();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let steps = folder.path().join("steps");
        std::fs::create_dir(&steps).expect("a folder");
        for (index, step) in page.steps.iter().enumerate() {
            let script = match step {
                Step::File { name, content, .. } => {
                    let source = steps.join(format!("{index:03}.file"));
                    std::fs::write(&source, ports.translate(content)).expect("write a file");
                    format!("cp '{}' {name}\n", source.display())
                }
                Step::Command { text, .. } => ports.translate(text),
            };
            std::fs::write(steps.join(format!("{index:03}.sh")), script).expect("write a file");
        }

        let mut shell = Process::start("the page", shell(&folder, &steps, &ports).await).await;
        let ended = shell.exit_within(PAGE_MAX).await;
        let (mut commands, mut differences) = (0, Vec::new());
        for (index, step) in page.steps.iter().enumerate() {
            let result = |kind| std::fs::read_to_string(steps.join(format!("{index:03}.{kind}")));
            let printed = result("out").unwrap_or_default();
            let code = result("code").unwrap_or_else(|_| "none".into());
            let place = format!("docs/tutorial.md:{}", step.line());
            let logs = || logs(&folder.path().join("clone/tutorial"));
            assert_eq!(code.trim(), "0", "{place}: exit code\n{step}\n{printed}\n{}", logs());
            if let Step::Command { shown, .. } = step {
                commands += 1;
                if let Err(why) = output::check(shown, &printed) {
                    differences.push(format!("{place}: {why}\n{step}\nthe command printed:\n{printed}"));
                }
            }
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        assert_eq!(commands, page.prompts, "commands that ran, and prompts of the page");
        assert!(ended.success(), "{ended}");
        assert!(!folder.path().join("clone/tutorial").exists(), "the page's last commands remove its folder");
    });
}

/// The shell of a reader whose clone has the pages, and whose PATH has the programs that the page asks for.
async fn shell(folder: &TempDir, steps: &Path, ports: &Ports) -> Command {
    let clone = folder.path().join("clone");
    let programs = folder.path().join("programs");
    std::fs::create_dir(&clone).expect("a folder");
    std::fs::create_dir(&programs).expect("a folder");
    link(&binary::workspace().join("docs"), &clone.join("docs"));
    link(binary::penstock(), &programs.join("penstock"));
    for name in ["prometheus", "promtool"] {
        let program = tokio::task::spawn_blocking(move || prometheus::program(name)).await;
        link(&program.expect("a program"), &programs.join(name));
    }
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&others)));
    let mut command = Command::new("bash");
    command
        .args(["-c", SHELL])
        .current_dir(clone)
        .env("STEPS", steps)
        .env("PATH", path.expect("a PATH"))
        .envs(ports.variables());
    command
}

fn link(file: &Path, name: &Path) {
    std::os::unix::fs::symlink(file, name).expect("a link");
}

fn read(path: &str) -> String {
    std::fs::read_to_string(binary::workspace().join(path)).expect("a page")
}

/// The ends of the logs that the page's processes have written.
fn logs(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let logs: Vec<PathBuf> = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "log"))
        .collect();
    let shown = logs.iter().map(|path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(30)..].join("\n");
        format!("{}:\n{end}\n", path.display())
    });
    shown.collect()
}
