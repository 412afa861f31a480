//! The layers of src/: no import circle between its folders, and arrows run down only, as
//! ARCHITECTURE.md draws them. Tests inside src/ may look anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// A module's path without `crate`; empty for lib.rs.
type Module = Vec<String>;
type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// From top to bottom. Each may import from those below it, and from those in its own row.
const LAYERS: [&[&str]; 14] = [
    &["rma"],
    &["plugin", "doctor"],
    &["connect"],
    &["transport"],
    &["process"],
    &["agent", "async_events"],
    &["stats", "watchdog"],
    &["split"],
    &["route"],
    &["control", "device"],
    &["housekeeping", "verbs"],
    &[
        "background",
        "config",
        "clock",
        "log",
        "nccl",
        "failover",
        "fork_guard",
        "grace",
        "operations",
        "state_lock",
        "element",
        "latest",
        "reach_file",
        "warned",
        "worker",
    ],
    &["error"],
    &["limits", "sync"],
];

#[test]
fn no_folders_of_src_import_each_other_in_a_circle() {
    let folder = |module: &Module| module.first().map(|first| vec![first.clone()]);
    let mut folders = Graph::new();
    for (from, targets) in Source::read().graph() {
        let Some(from) = folder(&from) else { continue };
        let others = targets.iter().filter_map(folder).filter(|to| *to != from);
        folders.entry(from.clone()).or_default().extend(others);
    }
    let circles: Vec<String> = circles(&folders).into_iter().map(|circle| words(&circle)).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}

#[test]
fn arrows_between_the_folders_of_src_run_down() {
    let graph = Source::read().graph();
    let floor = |module: &Module| {
        let top = module.first()?;
        LAYERS.iter().position(|layer| layer.contains(&top.as_str()))
    };
    let mut up = Vec::new();
    for (from, targets) in graph.iter().filter(|(from, _)| !from.is_empty()) {
        let here = floor(from).unwrap_or_else(|| panic!("{from:?} has no layer"));
        for to in targets.iter().filter(|to| to.first() != from.first()) {
            if floor(to).is_none_or(|there| there < here) {
                up.push(format!("{} -> {}", from.join("::"), to.join("::")));
            }
        }
    }
    assert!(up.is_empty(), "{up:#?}");
}

#[test]
fn a_circle_is_found() {
    let module = |name: &str| vec![name.to_owned()];
    let graph = Graph::from([
        (module("a"), BTreeSet::from([module("b")])),
        (module("b"), BTreeSet::from([module("c")])),
        (module("c"), BTreeSet::from([module("b")])),
    ]);
    assert_eq!(circles(&graph), [vec![module("b"), module("c")]]);
}

/// Every file of src/, without tests.
struct Source {
    files: BTreeMap<Module, syn::File>,
    /// What a module re-exports: the name there, and the full path of what it names.
    exports: BTreeMap<Module, Vec<(String, Module)>>,
}

