//! Studies that need no process and no socket, one a program in `bin`, and what all studies share to write figures and pages.

pub mod figures;
pub mod markdown;
pub mod parallel;
pub mod report;
