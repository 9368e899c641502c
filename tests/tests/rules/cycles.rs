//! No file imports a file that imports it, directly or over others. A parent and its private child may.

use crate::crates::{directory, metadata, own};
use crate::module_tree::ModuleTree;
use crate::source::shown;

#[test]
fn files_import_without_cycles() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in own(&metadata) {
        let source = directory(package).join("src");
        for root_file in ["lib.rs", "main.rs"].map(|name| source.join(name)) {
            if !root_file.is_file() {
                continue;
            }
            for cycle in ModuleTree::of_crate(&root_file).cycles() {
                let files: Vec<_> = cycle.iter().map(|file| file.display().to_string()).collect();
                wrong.push(format!("{}: {}", shown(&source), files.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "import cycles between files:\n{}", wrong.join("\n"));
}
