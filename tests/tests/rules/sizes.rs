//! Files and functions stay short enough to be read, and each file states its purpose. The limits are wide: they shape no code.

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::source::{is_generated, is_test_file, read, root, rust_files, shown, without_tests};

/// Lines of a file, without its tests.
const FILE_LINES_MAX: usize = 1_000;

/// Lines of a function's body that hold code, outside tests.
const FUNCTION_LINES_MAX: usize = 100;

#[test]
fn every_file_is_short_and_states_its_purpose() {
    let mut wrong = Vec::new();
    for file in rust_files(&root()) {
        let text = read(&file);
        if is_generated(&text) {
            continue;
        }
        let lines = without_tests(&text).lines().count();
        if lines > FILE_LINES_MAX && !is_test_file(&file) {
            wrong.push(format!("{}: {lines} lines; the limit is {FILE_LINES_MAX}", shown(&file)));
        }
        if !text.starts_with("//! ") {
            wrong.push(format!(
                "{}: the first line is no `//!` line that states the file's purpose",
                shown(&file)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_function_is_short() {
    let mut wrong = Vec::new();
    for file in rust_files(&root()) {
        let text = read(&file);
        if is_generated(&text) || is_test_file(&file) {
            continue;
        }
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut functions = Functions { lines: text.lines().collect(), long: Vec::new() };
        functions.visit_file(&syntax);
        for (name, lines) in functions.long {
            wrong.push(format!(
                "{}: `{name}` has {lines} lines of code; the limit is {FUNCTION_LINES_MAX}",
                shown(&file)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

struct Functions<'text> {
    lines: Vec<&'text str>,
    long: Vec<(String, usize)>,
}

impl Functions<'_> {
    fn measure(&mut self, name: &syn::Ident, block: &syn::Block) {
        let (first, last) = (block.span().start().line, block.span().end().line);
        let body = self.lines.get(first..last.saturating_sub(1)).unwrap_or_default();
        let code = body
            .iter()
            .map(|line| line.trim())
            .filter(|line| !line.is_empty() && !line.starts_with("//"))
            .count();
        if code > FUNCTION_LINES_MAX {
            self.long.push((name.to_string(), code));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig.ident, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig.ident, &item.block);
        visit::visit_impl_item_fn(self, item);
    }
}
