//! What the crates of the service stand on: clocks, and tasks whose panic ends the companion.

pub mod clock;
pub mod essential;
