//! One suite for all disciplines: each keeps the common rules, in both cost units, with strict and weighted bands,
//! with and without classes, and with and without a tree per model.

mod fairness_bounds;
mod invariants;
mod load;
mod reloads;
