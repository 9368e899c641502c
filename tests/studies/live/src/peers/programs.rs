//! The option `--peer-binary NAME=PATH,...`: the programs of other projects.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The programs that the command line names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// llm-d's endpoint picker, or that of the Gateway API Inference Extension, which it comes from.
    pub endpoint_picker: Option<PathBuf>,
    /// llm-d's model server without a model.
    pub simulator: Option<PathBuf>,
}

impl Programs {
    /// Reads the option's value and checks that each program can be started.
    ///
    /// # Errors
    /// A part that is not `NAME=PATH`, an unknown or repeated name, or a file that is missing or not executable.
    pub fn read(value: &str) -> Result<Self, String> {
        let mut programs = Self::default();
        for part in value.split(',') {
            let Some((name, path)) = part.split_once('=') else {
                return Err(format!("--peer-binary {part}: NAME=PATH is wanted; names are epp and sim"));
            };
            let program = match name {
                "epp" => &mut programs.endpoint_picker,
                "sim" => &mut programs.simulator,
                _ => return Err(format!("--peer-binary {name}: unknown; names are epp and sim")),
            };
            let path = executable(Path::new(path)).map_err(|why| format!("--peer-binary {part}: {why}"))?;
            if program.replace(path).is_some() {
                return Err(format!("--peer-binary {part}: {name} is named twice"));
            }
        }
        Ok(programs)
    }
}

/// The absolute path of a program, because a process of the benchmark may have another working directory.
fn executable(path: &Path) -> Result<PathBuf, String> {
    let path = path.canonicalize().map_err(|error| error.to_string())?;
    let about = path.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("not a file".to_owned());
    }
    if about.permissions().mode() & 0o111 == 0 {
        return Err("not executable; `chmod +x` makes it so".to_owned());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with an executable `picker`, an executable `simulator` and a `text` that is not executable.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, mode) in [("picker", 0o755), ("simulator", 0o700), ("text", 0o644)] {
            let file = folder.path().join(name);
            std::fs::write(&file, "").expect("write a file");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("set its mode");
        }
        folder
    }

    fn read(value: &str) -> Result<Programs, String> {
        let folder = folder();
        let root = folder.path().canonicalize().expect("it exists");
        let read = Programs::read(&value.replace("DIR", &root.to_string_lossy()));
        let relative = |path: PathBuf| path.strip_prefix(&root).expect("a path inside").to_owned();
        read.map(|programs| Programs {
            endpoint_picker: programs.endpoint_picker.map(relative),
            simulator: programs.simulator.map(relative),
        })
        .map_err(|why| why.replace(&*root.to_string_lossy(), "DIR"))
    }

    #[test]
    fn both_programs_are_read_in_any_order() {
        let both = Programs { endpoint_picker: Some("picker".into()), simulator: Some("simulator".into()) };
        assert_eq!(read("epp=DIR/picker,sim=DIR/simulator"), Ok(both.clone()));
        assert_eq!(read("sim=DIR/simulator,epp=DIR/picker"), Ok(both));
    }

    #[test]
    fn a_relative_path_becomes_absolute() {
        let name = "Cargo.toml";
        let error = executable(Path::new(name)).expect_err("a manifest is not executable");
        assert_eq!(error, "not executable; `chmod +x` makes it so");
        let folder = folder();
        let path = folder.path().join("x/../picker");
        std::fs::create_dir(folder.path().join("x")).expect("create a folder");
        let absolute = folder.path().canonicalize().expect("it exists").join("picker");
        assert_eq!(executable(&path), Ok(absolute));
    }

    #[test]
    fn each_mistake_has_its_message() {
        let cases = [
            ("", "--peer-binary : NAME=PATH is wanted; names are epp and sim"),
            ("epp", "--peer-binary epp: NAME=PATH is wanted; names are epp and sim"),
            ("picker=DIR/picker", "--peer-binary picker: unknown; names are epp and sim"),
            ("epp=DIR/absent", "--peer-binary epp=DIR/absent: No such file or directory (os error 2)"),
            ("epp=", "--peer-binary epp=: No such file or directory (os error 2)"),
            ("epp=DIR", "--peer-binary epp=DIR: not a file"),
            (
                "epp=DIR/picker,sim=DIR/text",
                "--peer-binary sim=DIR/text: not executable; `chmod +x` makes it so",
            ),
            ("epp=DIR/picker,epp=DIR/simulator", "--peer-binary epp=DIR/simulator: epp is named twice"),
        ];
        for (value, message) in cases {
            assert_eq!(read(value), Err(message.to_owned()), "{value}");
        }
    }
}
