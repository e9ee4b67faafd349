//! Checks the dependencies between the files of a crate, by their `use` lines and paths. They must be acyclic, so that
//! a file can be understood from those below it. A cycle could only be understood as a whole.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use super::file::{self, File};

/// The path of a file in its crate, without `mod`, `lib` and `main`.
type Module = Vec<String>;

/// The used files of each file, with the names that it uses.
type Graph = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// The files of a circle: each uses all others, directly or through others of the circle.
type Circle<'a> = BTreeSet<&'a Module>;

pub(super) fn problems(files: &[File]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Vec<(Module, &File)>> = BTreeMap::new();
    for file in files {
        if let Some((name, module)) = module_of(&file.path) {
            crates.entry(name).or_default().push((module, file));
        }
    }
    crates.iter().flat_map(|(name, files)| crate_problems(name, files)).collect()
}

/// Reports all circles of a crate's files, or of its folders if its files have none.
fn crate_problems(name: &str, files: &[(Module, &File)]) -> Vec<String> {
    let graph = graph(files);
    let folders = folders(&graph);
    let (kind, graph) =
        if circles(&graph).is_empty() { ("folders", &folders) } else { ("files", &graph) };
    let circles = circles(graph);
    let report = |circle| {
        let count = BTreeSet::len(circle);
        format!("{name}: {count} {kind} form a circle: {}", describe(graph, circle))
    };
    circles.iter().map(report).collect()
}

fn module_of(path: &Path) -> Option<(&str, Module)> {
    let mut parts = path.iter().filter_map(|part| part.to_str());
    let name = match parts.next()? {
        "crates" => parts.nth(1)?,
        other => other,
    };
    if parts.next()? != "src" || file::is_test(path) {
        return None;
    }
    let mut module: Module = parts.map(str::to_owned).collect();
    let file = module.pop()?.strip_suffix(".rs")?.to_owned();
    if !matches!(file.as_str(), "mod" | "lib" | "main") {
        module.push(file);
    }
    Some((name, module))
}

fn graph(files: &[(Module, &File)]) -> Graph {
    let modules: BTreeSet<&Module> = files.iter().map(|(module, _)| module).collect();
    let mut graph = Graph::new();
    for (module, file) in files {
        let used = graph.entry(module.clone()).or_default();
        for path in paths(file::before_tests(&file.text)) {
            if let Some((other, item)) = resolve(module, &path, &modules).filter(|u| u.0 != *module)
            {
                used.entry(other).or_default().insert(item);
            }
        }
    }
    graph
}

/// Returns the graph of the first path components: top-level folders and the files beside them.
fn folders(graph: &Graph) -> Graph {
    let top = |module: &Module| module.iter().take(1).cloned().collect::<Module>();
    let mut all = Graph::new();
    for (user, used) in graph {
        for (module, items) in used.iter().filter(|(module, _)| top(module) != top(user)) {
            all.entry(top(user)).or_default().entry(top(module)).or_default().extend(items.clone());
        }
    }
    all
}

/// Returns all paths of a file: those that it imports, and those that it uses by their full names.
fn paths(text: &str) -> Vec<String> {
    let (mut paths, mut import) = (Vec::new(), None::<String>);
    for line in text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
        if import.is_none()
            && (line.starts_with("use ") || line.starts_with("pub") && line.contains(" use "))
        {
            import = Some(String::new());
        }
        let Some(begun) = &mut import else {
            let words = line.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
            paths.extend(words.filter(|word| word.contains("::")).map(str::to_owned));
            continue;
        };
        begun.push_str(line);
        if let Some(whole) = begun.strip_suffix(';') {
            let tree = whole.split_once("use ").map_or("", |(_, tree)| tree);
            spread("", tree, &mut paths);
            import = None;
        }
    }
    paths
}

/// Expands the paths of an import: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn spread(before: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((path, inner)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        return paths.push(format!("{before}{path}"));
    };
    let (mut depth, mut start) = (0, 0);
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    for (at, sign) in inner.char_indices().chain([(inner.len(), ',')]) {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[start..at].trim().is_empty() {
                    spread(&format!("{before}{}", path.trim()), &inner[start..at], paths);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Resolves a path to a file and the item that it names; `None` if the path leads to another crate.
fn resolve(at: &Module, path: &str, modules: &BTreeSet<&Module>) -> Option<(Module, String)> {
    let mut names = path.split("::").map(str::trim).peekable();
    let mut module = match *names.peek()? {
        "crate" => Module::new(),
        "self" | "super" => at.clone(),
        child => {
            let child: Module = at.iter().cloned().chain([child.to_owned()]).collect();
            modules.contains(&child).then(|| at.clone())?
        }
    };
    while let Some(step) = names.next_if(|name| matches!(*name, "crate" | "self" | "super")) {
        if step == "super" {
            module.pop()?;
        }
    }
    while let Some(name) = names.peek() {
        module.push((*name).to_owned());
        if !modules.contains(&module) {
            module.pop();
            break;
        }
        names.next();
    }
    modules.contains(&module).then(|| (module, names.next().unwrap_or("itself").to_owned()))
}

/// Returns all circles.
fn circles(graph: &Graph) -> BTreeSet<Circle<'_>> {
    let reachable: BTreeMap<&Module, Circle<'_>> =
        graph.keys().map(|file| (file, reachable(graph, file))).collect();
    let is_mutual = |a: &Module, b: &Module| reachable.get(b).is_some_and(|used| used.contains(a));
    let circles = reachable.iter().map(|(file, used)| {
        used.iter().copied().filter(|other| is_mutual(file, other)).collect::<Circle<'_>>()
    });
    circles.filter(|circle| !circle.is_empty()).collect()
}

/// Returns the files that a file uses, directly or through others.
fn reachable<'a>(graph: &'a Graph, file: &Module) -> Circle<'a> {
    let direct = |file: &Module| graph.get(file).into_iter().flat_map(BTreeMap::keys);
    let mut circle = Circle::new();
    let mut open: Vec<&Module> = direct(file).collect();
    while let Some(used) = open.pop() {
        if circle.insert(used) {
            open.extend(direct(used));
        }
    }
    circle
}

