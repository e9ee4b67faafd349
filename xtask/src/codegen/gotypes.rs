//! Extracts facts that OpenAPI lacks: the members that Go stores as values, and those that it omits when they are zero.
//!
//! Go's `encoding/json` omits a zero value with `omitempty`, unless it is a pointer: `hostPort: 0` is lost in upstream,
//! while `replicas: 0` stays. A line of the facts is `type TAB members omitted when zero TAB members written as null
//! when nil`. Facts that follow from the type alone are not written (a list with `omitempty`, a struct without
//! `omitzero`). Nil values are lists and maps without `omitempty`, and times and raw objects, for which `omitempty` has
//! no effect.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::{error::Result, file};

/// A struct: its members and its embedded structs.
#[derive(Default)]
struct GoStruct {
    members: Vec<Member>,
    embedded: Vec<String>,
}

struct Member {
    json: String,
    pointer: bool,
    omit_empty: bool,
    omit_zero: bool,
}

/// The way in which a member can be absent, determined from the text of its type in `types.tsv`.
#[derive(Clone, Copy, PartialEq)]
enum Sort {
    Scalar,
    Collection,
    Struct,
    /// A struct whose encoder writes the zero value as `null`.
    Nullable,
}

/// Returns the facts. `dir` contains `api`, `apimachinery`, `apiextensions-apiserver` and `kube-aggregator` like their
/// repositories.
pub(super) fn facts(dir: &Path, types: &str) -> Result<String> {
    let mut structs: BTreeMap<String, GoStruct> = BTreeMap::new();
    for (repository, prefix) in [
        ("api", "io.k8s.api"),
        ("apimachinery", "io.k8s.apimachinery"),
        ("apiextensions-apiserver", "io.k8s.apiextensions-apiserver"),
        ("kube-aggregator", "io.k8s.kube-aggregator"),
    ] {
        let root = dir.join(repository);
        for file in go_files(&root)? {
            let folder =
                file.parent().and_then(|p| p.strip_prefix(&root).ok()).unwrap_or(Path::new(""));
            let package = format!("{prefix}.{}", folder.to_string_lossy().replace('/', "."));
            parse(&file::read(&file)?, &package, &mut structs);
        }
    }
    let mut out = String::from("# Written by `cargo xtask codegen --import DIR --go DIR`.\n");
    for (name, sorts) in sorts(types) {
        let (mut omitted, mut always) = (BTreeSet::new(), BTreeSet::new());
        collect(&structs, name, &sorts, &mut omitted, &mut always);
        if !omitted.is_empty() || !always.is_empty() {
            let words = |set: BTreeSet<&str>| set.into_iter().collect::<Vec<_>>().join(" ");
            let line = format!("{name}\t{}\t{}", words(omitted), words(always));
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
    Ok(out)
}

/// Returns the types of `types.tsv`, each with the sorts of its members.
fn sorts(types: &str) -> BTreeMap<&str, HashMap<&str, Sort>> {
    let mut all: BTreeMap<&str, HashMap<&str, Sort>> = BTreeMap::new();
    let mut current = "";
    for line in types.lines().filter(|l| !l.starts_with('#')) {
        let mut cells = line.split('\t');
        let first = cells.next().unwrap_or_default();
        if let Some(name) = first.strip_prefix("@ ") {
            current = name;
            continue;
        }
        let sort = match cells.next().unwrap_or_default() {
            "string" | "int32" | "int64" | "bool" | "double" => Sort::Scalar,
            t if t.starts_with("[]")
                || t.starts_with("map[")
                || t.starts_with("wrapped")
                || t == "bytes" =>
            {
                Sort::Collection
            }
            t if [".v1.Time", ".v1.MicroTime", ".runtime.RawExtension"]
                .iter()
                .any(|name| t.ends_with(name))
                || matches!(t, "Time" | "MicroTime") =>
            {
                Sort::Nullable
            }
            _ => Sort::Struct,
        };
        all.entry(current).or_default().insert(first, sort);
    }
    all
}

fn go_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in file::list(&folder)? {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "go") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn parse(source: &str, package: &str, structs: &mut BTreeMap<String, GoStruct>) {
    let mut current: Option<(String, GoStruct)> = None;
    for line in source.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match (&mut current, &words[..]) {
            (None, ["type", name, "struct", "{"]) => {
                current = Some((format!("{package}.{name}"), GoStruct::default()));
            }
            (Some(_), ["}"]) => {
                if let Some((name, body)) = current.take() {
                    structs.insert(name, body);
                }
            }
            (Some((_, body)), [first, rest @ ..]) if !first.starts_with("//") => {
                member(line, package, first, rest, body)
            }
            _ => {}
        }
    }
}

fn member(line: &str, package: &str, first: &str, rest: &[&str], body: &mut GoStruct) {
    let Some(tag) = line.split_once("json:\"").and_then(|(_, t)| t.split_once('"')).map(|(t, _)| t)
    else {
        return;
    };
    let (json, options) = tag.split_once(',').unwrap_or((tag, ""));
    if json.is_empty() {
        if !first.contains('.') {
            body.embedded.push(format!("{package}.{first}"));
        }
        return;
    }
    let Some(go) = rest.first() else { return };
    let has = |option: &str| options.split(',').any(|o| o == option);
    body.members.push(Member {
        json: json.to_owned(),
        pointer: go.starts_with('*'),
        omit_empty: has("omitempty"),
        omit_zero: has("omitzero"),
    });
}

fn collect<'a>(
    structs: &'a BTreeMap<String, GoStruct>,
    name: &str,
    sorts: &HashMap<&str, Sort>,
    omitted: &mut BTreeSet<&'a str>,
    always: &mut BTreeSet<&'a str>,
) {
    let Some(body) = structs.get(name) else { return };
    for member in body.members.iter().filter(|m| !m.pointer) {
        match sorts.get(member.json.as_str()) {
            Some(Sort::Scalar) if member.omit_empty || member.omit_zero => {
                omitted.insert(&member.json)
            }
            Some(Sort::Struct | Sort::Nullable) if member.omit_zero => omitted.insert(&member.json),
            Some(Sort::Collection) if !member.omit_empty => always.insert(&member.json),
            Some(Sort::Nullable) => always.insert(&member.json),
            _ => false,
        };
    }
    for embedded in &body.embedded {
        collect(structs, embedded, sorts, omitted, always);
    }
}
