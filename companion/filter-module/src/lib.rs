//! The filter's modules, which are part of this binary: WebAssembly, and native code as an Envoy dynamic module.
//!
//! Envoy loads a module from a path, so it is written to a file: under its digest into a cache folder, or to the path
//! of `penstock filter --out FILE`.

use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{fs, io};

use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher13;

/// The WebAssembly module, decompressed at the first use.
static WASM: LazyLock<Vec<u8>> =
    LazyLock::new(|| decompress(include_bytes!(concat!(env!("OUT_DIR"), "/penstock_filter.wasm"))));
/// The native module; empty: this build has none.
static NATIVE: LazyLock<Vec<u8>> =
    LazyLock::new(|| decompress(include_bytes!(concat!(env!("OUT_DIR"), "/libpenstock_filter_native.so"))));

fn decompress(module: &[u8]) -> Vec<u8> {
    if module.is_empty() {
        return Vec::new();
    }
    miniz_oxide::inflate::decompress_to_vec(module).expect("invariant: the build script has compressed it")
}

/// What Envoy runs the filter as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// WebAssembly, in a sandbox
    #[default]
    Wasm,
    /// An Envoy dynamic module: native code, faster, for Envoy 1.39 and later on Linux
    Native,
}

/// Flags of `penstock filter`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Write the dynamic module, native code for Envoy 1.39 and later on Linux, instead of the WebAssembly module
    #[arg(long)]
    pub native: bool,
}

impl Args {
    /// The module to write.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        if self.native { Kind::Native } else { Kind::Wasm }
    }
}

/// Why there is no file with the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be written.
    #[error("the filter can't be written to {path}: {why}", path = path.display())]
    Written {
        /// Its path.
        path: PathBuf,
        /// The cause.
        why: io::Error,
    },
    /// The binary was built without the native module.
    #[error(
        "this build of Penstock has no native filter, which needs Linux and the feature `native-filter`; use the WebAssembly filter"
    )]
    NoNative,
}

/// A module's SHA-256 in lower case hex, by which Envoy checks a module that it fetches.
#[must_use]
pub fn sha256(module: &[u8]) -> String {
    let digest = Sha256::digest(module);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Kind {
    /// The module's bytes.
    ///
    /// # Errors
    /// When this build lacks the module.
    pub fn bytes(self) -> Result<&'static [u8], Error> {
        let bytes: &[u8] = match self {
            Self::Wasm => &WASM,
            Self::Native => &NATIVE,
        };
        if bytes.is_empty() { Err(Error::NoNative) } else { Ok(bytes) }
    }

    /// A file name that changes with the module's content, so that an upgrade never changes the file of a running Envoy.
    ///
    /// # Errors
    /// As [`Self::bytes`].
    pub fn file_name(self) -> Result<String, Error> {
        let mut hasher = SipHasher13::new_with_keys(0, 0);
        hasher.write(self.bytes()?);
        let ending = match self {
            Self::Wasm => "wasm",
            Self::Native => "so",
        };
        Ok(format!("penstock-filter-{:016x}.{ending}", hasher.finish()))
    }

    /// Writes the module to `path` atomically: a reader never sees an incomplete file.
    ///
    /// # Errors
    /// As [`Self::bytes`], and when the folder doesn't exist or can't be written to.
    pub fn write_to(self, path: &Path) -> Result<(), Error> {
        let bytes = self.bytes()?;
        let failed = |why| Error::Written { path: path.to_owned(), why };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut file =
            tempfile::Builder::new().prefix(".penstock-filter").tempfile_in(folder).map_err(failed)?;
        io::Write::write_all(&mut file, bytes).map_err(failed)?;
        readable_by_all(file.as_file()).map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Writes the module to [`Self::file_name`] in `folder`, unless it is there. Creates the folder if needed.
    ///
    /// # Errors
    /// As [`Self::bytes`], and when the folder can't be created or written to.
    pub fn cached_in(self, folder: &Path) -> Result<PathBuf, Error> {
        let (path, bytes) = (folder.join(self.file_name()?), self.bytes()?);
        if fs::read(&path).is_ok_and(|existing| existing == bytes) {
            return Ok(path);
        }
        fs::create_dir_all(folder).map_err(|why| Error::Written { path: folder.to_owned(), why })?;
        self.write_to(&path)?;
        Ok(path)
    }
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
        assert!(Kind::Wasm.bytes().expect("always there").starts_with(b"\0asm\x01\0\0\0"));
    }

    #[test]
    fn the_binary_carries_a_native_module_if_it_was_built_with_one() {
        let bytes = Kind::Native.bytes();
        if cfg!(all(feature = "native", target_os = "linux")) {
            assert!(bytes.expect("built with it").starts_with(b"\x7fELF"));
        } else {
            assert!(bytes.expect_err("built without it").to_string().contains("native-filter"));
        }
    }

    #[test]
    fn a_file_is_replaced_atomically_without_leftovers() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f.wasm");
        fs::write(&path, "older").expect("written");
        Kind::Wasm.write_to(&path).expect("written");
        assert_eq!(fs::read(&path).expect("there"), *WASM);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        let message =
            Kind::Wasm.write_to(&folder.path().join("absent/f.wasm")).expect_err("no folder").to_string();
        assert!(message.contains("absent/f.wasm"), "{message}");
    }

    #[test]
    fn a_damaged_copy_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("not/yet");
        let path = Kind::Wasm.cached_in(&cache).expect("written");
        fs::write(&path, "damaged").expect("written");
        assert_eq!(Kind::Wasm.cached_in(&cache).expect("written"), path);
        assert_eq!(fs::read(&path).expect("there"), *WASM);
    }
}
