//! One suite for all disciplines: each keeps what QUEUEING says of all of them, in either unit of cost, under strict
//! and weighted bands, with and without classes and a tree per model.

#[path = "../random/dice.rs"]
mod dice;
#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod keeps;
mod load;
