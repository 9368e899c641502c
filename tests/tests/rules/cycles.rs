//! No module imports a module that imports it, directly or over others: neither the modules of a crate, nor those inside one of them. A
//! parent and its private child may.

use crate::crates::{directory, metadata, own};
use crate::module_tree::ModuleTree;
use crate::source::shown;

#[test]
fn modules_import_without_cycles() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in own(&metadata) {
        let source = directory(package).join("src");
        for root_file in ["lib.rs", "main.rs"].map(|name| source.join(name)) {
            if !root_file.is_file() {
                continue;
            }
            for cycle in ModuleTree::of_crate(&root_file).cycles() {
                wrong.push(format!("{}: {}", shown(&source), cycle.join(", ")));
            }
        }
    }
    assert!(wrong.is_empty(), "import cycles between modules:\n{}", wrong.join("\n"));
}
