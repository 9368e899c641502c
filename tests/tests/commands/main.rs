//! The commands of the binary and the pages that show them.

mod commands;
mod demo;
mod import;
mod model_cli;
mod replay;
mod tutorial;
