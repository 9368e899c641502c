//! The modules of one crate and the imports between their files, read with `syn`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use crate::source::read;

/// Re-exports that are followed from one module to the next; real chains are short.
const REEXPORTS_MAX: usize = 8;

/// A module's path below its crate, such as `["tree", "drr"]`.
type ModulePath = Vec<String>;

/// One file of a crate.
struct Module {
    /// Relative to the crate's source folder.
    file: PathBuf,
    /// Other modules can name it through its parent.
    is_private: bool,
    /// Names that `use` brings into the module, with the paths they stand for.
    imported: BTreeMap<String, Vec<String>>,
    /// Every path in the module that starts at `crate`, `self`, `super` or a child module.
    used: BTreeSet<Vec<String>>,
}

/// All modules of one crate.
pub(crate) struct ModuleTree {
    modules: BTreeMap<ModulePath, Module>,
}

impl ModuleTree {
    /// Reads a crate from its root file, without modules under `#[cfg(test)]`.
    pub(crate) fn of_crate(root_file: &Path) -> Self {
        let mut tree = Self { modules: BTreeMap::new() };
        let source = root_file.parent().expect("a file lies in a folder");
        tree.add(source, root_file, Vec::new(), false);
        tree
    }

    fn add(&mut self, source: &Path, file: &Path, path: ModulePath, is_private: bool) {
        let syntax =
            syn::parse_file(&read(file)).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut collector = Collector::default();
        collector.visit_file(&syntax);
        let folder = match file.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "main.rs" | "mod.rs") => file.parent().expect("a folder").to_path_buf(),
            _ => file.with_extension(""),
        };
        for (child, is_private) in &collector.children {
            let candidates = [folder.join(format!("{child}.rs")), folder.join(child).join("mod.rs")];
            if let Some(child_file) = candidates.iter().find(|candidate| candidate.is_file()) {
                let mut child_path = path.clone();
                child_path.push(child.clone());
                self.add(source, child_file, child_path, *is_private);
            }
        }
        let module = Module {
            file: file.strip_prefix(source).expect("below the source folder").to_path_buf(),
            is_private,
            imported: collector.imported,
            used: collector.used,
        };
        self.modules.insert(path, module);
    }

    /// The module that defines what `path`, written in module `from`, names; `None` for other crates.
    fn defining(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let mut module: ModulePath = from.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                module.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    module.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                let mut child = module.clone();
                child.push(first.to_owned());
                if !self.modules.contains_key(&child) {
                    return None;
                }
            }
        }
        while let Some(name) = rest.first() {
            let mut child = module.clone();
            child.push(name.clone());
            if self.modules.contains_key(&child) {
                module = child;
                rest = &rest[1..];
                continue;
            }
            if depth < REEXPORTS_MAX
                && let Some(target) = self.modules.get(&module).and_then(|module| module.imported.get(name))
            {
                let mut target = target.clone();
                target.extend_from_slice(&rest[1..]);
                return self.defining(&module, &target, depth + 1).or(Some(module));
            }
            break;
        }
        Some(module)
    }

    /// Which file uses which; a parent and its private child do not count.
    fn imports(&self) -> BTreeMap<&ModulePath, BTreeSet<ModulePath>> {
        let mut imports = BTreeMap::new();
        for (path, module) in &self.modules {
            let mut targets: BTreeSet<ModulePath> = BTreeSet::new();
            for used in module.used.iter().chain(module.imported.values()) {
                if let Some(target) = self.defining(path, used, 0)
                    && target != *path
                    && !self.is_parent_and_private_child(path, &target)
                {
                    targets.insert(target);
                }
            }
            imports.insert(path, targets);
        }
        imports
    }

    fn is_parent_and_private_child(&self, one: &[String], other: &[String]) -> bool {
        let (parent, child) = if one.len() < other.len() { (one, other) } else { (other, one) };
        child.len() == parent.len() + 1
            && child.starts_with(parent)
            && self.modules.get(child).is_some_and(|module| module.is_private)
    }

    /// Groups of files that import one another, each as its files, sorted.
    pub(crate) fn cycles(&self) -> Vec<Vec<PathBuf>> {
        let imports = self.imports();
        let reachable: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
            imports.keys().map(|start| (*start, reachable(&imports, start))).collect();
        let mut grouped = BTreeSet::new();
        let mut cycles = Vec::new();
        for start in imports.keys().copied() {
            if grouped.contains(start) || !reachable[start].contains(start) {
                continue;
            }
            let group: BTreeSet<&ModulePath> =
                reachable[start].iter().copied().filter(|other| reachable[other].contains(start)).collect();
            cycles.push(group.iter().map(|path| self.modules[*path].file.clone()).collect());
            grouped.extend(group);
        }
        cycles
    }
}

fn reachable<'a>(
    imports: &'a BTreeMap<&'a ModulePath, BTreeSet<ModulePath>>,
    start: &ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let mut found = BTreeSet::new();
    let mut open = vec![start];
    while let Some(path) = open.pop() {
        for target in &imports[path] {
            if found.insert(target) {
                open.push(target);
            }
        }
    }
    found
}

/// What one file declares and uses.
#[derive(Default)]
struct Collector {
    /// Child modules in files of their own, and whether each is private.
    children: Vec<(String, bool)>,
    imported: BTreeMap<String, Vec<String>>,
    used: BTreeSet<Vec<String>>,
}

impl Collector {
    fn use_tree(&mut self, prefix: &[String], tree: &syn::UseTree) {
        let mut path = prefix.to_vec();
        match tree {
            syn::UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.use_tree(&path, &inner.tree);
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                if let Some(last) = path.last().cloned() {
                    self.imported.insert(last, path);
                }
            }
            syn::UseTree::Name(name) => {
                path.push(name.ident.to_string());
                self.imported.insert(name.ident.to_string(), path);
            }
            syn::UseTree::Rename(rename) => {
                path.push(rename.ident.to_string());
                self.imported.insert(rename.rename.to_string(), path);
            }
            syn::UseTree::Glob(_) => {
                self.used.insert(path);
            }
            syn::UseTree::Group(group) => {
                for item in &group.items {
                    self.use_tree(&path, item);
                }
            }
        }
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test_only(&item.attrs) {
            return;
        }
        if item.content.is_none() {
            let is_private = matches!(item.vis, syn::Visibility::Inherited);
            self.children.push((item.ident.to_string(), is_private));
        }
        visit::visit_item_mod(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test_only(&item.attrs) {
            self.use_tree(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string());
            self.used.insert(segments.collect());
        }
        visit::visit_path(self, path);
    }
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}
