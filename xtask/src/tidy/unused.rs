//! A dependency that nothing of a crate's names is refused, and so is one that only its tests name and that is not said to
//! be for them.

use std::path::Path;

use super::{
    metadata::Crate,
    sources::{File, crate_of},
};

/// What the code names that `tonic_prost_build` writes.
const GENERATED: &[&str] = &["bytes", "prost", "tonic-prost"];

pub(super) fn problems(crates: &[Crate], files: &[File]) -> Vec<String> {
    let mut problems = Vec::new();
    for member in crates {
        let is_own = |file: &&File| {
            crate_of(&file.path) == member.name && file.path.extension().is_some_and(|e| e == "rs")
        };
        let mut own: Vec<&File> = files.iter().filter(is_own).collect();
        // Tests may take a file of another crate's in.
        let taken = own.iter().flat_map(|file| file.text.split("#[path = \"").skip(1));
        let taken: Vec<&str> = taken.filter_map(|rest| rest.split('"').next()).collect();
        let is_taken = |file: &&File| {
            taken.iter().any(|path| file.path.ends_with(path.trim_start_matches("../")))
        };
        own.extend(files.iter().filter(is_taken));
        let generates = own.iter().any(|file| file.text.contains("tonic_prost_build"));
        for used in member.uses.iter().filter(|u| !generates || !GENERATED.contains(&&*u.name)) {
            let seen = |file: &&&File| used.in_tests || !is_beside(&file.path);
            if !own.iter().filter(seen).any(|file| names(&file.text, &used.name)) {
                let by = if used.in_tests { "" } else { ", or in its tests only" };
                problems.push(format!("{} never uses {}{by}", member.name, used.name));
            }
        }
    }
    problems
}

/// Whether a file is a test or benchmark beside the crate's own code.
fn is_beside(path: &Path) -> bool {
    path.iter().rev().skip(1).any(|part| part == "tests" || part == "benches")
        && !path.iter().any(|part| part == "src")
}

/// Whether the name of a crate is a word of the text, as Rust has it or as it is published.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let found = |name: &str| {
        text.match_indices(name).any(|(at, _)| {
            !text[..at].ends_with(is_word) && !text[at + name.len()..].starts_with(is_word)
        })
    };
    found(name) || found(&name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::metadata::Use;

    #[test]
    fn what_nobody_names_is_told() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.to_owned() };
        let files = [
            file("crates/dns/src/lib.rs", "use serde_json::Value; fn unhttp() {}"),
            file("crates/dns/tests/it/main.rs", "http::get(); hyper_util::x();"),
            file("crates/cri/src/lib.rs", "prost::x()"),
            file("crates/oci/build.rs", "tonic_prost_build::compile()"),
        ];
        let told = |name: &str, used: &str, in_tests| {
            let uses = vec![Use { name: used.to_owned(), in_tests }];
            !problems(&[Crate { name: name.to_owned(), uses }], &files).is_empty()
        };
        assert!(!told("dns", "serde-json", false) && told("dns", "http", false));
        assert!(!told("dns", "http", true) && told("dns", "hyper", true));
        assert!(told("dns", "prost", false) && !told("oci", "prost", false));
    }
}
