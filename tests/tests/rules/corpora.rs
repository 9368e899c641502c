//! Runs the fuzzer's corpora again in every test run: `tests/fuzz/corpora`, one folder per target.

#[path = "../../fuzz/src/lib.rs"]
pub mod fuzz;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Bytes of all corpora in total.
const BYTES_MAX: u64 = 2 << 20;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpora")
}

/// The files of a target's corpus, sorted.
fn files(target: &str) -> Vec<PathBuf> {
    let folder = corpora().join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Runs every file of a target's corpus and lists the failing ones.
fn holds(target: &str) {
    let (name, run) =
        fuzz::TARGETS.into_iter().find(|(name, _)| *name == target).expect("a target of this name");
    let files = files(name);
    assert!(!files.is_empty(), "the corpus of {name} is empty");
    let failed: Vec<_> = files
        .iter()
        .filter(|file| {
            let input = fs::read(file).expect("a file of a corpus");
            catch_unwind(|| run(&input)).is_err()
        })
        .collect();
    assert!(failed.is_empty(), "{name} fails on {failed:#?}");
}

#[test]
fn bodies() {
    holds("body");
}

#[test]
fn responses() {
    holds("response");
}

#[test]
fn filter_frames() {
    holds("filter_frames");
}

#[test]
fn companion_frames() {
    holds("companion_frames");
}

#[test]
fn configurations() {
    holds("configuration");
}

#[test]
fn replays() {
    holds("replay");
}

#[test]
fn every_corpus_has_a_target_and_all_are_small() {
    let mut have: Vec<_> = fs::read_dir(corpora())
        .expect("the corpora")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    have.sort();
    let mut targets: Vec<_> = fuzz::TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    targets.sort();
    assert_eq!(have, targets);
    let bytes: u64 = targets
        .iter()
        .flat_map(|target| files(target))
        .map(|file| fs::metadata(file).expect("a file").len())
        .sum();
    assert!(bytes <= BYTES_MAX, "{bytes} bytes: `cargo fuzz cmin` makes them smaller");
}