/// Names the files of a circle that use one another, with the used items.
fn describe(graph: &Graph, circle: &Circle<'_>) -> String {
    let mut edges = Vec::new();
    for user in circle {
        for (used, items) in graph[*user].iter().filter(|(used, _)| circle.contains(used)) {
            let items: Vec<&str> = items.iter().map(String::as_str).collect();
            edges.push(format!(
                "{} uses {} ({})",
                display_name(user),
                display_name(used),
                items.join(", ")
            ));
        }
    }
    edges.join("; ")
}

fn display_name(module: &Module) -> String {
    if module.is_empty() { "the crate's root".to_owned() } else { module.join("/") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let file =
            |(path, text): &(&str, &str)| File { path: path.into(), text: (*text).to_owned() };
        problems(&files.iter().map(file).collect::<Vec<_>>())
    }

    #[test]
    fn reports_cycle_with_the_names_that_form_it() {
        let low = ("crates/server/flow/src/low.rs", "pub struct Low;\n");
        let high = ("crates/server/flow/src/high.rs", "use crate::low::Low;\n");
        assert!(found(&[low, high]).is_empty());
        let tied = "flow: 2 files form a circle: high uses low (Low); low uses high (up)";
        for back in [
            "use crate::high::up;\n",
            "use super::high::up;\n",
            "pub(crate) use crate::{\n    other::x,\n    high::{self as y, up},\n};\n",
            "fn f() { crate::high::up(); }\n",
            "fn f(x: super::high::up) {}\n",
        ] {
            let problems = found(&[("crates/server/flow/src/low.rs", back), high]);
            assert_eq!(problems.len(), 1, "{back}");
            assert!(
                problems[0].contains("low uses high (") && problems[0].contains("up"),
                "{problems:?}"
            );
        }
        assert_eq!(
            found(&[("crates/server/flow/src/low.rs", "use super::high::up;\n"), high]),
            [tied]
        );
    }

    #[test]
    fn ignores_comments_and_declarations() {
        let high = ("crates/server/flow/src/high.rs", "use crate::low::Low;\n");
        for text in [
            "// use crate::high::up;\n",
            "use other::high::up;\n",
            "#[cfg(test)]\nmod tests {\n    use crate::high::up;\n}\n",
            "mod high;\n",
        ] {
            assert!(found(&[("crates/server/flow/src/low.rs", text), high]).is_empty(), "{text}");
        }
        let tests = ("crates/server/flow/src/low/tests.rs", "use crate::high::up;\n");
        assert!(found(&[("crates/server/flow/src/low.rs", ""), high, tests]).is_empty());
        let elsewhere = ("crates/network/vip/src/low.rs", "use crate::high::up;\n");
        assert!(found(&[elsewhere, high]).is_empty());
    }

    #[test]
    fn treats_mod_and_lib_as_files() {
        let face = ("crates/server/flow/src/x/mod.rs", "mod y;\npub use self::y::Y;\n");
        assert!(found(&[face, ("crates/server/flow/src/x/y.rs", "pub struct Y;\n")]).is_empty());
        assert_eq!(found(&[face, ("crates/server/flow/src/x/y.rs", "use super::Z;\n")]).len(), 1);
        let root = ("crates/server/flow/src/lib.rs", "mod c;\nuse c::C;\n");
        assert_eq!(found(&[root, ("crates/server/flow/src/c.rs", "use crate::D;\n")]).len(), 1);
    }

    #[test]
    fn reports_cycle_between_folders() {
        let files = [
            ("crates/server/apiserver/src/x/mod.rs", "pub mod a;\npub mod d;\n"),
            ("crates/server/apiserver/src/y/mod.rs", "pub mod b;\npub mod c;\n"),
            ("crates/server/apiserver/src/x/a.rs", "use crate::y::b::B;\n"),
            ("crates/server/apiserver/src/y/b.rs", ""),
            ("crates/server/apiserver/src/y/c.rs", "use crate::x::d::D;\n"),
            ("crates/server/apiserver/src/x/d.rs", ""),
        ];
        let problems = found(&files);
        assert_eq!(problems, ["apiserver: 2 folders form a circle: x uses y (B); y uses x (D)"]);
    }

    #[test]
    fn reports_every_circle() {
        let files = [
            ("crates/server/flow/src/a.rs", "use crate::b::B;\n"),
            ("crates/server/flow/src/b.rs", "use crate::a::A;\nuse crate::c::C;\n"),
            ("crates/server/flow/src/c.rs", "use crate::d::D;\n"),
            ("crates/server/flow/src/d.rs", "use crate::c::C;\n"),
        ];
        assert_eq!(
            found(&files),
            [
                "flow: 2 files form a circle: a uses b (B); b uses a (A)",
                "flow: 2 files form a circle: c uses d (D); d uses c (C)",
            ]
        );
    }
}