impl Source {
    fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
        let mut files = BTreeMap::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(module) = module(&root, &path) {
                    let text = std::fs::read_to_string(&path).unwrap();
                    files.insert(module, syn::parse_file(&text).unwrap());
                }
            }
        }
        let mut source = Self { files, exports: BTreeMap::new() };
        for (module, file) in &source.files {
            let mut exports = Vec::new();
            for item in &file.items {
                if let Item::Use(item) = item
                    && !matches!(item.vis, Visibility::Inherited)
                {
                    exports.extend(paths(&item.tree).into_iter().filter_map(|path| {
                        let name = path.last()?.clone();
                        Some((name, source.absolute(module, path)?))
                    }));
                }
            }
            source.exports.insert(module.clone(), exports);
        }
        source
    }

    fn graph(&self) -> Graph {
        self.files.iter().map(|(module, file)| (module.clone(), self.imports(module, file))).collect()
    }

    /// The modules that a file refers to. A re-export is no reference: a file that imports it
    /// refers to the module that defines the item.
    fn imports(&self, module: &Module, file: &syn::File) -> BTreeSet<Module> {
        let mut found = References::default();
        found.visit_file(file);
        let resolved = found.0.into_iter().filter_map(|path| self.owner(self.absolute(module, path)?));
        // Everything is below lib.rs.
        resolved.filter(|owner| owner != module && !owner.is_empty()).collect()
    }

    /// A path from the crate's root; `None` if it leads out of the crate.
    fn absolute(&self, module: &Module, mut path: Module) -> Option<Module> {
        let mut base = module.clone();
        match path.first()?.as_str() {
            "crate" => return Some(path.split_off(1)),
            "self" => _ = path.remove(0),
            "super" => {
                while path.first().is_some_and(|part| part == "super") {
                    path.remove(0);
                    base.pop();
                }
            }
            child => {
                let child = [&base[..], &[child.to_owned()]].concat();
                if !self.files.contains_key(&child) {
                    return None;
                }
            }
        }
        base.extend(path);
        Some(base)
    }

    /// The module that has the item of this path.
    fn owner(&self, mut path: Module) -> Option<Module> {
        // Each round follows one re-export; no item is re-exported more often than the tree is
        // deep.
        for _ in 0..8 {
            let known = (0..=path.len()).rev().find(|n| self.files.contains_key(&path[..*n]))?;
            let Some(name) = path.get(known) else { return Some(path) };
            let exported = self.exports[&path[..known]].iter().find(|(export, _)| export == name);
            let Some((_, full)) = exported else { return Some(path[..known].to_vec()) };
            path = [&full[..], &path[known + 1..]].concat();
        }
        None
    }
}

/// `None` for files of tests alone.
fn module(root: &Path, path: &Path) -> Option<Module> {
    let stem = path.file_stem()?.to_str()?;
    if path.extension()? != "rs" || stem == "tests" || stem.ends_with("_tests") {
        return None;
    }
    let folder = path.parent()?.strip_prefix(root).ok()?;
    let mut module: Module = folder.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if module.iter().any(|part| part == "tests") {
        return None;
    }
    if !matches!(stem, "mod" | "lib") {
        module.push(stem.to_owned());
    }
    Some(module)
}

/// Paths that a file names, but for tests and re-exports.
#[derive(Default)]
struct References(Vec<Module>);

impl<'ast> Visit<'ast> for References {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if matches!(item.vis, Visibility::Inherited) && !is_test(&item.attrs) {
            self.0.extend(paths(&item.tree));
        }
    }

    /// `pub(super)` is no import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

fn is_test(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| attr.path().is_ident("cfg") && quoted(attr).contains("test"))
}

fn quoted(attr: &Attribute) -> String {
    attr.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default()
}

/// Each path of a `use`.
fn paths(tree: &UseTree) -> Vec<Module> {
    let below = |name: String, rest: Vec<Module>| {
        rest.into_iter().map(|path| [vec![name.clone()], path].concat()).collect()
    };
    match tree {
        UseTree::Path(path) => below(path.ident.to_string(), paths(&path.tree)),
        UseTree::Name(name) if name.ident == "self" => vec![Vec::new()],
        UseTree::Name(name) => vec![vec![name.ident.to_string()]],
        UseTree::Rename(rename) => vec![vec![rename.ident.to_string()]],
        UseTree::Glob(_) => vec![Vec::new()],
        UseTree::Group(group) => group.items.iter().flat_map(paths).collect(),
    }
}

/// Groups of modules in which each module reaches every other one.
fn circles(graph: &Graph) -> Vec<Vec<Module>> {
    let reach = |from: &Module| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(module) = next.pop() {
            for to in graph.get(module).into_iter().flatten() {
                if seen.insert(to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        graph.keys().map(|from| (from, reach(from))).collect();
    let mut found: Vec<Vec<Module>> = Vec::new();
    for (module, targets) in reached.iter().filter(|(module, targets)| targets.contains(*module)) {
        let circle: Vec<Module> = targets
            .iter()
            .filter(|to| reached.get(**to).is_some_and(|back| back.contains(*module)))
            .map(|to| (*to).clone())
            .collect();
        if !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

fn words(circle: &[Module]) -> String {
    circle.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(", ")
}
