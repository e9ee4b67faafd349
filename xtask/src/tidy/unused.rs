//! Rejects dependencies that a crate never uses, and normal dependencies that only its tests use.

use std::path::Path;

use super::{
    file::{File, crate_of},
    metadata::Crate,
};

/// The crates that the output of `tonic_prost_build` uses.
const GENERATED: &[&str] = &["bytes", "prost", "tonic-prost"];

pub(super) fn problems(crates: &[Crate], files: &[File]) -> Vec<String> {
    let mut problems = Vec::new();
    for member in crates {
        let is_own = |file: &&File| {
            crate_of(&file.path) == member.name && file.path.extension().is_some_and(|e| e == "rs")
        };
        let mut own: Vec<&File> = files.iter().filter(is_own).collect();
        // Tests may include a file of another crate.
        let included = own.iter().flat_map(|file| file.text.split("#[path = \"").skip(1));
        let included: Vec<&str> = included.filter_map(|rest| rest.split('"').next()).collect();
        let is_taken = |file: &&File| {
            included.iter().any(|path| file.path.ends_with(path.trim_start_matches("../")))
        };
        own.extend(files.iter().filter(is_taken));
        let generates = own.iter().any(|file| file.text.contains("tonic_prost_build"));
        for used in member.uses.iter().filter(|u| !generates || !GENERATED.contains(&&*u.name)) {
            let is_visible = |file: &&&File| used.in_tests || !is_beside(&file.path);
            if !own.iter().filter(is_visible).any(|file| names(&file.text, &used.name)) {
                let by = if used.in_tests { "" } else { ", or in its tests only" };
                problems.push(format!("{} never uses {}{by}", member.name, used.name));
            }
        }
    }
    problems
}

/// Returns `true` if a file is a test or benchmark outside the crate's `src`.
fn is_beside(path: &Path) -> bool {
    path.iter().rev().skip(1).any(|part| part == "tests" || part == "benches")
        && !path.iter().any(|part| part == "src")
}

/// Returns `true` if the text contains the name of a crate as a word, with hyphens or underscores.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_named = |name: &str| {
        text.match_indices(name).any(|(at, _)| {
            !text[..at].ends_with(is_word) && !text[at + name.len()..].starts_with(is_word)
        })
    };
    is_named(name) || is_named(&name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::metadata::Use;

    #[test]
    fn reports_unused_dependencies() {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.to_owned() };
        let files = [
            file("crates/network/dns/src/lib.rs", "use serde_json::Value; fn unhttp() {}"),
            file("crates/network/dns/tests/it/main.rs", "http::get(); hyper_util::x();"),
            file("crates/node/cri/src/lib.rs", "prost::x()"),
            file("crates/node/oci/build.rs", "tonic_prost_build::compile()"),
        ];
        let is_reported = |name: &str, used: &str, in_tests| {
            let uses = vec![Use { name: used.to_owned(), in_tests }];
            !problems(&[Crate { name: name.to_owned(), uses, ..Crate::default() }], &files)
                .is_empty()
        };
        assert!(!is_reported("dns", "serde-json", false) && is_reported("dns", "http", false));
        assert!(!is_reported("dns", "http", true) && is_reported("dns", "hyper", true));
        assert!(is_reported("dns", "prost", false) && !is_reported("oci", "prost", false));
    }
}
