//! The modules of one crate and the imports between their files, read with `syn`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};

use crate::source::read;

/// Re-exports that are followed from one module to the next; real chains are short.
const REEXPORTS_MAX: usize = 8;

/// A module's path below its crate, such as `["tree", "drr"]`.
type ModulePath = Vec<String>;

/// One module of a crate.
struct Module {
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
        tree.add(root_file, Vec::new(), false);
        tree
    }

    fn add(&mut self, file: &Path, path: ModulePath, is_private: bool) {
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
                self.add(child_file, child_path, *is_private);
            }
        }
        let module = Module { is_private, imported: collector.imported, used: collector.used };
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

    /// Which module uses which.
    fn imports(&self) -> BTreeMap<&ModulePath, BTreeSet<ModulePath>> {
        let targets = |path: &ModulePath, module: &Module| {
            let used = module.used.iter().chain(module.imported.values());
            let targets = used.filter_map(|used| self.defining(path, used, 0));
            targets.filter(|target| target != path).collect()
        };
        self.modules.iter().map(|(path, module)| (path, targets(path, module))).collect()
    }

    /// Groups of modules that import one another, each as its names, sorted.
    ///
    /// Every module that has children is a level of its own: its nodes are the module's own file, and each child together with all that is
    /// below the child. So an import from deep inside one subject into another counts as one of the subject. A private child belongs to its
    /// parent, so imports between these two are none of this level.
    pub(crate) fn cycles(&self) -> Vec<Vec<String>> {
        let imports = self.imports();
        let parents: BTreeSet<&[String]> =
            self.modules.keys().filter_map(|path| path.split_last()).map(|(_, parent)| parent).collect();
        parents.into_iter().flat_map(|parent| groups(&self.level(parent, &imports))).collect()
    }

    /// Which modules of the crate's root use which, each with all that is below it.
    pub(crate) fn top_level(&self) -> BTreeMap<String, BTreeSet<String>> {
        let names = |paths: BTreeSet<ModulePath>| paths.into_iter().flatten().collect();
        let level = self.level(&[], &self.imports()).into_iter();
        level.filter_map(|(path, targets)| Some((path.into_iter().next()?, names(targets)))).collect()
    }

    /// The imports between the nodes of one level.
    fn level(
        &self,
        parent: &[String],
        imports: &BTreeMap<&ModulePath, BTreeSet<ModulePath>>,
    ) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let node = |path: &ModulePath| {
            path.starts_with(parent).then(|| path[..path.len().min(parent.len() + 1)].to_vec())
        };
        let is_private = |node: &ModulePath| node.len() > parent.len() && self.modules[node].is_private;
        let mut level: BTreeMap<ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
        for (path, targets) in imports {
            let Some(from) = node(path) else { continue };
            let to = level.entry(from.clone()).or_default();
            to.extend(targets.iter().filter_map(node).filter(|to| {
                let is_between_parent_and_child = from == parent || to == parent;
                *to != from && !(is_between_parent_and_child && (is_private(&from) || is_private(to)))
            }));
        }
        level
    }
}

/// A module's path as Rust has it.
fn shown(path: &[String]) -> String {
    path.iter().fold("crate".to_owned(), |path, name| path + "::" + name)
}

/// The groups of nodes that reach one another, each as its names.
fn groups(imports: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<Vec<String>> {
    let reachable: BTreeMap<_, _> = imports.keys().map(|start| (start, reachable(imports, start))).collect();
    let mut grouped = BTreeSet::new();
    let mut groups = Vec::new();
    for start in imports.keys() {
        if grouped.contains(start) || !reachable[start].contains(start) {
            continue;
        }
        let group: BTreeSet<_> =
            reachable[start].iter().copied().filter(|other| reachable[*other].contains(start)).collect();
        groups.push(group.iter().map(|path| shown(path)).collect());
        grouped.extend(group);
    }
    groups
}

fn reachable<'a>(
    imports: &'a BTreeMap<ModulePath, BTreeSet<ModulePath>>,
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tempfile::TempDir;

    use super::*;

    /// The cycles of a crate with these files.
    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = TempDir::new().expect("a folder");
        for (name, text) in files {
            let path: PathBuf = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            std::fs::write(path, text).expect("written");
        }
        ModuleTree::of_crate(&folder.path().join("lib.rs")).cycles()
    }

    #[test]
    fn a_circle_through_private_children_is_one_of_their_parents() {
        let found = cycles(&[
            ("lib.rs", "mod http; mod reload;"),
            ("http.rs", "mod admin; mod status; pub(crate) use self::admin::Admin;"),
            ("http/admin.rs", "pub(crate) struct Admin;"),
            ("http/status.rs", "use crate::reload::Handle;"),
            ("reload.rs", "mod reloader; pub(crate) struct Handle;"),
            ("reload/reloader.rs", "fn admin() -> crate::http::Admin { todo!() }"),
        ]);
        assert_eq!(found, [["crate::http", "crate::reload"]]);
    }

    #[test]
    fn a_circle_is_found_at_any_level() {
        let found = cycles(&[
            ("lib.rs", "mod outer;"),
            ("outer.rs", "mod one; mod two; mod three;"),
            ("outer/one.rs", "mod inner; pub(super) struct One;"),
            ("outer/one/inner.rs", "use super::super::two::Two;"),
            ("outer/two.rs", "use super::three::Three; pub(super) struct Two;"),
            ("outer/three.rs", "use super::one::One; pub(super) struct Three;"),
        ]);
        assert_eq!(found, [["crate::outer::one", "crate::outer::three", "crate::outer::two"]]);
    }

    #[test]
    fn a_parent_and_its_private_child_are_no_circle_but_a_parent_and_a_public_one_are() {
        let cycles_with = |declaration: &str| {
            cycles(&[
                ("lib.rs", "mod parent;"),
                ("parent.rs", &format!("{declaration} use self::child::Child; pub(crate) struct Parent;")),
                ("parent/child.rs", "mod grandchild; use super::Parent; pub(super) struct Child;"),
                ("parent/child/grandchild.rs", "use super::super::Parent;"),
            ])
        };
        assert_eq!(cycles_with("mod child;"), Vec::<Vec<String>>::new());
        assert_eq!(cycles_with("pub(crate) mod child;"), [["crate::parent", "crate::parent::child"]]);
    }
}
