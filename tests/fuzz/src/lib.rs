//! Hostile input for everything that reads input of another process. Each module's `run` takes arbitrary bytes and
//! panics if an invariant is broken.
//!
//! libFuzzer calls these functions with generated input (`just fuzz`). `cargo test` calls them with every file of
//! `corpora`, so that fixed bugs stay fixed. Nothing here depends on a fuzzer.

pub mod body;
pub mod choices;
pub mod companion_frames;
pub mod configuration;

pub mod filter_frames;
pub mod frames;
pub mod host;
pub mod policies;
pub mod replay;
pub mod response;

/// A target: its name, which is also the folder of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 6] = [
    ("body", body::run),
    ("response", response::run),
    ("filter_frames", filter_frames::run),
    ("companion_frames", companion_frames::run),
    ("configuration", configuration::run),
    ("replay", replay::run),
];
