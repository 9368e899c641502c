//! The filter's WebAssembly module, which is part of this binary.
//!
//! Envoy loads the module from a path, so it is written to a file: under its digest into a cache folder, or to the path
//! of `penstock filter --out FILE`.

use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher13;

/// The module's bytes.
pub static MODULE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/penstock_filter.wasm"));

/// Flags of `penstock filter`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// The module can't be written.
#[derive(Debug, thiserror::Error)]
#[error("the filter can't be written to {path}: {why}", path = path.display())]
pub struct Error {
    path: PathBuf,
    why: io::Error,
}

/// The module's SHA-256 in lower case hex, by which Envoy checks a module that it fetches.
#[must_use]
pub fn sha256() -> String {
    let digest = Sha256::digest(MODULE);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file name that changes with the module's content, so that an upgrade never changes the file of a running Envoy.
#[must_use]
pub fn file_name() -> String {
    let mut hasher = SipHasher13::new_with_keys(0, 0);
    hasher.write(MODULE);
    format!("penstock-filter-{:016x}.wasm", hasher.finish())
}

/// Writes the module to `path` atomically: a reader never sees an incomplete file.
///
/// # Errors
/// When the folder doesn't exist or can't be written to.
pub fn write_to(path: &Path) -> Result<(), Error> {
    let failed = |why| Error { path: path.to_owned(), why };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".penstock-filter").tempfile_in(folder).map_err(failed)?;
    io::Write::write_all(&mut file, MODULE).map_err(failed)?;
    readable_by_all(file.as_file()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Writes the module to [`file_name`] in `folder`, unless it is there. Creates the folder if needed.
///
/// # Errors
/// When the folder can't be created or written to.
pub fn cached_in(folder: &Path) -> Result<PathBuf, Error> {
    let path = folder.join(file_name());
    if fs::read(&path).is_ok_and(|existing| existing == MODULE) {
        return Ok(path);
    }
    fs::create_dir_all(folder).map_err(|why| Error { path: folder.to_owned(), why })?;
    write_to(&path)?;
    Ok(path)
}

/// Makes the file readable for Envoy, which may run as another user.
#[cfg(unix)]
fn readable_by_all(file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable_by_all(_file: &fs::File) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_carries_a_wasm_module() {
        assert!(MODULE.starts_with(b"\0asm\x01\0\0\0"));
    }

    #[test]
    fn a_file_is_replaced_atomically_without_leftovers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.wasm");
        fs::write(&path, "older").expect("written");
        write_to(&path).expect("written");
        assert_eq!(fs::read(&path).expect("there"), MODULE);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        let message = write_to(&folder.path().join("absent/f.wasm")).expect_err("no folder").to_string();
        assert!(message.contains("absent/f.wasm"), "{message}");
    }

    #[test]
    fn a_damaged_copy_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("not/yet");
        let path = cached_in(&cache).expect("written");
        fs::write(&path, "damaged").expect("written");
        assert_eq!(cached_in(&cache).expect("written"), path);
        assert_eq!(fs::read(&path).expect("there"), MODULE);
    }
}
