//! Public items have a doc comment: purpose, shapes, units and errors.
//!
//! rustc's `missing_docs` requires this of all fields and variants too, but most of their names are sufficient.

use super::file::{File, before_tests, is_test};

/// The words that begin an item after its `pub`.
const ITEMS: &[&str] = &[
    "fn", "struct", "enum", "trait", "type", "const", "static", "union", "async", "unsafe",
    "extern",
];

pub(super) fn problems(file: &File) -> Vec<String> {
    let is_source = file.path.starts_with("crates")
        && file.path.iter().nth(3).is_some_and(|part| part == "src")
        && file.path.extension().is_some_and(|end| end == "rs");
    if !is_source || is_test(&file.path) {
        return Vec::new();
    }
    let report = |(line, head): (usize, &str)| {
        let path = file.path.display();
        format!(
            "{path}:{line} is public and has no doc comment: {head}; document it for callers, or make it pub(crate)"
        )
    };
    undocumented(&file.text).into_iter().map(report).collect()
}

/// Returns the first lines of public items without a doc comment, with their numbers. Items of tests are ignored.
fn undocumented(text: &str) -> Vec<(usize, &str)> {
    let mut items = Vec::new();
    let (mut documented, mut tests, mut in_attribute) = (false, false, false);
    let mut lines = before_tests(text).lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let code = line.trim();
        if in_attribute {
            in_attribute = !code.ends_with(']');
        } else if code.starts_with("#[") {
            documented |= code.starts_with("#[doc");
            tests |= code == "#[cfg(test)]";
            in_attribute = !code.ends_with(']');
        } else if code.starts_with("///") || code.starts_with("$(#[") {
            // In a macro: the doc comment is where the macro is used.
            documented = true;
        } else if !code.starts_with("//") {
            if tests && code.ends_with('{') {
                let indent = &line[..line.len() - line.trim_start().len()];
                let is_end = |line: &str| line.strip_prefix(indent) == Some("}");
                lines.by_ref().find(|(_, line)| is_end(line));
            } else if !tests && !documented && is_public_item(code) {
                items.push((at + 1, code.trim_end_matches(['{', ' ', '('])));
            }
            (documented, tests) = (false, false);
        }
    }
    items
}

fn is_public_item(code: &str) -> bool {
    let behind = code.strip_prefix("pub ");
    behind.and_then(|behind| behind.split(' ').next()).is_some_and(|first| ITEMS.contains(&first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_public_items_without_doc_comment() {
        let cases: &[(&str, &[usize])] = &[
            ("pub fn a() {}", &[1]),
            ("pub const A: u8 = 1;\npub static B: u8 = 1;\npub type C = u8;", &[1, 2, 3]),
            ("pub async fn a() {}\n\npub unsafe fn b() {}\npub const fn c() {}", &[1, 3, 4]),
            ("/// Why.\npub struct A {\n    pub field: u8,\n}", &[]),
            ("#[derive(Debug)]\npub enum A {\n    B,\n}", &[2]),
            ("/// Why.\n#[derive(Debug)]\n// And so.\npub trait A {\n    fn b();\n}", &[]),
            ("/// Why.\n#[error(\n    \"a\"\n)]\npub struct A;\npub struct B;", &[6]),
            ("#[error(\n    \"a\"\n)]\npub struct A;", &[4]),
            ("#[doc = \"Why.\"]\npub fn a() {}", &[]),
            ("impl A {\n    /// Why.\n    pub fn a() {}\n\n    pub fn b() {}\n}", &[5]),
            ("/// Of nothing.\n\npub fn a() {}", &[3]),
            ("pub(crate) fn a() {}\nfn b() {}\npub use c::d;\npub mod e;", &[]),
            ("$(#[$meta])*\n#[derive(Debug)]\npub struct $name {}", &[]),
            ("#[cfg(test)]\nimpl A {\n    pub fn a() {}\n}\npub fn b() {}", &[5]),
            ("#[cfg(test)]\npub fn a() {}\npub fn b() {}", &[3]),
            ("fn a() {}\n\n#[cfg(test)]\nmod tests {\n    pub fn a() {}\n}", &[]),
        ];
        for (text, lines) in cases {
            let found: Vec<usize> = undocumented(text).into_iter().map(|(line, _)| line).collect();
            assert_eq!(&found, lines, "{text}");
        }
    }

    #[test]
    fn ignores_tests_and_other_trees() {
        let is_reported = |path: &str| {
            !problems(&File { path: path.into(), text: "pub fn a() {}".into() }).is_empty()
        };
        assert!(is_reported("crates/base/rt/src/tasks.rs"));
        for path in [
            "crates/base/rt/src/tests.rs",
            "crates/server/store/src/tests/model.rs",
            "crates/base/rt/tests/it/main.rs",
            "crates/server/store/benches/a.rs",
            "xtask/src/run.rs",
            "crates/base/rt/README.md",
        ] {
            assert!(!is_reported(path), "{path}");
        }
    }
}
