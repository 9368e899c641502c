//! Rules of the repository that the compiler does not check: imports between crates and between files, length of files and
//! functions, no panic paths in the filter, pages that match the code, generated code that is current, and readers that
//! survive what the fuzzer found.

pub mod corpora;
mod crates;
mod cycles;
mod generated;
mod module_tree;
mod pages;
mod panics;
mod rooms;
mod sizes;
mod source;
