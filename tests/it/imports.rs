//! The modules of each crate import each other without circles: each can be read with nothing but those below it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use cargo_metadata::MetadataCommand;

/// Roots, and files that only tests use.
const LEFT_OUT: [&str; 4] = ["lib", "main", "tests", "history_builder"];

/// The path of a module below its root.
type Module = Vec<String>;

/// Each module, with the modules that it imports.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// The code of a file without its tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = ["", "pub(crate) "].map(|public| format!("#[cfg(test)]\n{public}mod tests"));
    let code = code.iter().fold(&*text, |code, tests| code.split(tests).next().unwrap());
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    code.lines().filter(|line| !is_comment(line)).collect::<Vec<_>>().join("\n")
}

/// All source files but tests, by module.
fn modules(dir: &Path, of: &Module, found: &mut BTreeMap<Module, String>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let own = (name != "mod").then_some(name.clone());
        let module: Module = of.iter().cloned().chain(own).collect();
        if path.is_dir() {
            modules(&path, &module, found);
        } else if path.extension().is_some_and(|e| e == "rs") && !LEFT_OUT.contains(&&*name) {
            found.insert(module, code(&path));
        }
    }
}

/// The tree of a `use` statement.
fn use_tree(statement: &str) -> Option<&str> {
    let starts = statement.match_indices("use ").map(|(at, _)| at);
    let is_first = |at: &usize| {
        let before = statement[..*at].rsplit('\n').next().unwrap().trim();
        before.is_empty() || before == "pub" || (before.starts_with("pub(") && before.ends_with(')'))
    };
    let in_tree = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_:{},*".contains(c);
    starts.filter(is_first).last().map(|at| &statement[at + "use ".len()..]).filter(|tree| tree.chars().all(in_tree))
}

/// The paths of a `use` tree.
fn flatten(tree: &str, before: &str, paths: &mut Vec<String>) {
    let Some(open) = tree.find('{') else { return paths.push(format!("{before}{}", tree.trim())) };
    let prefix = format!("{before}{}", tree[..open].trim());
    let inner = &tree[open + 1..tree.rfind('}').unwrap()];
    let (mut depth, mut from) = (0, 0);
    for (i, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[from..i].trim().is_empty() {
                    flatten(&inner[from..i], &prefix, paths);
                }
                from = i + 1;
            }
            _ => {}
        }
    }
}

/// Every path that the code names.
fn paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for tree in code.split(';').filter_map(use_tree) {
        flatten(tree, "", &mut paths);
    }
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    paths.extend(
        code.split(|c| !is_path(c)).filter(|word| word.contains("::") && !word.ends_with("::")).map(str::to_owned),
    );
    paths
}

/// The modules of the items that the root imports and exports, by the item's name.
fn exports(root: &str, all: &BTreeMap<Module, String>) -> BTreeMap<String, Module> {
    let mut exported = Vec::new();
    for tree in root.split(';').filter_map(use_tree) {
        flatten(tree, "", &mut exported);
    }
    (exported.iter())
        .filter_map(|path| {
            let name = path.rsplit([' ', ':']).next().unwrap();
            Some((name.to_owned(), target(path, &Module::new(), all, &BTreeMap::new())?))
        })
        .collect()
}

/// The module that a path leads to, if it is one of ours.
fn target(
    path: &str,
    of: &Module,
    all: &BTreeMap<Module, String>,
    exports: &BTreeMap<String, Module>,
) -> Option<Module> {
    let mut parts: Vec<&str> = path.split("::").map(|part| part.split(' ').next().unwrap()).collect();
    let mut base = of.clone();
    match parts[0] {
        "crate" => base.clear(),
        "super" => {}
        _ => parts.insert(0, "self"),
    }
    while parts.first() == Some(&"super") {
        base.pop();
        parts.remove(0);
    }
    let rest = &parts[usize::from(["crate", "self"].contains(&parts.first().copied().unwrap_or_default()))..];
    if base.is_empty()
        && let Some(module) = rest.first().and_then(|name| exports.get(*name))
    {
        return Some(module.clone()).filter(|module| module != of);
    }
    let deep = |n: usize| base.iter().cloned().chain(rest[..n].iter().map(|p| (*p).to_owned())).collect::<Module>();
    let least = usize::from(base == *of);
    (least..=rest.len()).rev().map(deep).find(|module| module != of && all.contains_key(module))
}

/// The imports of each module in `src`.
fn imports(src: &Path) -> Imports {
    let mut all = BTreeMap::new();
    modules(src, &Module::new(), &mut all);
    let root = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|path| path.exists()).unwrap();
    let exports = exports(&code(&root), &all);
    all.insert(Module::new(), String::new());
    let targets = |(module, code): (&Module, &String)| {
        let of = paths(code).iter().filter_map(|path| target(path, module, &all, &exports)).collect();
        (module.clone(), of)
    };
    let mut imports: Imports = all.iter().map(targets).collect();
    // The root names every module, so no module may use an item that the root defines.
    imports.insert(Module::new(), all.into_keys().filter(|module| !module.is_empty()).collect());
    imports
}

/// The circles: one line for each module that takes part.
fn circles(mut imports: Imports) -> Vec<String> {
    // Take away modules that import nothing that is left, or that nothing left imports; in a circle, none can be.
    let outside = |imports: &Imports| {
        let imported: BTreeSet<_> = imports.values().flatten().collect();
        let is_outside = |(module, of): &(&Module, &BTreeSet<_>)| of.is_empty() || !imported.contains(module);
        imports.iter().find(is_outside).map(|(module, _)| module.clone())
    };
    while let Some(module) = outside(&imports) {
        imports.remove(&module);
        imports.values_mut().for_each(|of| of.retain(|other| *other != module));
    }
    let name = |module: &Module| if module.is_empty() { "the root".to_owned() } else { module.join("::") };
    let line = |module: &Module, of: &BTreeSet<Module>| {
        let of: Vec<String> = of.iter().map(name).collect();
        format!("{} imports {}", name(module), of.join(", "))
    };
    imports.iter().map(|(module, of)| line(module, of)).collect()
}

#[test]
fn modules_import_each_other_without_circles() {
    let metadata = MetadataCommand::new().no_deps().other_options(["--offline".into()]).exec().unwrap();
    for package in &metadata.packages {
        let imports = imports(package.manifest_path.parent().unwrap().join("src").as_ref());
        let found: usize = imports.values().map(BTreeSet::len).sum();
        assert!(found > 2 * imports.len(), "imports of {} are found at all: {imports:?}", package.name);
        let left = circles(imports);
        assert!(left.is_empty(), "circles of imports in {} among:\n{}", package.name, left.join("\n"));
    }
}

#[test]
fn circles_are_found_also_through_the_root() {
    let cases = [
        ("use crate::b::B;", "use crate::{c, a::A};", "a imports b\nb imports a"),
        ("use crate::{Exported, c};", "use super::a;", "a imports b\nb imports a"),
        ("use crate::Own;", "use crate::c;", "the root imports a\na imports the root"),
        ("use crate::b::B;", "// use crate::a::A;\nuse crate::c;", ""),
    ];
    for (a, b, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let root = "mod a;\nmod b;\nmod c;\npub use b::Exported;\npub struct Own;\n";
        for (name, text) in [("lib.rs", root), ("a.rs", a), ("b.rs", b), ("c.rs", "use std::fmt;")] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        assert_eq!(circles(imports(dir.path())).join("\n"), expected);
    }
}
