//! The autopilot by itself: what it learns of servers whose parameters are known, and what it says.

mod follows;
mod kept;
mod learns;
mod odd;
mod probes;
mod truth;
