//! The election: each rule by itself, and several candidates with one store under faults.

mod harness;
mod rules;
mod spreading;
mod world;
