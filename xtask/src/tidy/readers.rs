//! Checks that object trees are read only through `api_meta::Tree`, and common fields only through `api_meta`'s
//! projections. Separate readers of one field would eventually differ in their treatment of `null`, absent and wrong
//! types.

use std::{cmp::Ordering, path::Path};

use super::file::File;

/// The usual names of hand-written readers.
const NAMES: &[&str] = &["text", "texts", "flag", "integer", "items", "entries"];

/// The numbers of remaining readers by file. The list must only shrink.
const REMAINING: &[(&str, usize)] = &[
    // These crates do not depend on `api-meta`.
    ("crates/api/api-config/src/proxy.rs", 1),
    ("crates/metal/firstboot/src/stages/acquire.rs", 1),
    ("crates/base/pki/src/cert.rs", 1),
    // The managedFields of a body, before it is a tree.
    ("crates/server/apiserver/src/handlers/decode.rs", 1),
    // Small, or shared between threads, because there are very many of them.
    ("crates/network/dns/src/index.rs", 1),
    ("crates/network/net-core/src/api.rs", 1),
    ("crates/control/sched-core/src/view/meta.rs", 2),
    ("crates/control/sched-core/src/view/storage.rs", 1),
];

pub(super) fn problem(file: &File, code: &[&str]) -> Option<String> {
    if !file.path.starts_with("crates") || file.path.starts_with("crates/api/api-meta") {
        return None;
    }
    let count = code.iter().filter(|line| reads(line.trim())).count();
    let allowed =
        REMAINING.iter().find(|(path, _)| file.path == Path::new(path)).map_or(0, |(_, n)| *n);
    let path = file.path.display();
    match count.cmp(&allowed) {
        Ordering::Equal => None,
        Ordering::Greater => Some(format!(
            "{path} has {count} hand-written readers, {allowed} are allowed; use api_meta's Tree, ObjectMeta, \
             ObjectKey, OwnerReference, null_default and Timestamp"
        )),
        Ordering::Less => Some(format!(
            "{path} has only {count} hand-written readers; lower its number in tidy/readers.rs"
        )),
    }
}

fn reads(line: &str) -> bool {
    is_closure(line)
        || is_function(line)
        || is_projection(line)
        || [".pointer(", ".pointer_mut(", "Rfc3339", "%Y-%m-%dT"].iter().any(|w| line.contains(w))
}

/// Recognizes `|field| tree["a"][field].as_str().unwrap_or_default()`, and other closures that read a member.
fn is_closure(line: &str) -> bool {
    let Some((_, body)) = line.split_once("| ").filter(|(head, _)| head.contains('|')) else {
        return false;
    };
    let read = [".as_str()", ".as_i64()"].iter().find_map(|call| body.split_once(call));
    let plain = |before: &str| before.chars().all(|c| c.is_alphanumeric() || "_.[]\"".contains(c));
    let ends = ["", ".unwrap_or_default()", ".unwrap_or(\"\")", ".unwrap_or(0)"];
    read.is_some_and(|(before, after)| {
        let after = after.trim_end_matches(';').trim_end_matches(".to_owned()");
        let filtered = after.starts_with(".filter(|") || after == ".map(str::to_owned)";
        line.starts_with("let ") && plain(before) && (filtered || ends.contains(&after))
    })
}

fn is_function(line: &str) -> bool {
    let Some((_, rest)) = line.split_once("fn ") else { return false };
    let (name, parameters) = rest.split_at(rest.find(['(', '<']).unwrap_or(rest.len()));
    let nulls = name.starts_with("null") && rest.contains("Deserializer");
    let (parameters, result) = parameters.split_once(") -> ").unwrap_or_default();
    let mut types = parameters.split(", ").map(|one| one.rsplit(": ").next().unwrap_or_default());
    let tree = types.next().is_some_and(|first| first.ends_with("Value"));
    let named = types.next().is_none_or(|second| second == "&str");
    nulls || tree && named && NAMES.contains(&name) && !result.starts_with("Decl")
}

fn is_projection(line: &str) -> bool {
    let Some((_, rest)) = line.split_once("struct ") else { return false };
    let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let name = name.strip_suffix("View").unwrap_or(name);
    let shared = ["ListMeta", "TypeMeta"].contains(&name);
    let ends =
        ["Meta", "Metadata", "Owner", "OwnerReference"].iter().any(|end| name.ends_with(end));
    ends && !shared && !line.starts_with("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_hand_written_readers() {
        for line in [
            r#"let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();"#,
            r#"let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);"#,
            r#"let text = |value: &Value| value.as_str().unwrap_or("").to_owned();"#,
            r#"let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);"#,
            r#"let given = |key: &str| tree[key].as_str().filter(|text| !text.is_empty());"#,
            "fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {",
            "pub(crate) fn flag(value: &Value, pointer: &str) -> Option<bool> {",
            "fn nullable<'de, D: Deserializer<'de>, T>(d: D) -> Result<T, D::Error> {",
            "struct Meta {",
            "pub struct PodMeta {",
            "pub(crate) struct OwnerView {",
            r#"tree.pointer("/metadata/name")"#,
            "use time::{OffsetDateTime, format_description::well_known::Rfc3339};",
        ] {
            assert!(reads(line), "{line}");
        }
        for line in [
            r#"let name = object["metadata"]["name"].as_str().unwrap_or_default();"#,
            r#"let kind = tree.text("kind");"#,
            r#"let bad = |c: &&Value| c.opt_flag("a") != Some(false);"#,
            "fn text(bytes: &[u8]) -> String {",
            "fn text(value: &Value, depth: usize) -> String {",
            "fn texts(spec: &Value, path: &Path, errors: &mut ErrorList) {",
            "let wrong = names.iter().any(|name| name.as_str() == other);",
            "pub(crate) struct ListMeta {",
            "struct Metadatum {",
        ] {
            assert!(!reads(line), "{line}");
        }
    }

    #[test]
    fn reports_new_readers_and_outdated_numbers() {
        let is_reported = |path: &str, text: &str| {
            let file = File { path: path.into(), text: String::new() };
            problem(&file, &text.lines().collect::<Vec<_>>()).is_some()
        };
        assert!(is_reported("crates/server/auth/src/new.rs", "struct Meta {"));
        assert!(!is_reported("crates/api/api-meta/src/new.rs", "struct Meta {"));
        let (path, times) = REMAINING[0];
        assert!(is_reported(path, "") && !is_reported(path, &"struct Meta {\n".repeat(times)));
    }
}
