//! The simulator beside the real gateway: the same requests at the same times, once in virtual time and once through Envoy, filter and
//! companion in front of `penstock mock-server`s with the same parameters.
//!
//! `just bench outcome` runs it. Usage: `outcome_gateway [--out DIR]` writes the figures into outcome.json in DIR; six minutes.

mod cell;
mod figures;
mod real;

use std::path::PathBuf;
use std::process::ExitCode;

use penstock_studies::figures::keep;
use penstock_tests::{binary, run};
use serde_json::Value;

use crate::cell::CELLS;

fn main() -> ExitCode {
    let mut out = binary::workspace().join("docs/bench");
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--out", Some(folder)) => out = PathBuf::from(folder),
            _ => {
                eprintln!("invalid argument: {word}\nusage: outcome_gateway [--out DIR]");
                return ExitCode::from(2);
            }
        }
    }
    run(async {
        let mut rows = Vec::new();
        for cell in CELLS {
            let row = cell.measure().await;
            println!("{row:#}");
            rows.push(row);
        }
        keep(&out.join("outcome.json"), "gateway", Value::from(rows));
    });
    ExitCode::SUCCESS
}
