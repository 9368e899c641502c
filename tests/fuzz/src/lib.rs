//! Hostile input for everything that reads what others wrote: each module's `run` takes arbitrary bytes, and panics when
//! something that must hold doesn't.
//!
//! libFuzzer calls these with what it makes up (`just fuzz`); `cargo test` calls them with every file of `corpora`, so that
//! what was found once stays mended. Nothing here depends on a fuzzer.

pub mod body;
pub mod companion_frames;
pub mod configuration;
pub mod dice;
pub mod filter_frames;
pub mod frames;
pub mod host;
pub mod policies;
pub mod replay;
pub mod response;

/// A target: its name, which is also its corpus' folder, and what it runs.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 6] = [
    ("body", body::run),
    ("response", response::run),
    ("filter_frames", filter_frames::run),
    ("companion_frames", companion_frames::run),
    ("configuration", configuration::run),
    ("replay", replay::run),
];
