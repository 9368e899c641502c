//! The worker from outside: calls in, decisions out, with a clock and a companion that are the test's.

mod exchange;
mod harness;
mod session;
