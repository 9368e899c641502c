//! Rules of the repository that the compiler does not check: imports between crates and between files, length of files and
//! functions, no panic paths in the filter, and pages that match the code.

mod crates;
mod cycles;
mod module_tree;
mod pages;
mod panics;
mod sizes;
mod source;
