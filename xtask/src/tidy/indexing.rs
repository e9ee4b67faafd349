//! Index assignment to a `Value`, `tree["a"] = x`, panics if the tree has another shape; `api_meta::Tree` does not.
//! Clippy has no lint for operators of foreign types, so this module searches the text.

/// The crates that may still assign by index: they create their trees themselves, or read a local administrator's file,
/// and never untrusted input. A crate that left the list must not return.
pub(super) const OWN_TREES: &[&str] = &[
    "api-docs",
    "bootstrap",
    "bootstrap-core",
    "cni",
    "firstboot",
    "ignition",
    "local",
    "netboot",
    "nodeimage",
    "oci",
    "windlass",
    "xtask",
];

/// Returns the numbers of the lines that assign to a tree by an index.
pub(super) fn writes(text: &str) -> Vec<usize> {
    let code: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(at, line)| (at + 1, line.trim()))
        .filter(|(_, line)| !line.starts_with("//"))
        .collect();
    let mut lines = Vec::new();
    for (at, (number, line)) in code.iter().enumerate() {
        let next = code.get(at + 1).map_or("", |(_, line)| line);
        if closing(line).any(|(open, end)| is_write(line, open, end, next)) {
            lines.push(*number);
        }
    }
    lines
}

/// Returns the positions of the brackets in a line that index by a string.
fn closing(line: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    line.match_indices("[\"").filter_map(|(open, _)| {
        // An indexed value precedes the bracket; otherwise it is a list.
        let indexed = line[..open].ends_with(|c: char| c.is_alphanumeric() || "_])?".contains(c));
        let length = line[open + 2..].find("\"]")?;
        indexed.then_some((open, open + 2 + length + 2))
    })
}

fn is_write(line: &str, open: usize, end: usize, next: &str) -> bool {
    let rest = further(&line[end..]);
    let rest = if rest.is_empty() { next } else { rest };
    let assigned = rest.strip_prefix('=').is_some_and(|rest| !rest.starts_with(['=', '>']))
        || ["+=", "-=", "*="].iter().any(|sign| rest.starts_with(sign));
    let changed = [".as_object_mut()", ".as_array_mut()", ".take()", ".get_mut(", ".pointer_mut("];
    assigned || changed.iter().any(|call| rest.starts_with(call)) || is_borrowed(&line[..open])
}

/// Skips further indexes.
fn further(mut rest: &str) -> &str {
    while let Some(inside) = rest.strip_prefix('[') {
        let Some((_, behind)) = inside.split_once(']') else { break };
        rest = behind;
    }
    rest.trim_start()
}

/// Returns `true` if the indexed value is mutably borrowed.
fn is_borrowed(before: &str) -> bool {
    let name = |c: char| c.is_alphanumeric() || "_.[]\"".contains(c);
    before.trim_end_matches(name).ends_with("&mut ")
}

#[cfg(test)]
mod tests {
    use super::writes;

    #[test]
    fn distinguishes_writes_from_reads() {
        for line in [
            r#"tree["a"] = json!(1);"#,
            r#"tree["a"]["b"][key] = x;"#,
            r#"self.tree["a"][i]["b"] = x;"#,
            r#"let at = &mut tree["a"];"#,
            r#"call(&mut pod["metadata"]["annotations"]);"#,
            r#"let x = tree["a"]["b"].as_object_mut();"#,
            r#"let x = document["paths"].take();"#,
            r#"metrics.remove(i)["resource"]["u"].take();"#,
            "tree[\"a\"]\n    .as_array_mut()",
            "tree[\"a\"] =\n    x;",
        ] {
            assert_eq!(writes(line).len(), 1, "{line}");
        }
        for line in [
            r#"if tree["a"] == json!(1) {"#,
            r#"let x = &tree["a"]["b"];"#,
            r#"match tree["a"].as_str() { Some("x") => 1, _ => 2 }"#,
            r#"tree.put(&["a", "b"], x);"#,
            r#"let names = ["a"];"#,
            r#"let names: [&str; 1] = ["a"];"#,
            r#"// tree["a"] = 1;"#,
            r#"let x = tree["a"].clone();"#,
            r#""conflict: nodeSelector[{key}] = {wanted}""#,
        ] {
            assert!(writes(line).is_empty(), "{line}");
        }
    }
}
