//! The module and version that a program in Go was built from, which the Go linker writes into it.

use std::path::Path;

/// The Go module of a program's main package and its version, for example `example.org/router v1.2.0`; `None` if the program was not
/// built by Go from a released module.
#[must_use]
pub fn module_of(program: &Path) -> Option<String> {
    find(&std::fs::read(program).ok()?)
}

/// Finds the build information: a line `path`, a tab and the main package, then one line `mod` or `dep` for each module with its path and
/// version.
fn find(program: &[u8]) -> Option<String> {
    const MARK: &[u8] = b"path\t";
    let mut rest = program;
    loop {
        let start = rest.windows(MARK.len()).position(|bytes| bytes == MARK)? + MARK.len();
        rest = rest.get(start..)?;
        // The text ends with bytes that are not part of a line.
        let mut lines = rest.split(|byte| *byte == b'\n').map_while(|line| str::from_utf8(line).ok());
        let package = lines.next()?;
        let found = lines
            .map(|line| line.split('\t').collect::<Vec<_>>())
            .take_while(|fields| matches!(fields.first(), Some(&("mod" | "dep" | "=>"))))
            .find_map(|fields| {
                let (module, version) = (*fields.get(1)?, *fields.get(2)?);
                let inside = package.strip_prefix(module)?;
                let is_module = inside.is_empty() || inside.starts_with('/');
                (is_module && version.starts_with('v')).then(|| format!("{module} {version}"))
            });
        if found.is_some() {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(information: &str) -> Vec<u8> {
        let mut bytes = b"\x7fELF path\tother\n\xff\x00".to_vec();
        bytes.extend(information.as_bytes());
        bytes.extend(b"\n\xf9\x32\x43\x31\x00 more");
        bytes
    }

    #[test]
    fn the_main_module_has_its_version() {
        let text = "path\tx.org/router/cmd/epp\nmod\tx.org/router\tv1.2.0\th1:abc=\ndep\tx.org/other\tv0.1.0\th1:def=\n";
        assert_eq!(find(&program(text)).as_deref(), Some("x.org/router v1.2.0"));
    }

    #[test]
    fn a_program_of_a_dependency_has_the_dependencys_version() {
        let text = "path\tx.org/router/cmd/epp\nmod\tbench\t(devel)\t\ndep\tx.org/rout\tv9.0.0\th1:a=\ndep\tx.org/router\tv1.5.0\th1:b=\n";
        assert_eq!(find(&program(text)).as_deref(), Some("x.org/router v1.5.0"));
    }

    #[test]
    fn other_programs_and_unreleased_modules_have_none() {
        assert_eq!(find(b"\x7fELF nothing here"), None);
        let unreleased = "path\tx.org/router/cmd/epp\nmod\tx.org/router\t(devel)\t\n";
        assert_eq!(find(&program(unreleased)), None);
    }
}
