//! TOML files as upstream writes them: plain values first, then tables, each in the order of their names.

use serde_json::{Map, Value};

/// Returns a tree as TOML. Members are booleans, numbers, strings and tables.
pub(super) fn to_toml(tree: &Value) -> String {
    let mut text = String::new();
    if let Some(members) = tree.as_object() {
        write_table(members, "", 0, &mut text);
    }
    text
}

/// Writes the members of a table, which are indented by its level.
fn write_table(members: &Map<String, Value>, path: &str, level: usize, text: &mut String) {
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_by_key(|(name, _)| *name);
    let indent = "  ".repeat(level);
    for (name, value) in sorted.iter().filter(|(_, value)| !value.is_object()) {
        // JSON's escapes are also TOML's.
        text.push_str(&format!("{indent}{} = {value}\n", key(name)));
    }
    for (name, value) in sorted {
        let Some(members) = value.as_object() else { continue };
        let path = if path.is_empty() { key(name) } else { format!("{path}.{}", key(name)) };
        text.push_str(&format!("\n{indent}[{path}]\n"));
        write_table(members, &path, level + 1, text);
    }
}

fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        Value::from(name).to_string()
    }
}

/// Splits a path such as `plugins."io.containerd.grpc.v1.cri".sandbox_image` at its dots. Quotes protect dots, and two
/// quotes in a quoted part are one. Returns `None` for a path with an unclosed or misplaced quote.
pub(super) fn split_path(path: &str) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let mut rest = path;
    loop {
        let (part, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_part(quoted)?,
            None => {
                let end = rest.find('.').unwrap_or(rest.len());
                (rest[..end].to_owned(), &rest[end..])
            }
        };
        if part.is_empty() || (!rest.starts_with('"') && part.contains('"')) {
            return None;
        }
        parts.push(part);
        match after.strip_prefix('.') {
            Some(next) => rest = next,
            None if after.is_empty() => return Some(parts),
            None => return None,
        }
    }
}

/// Returns the text up to the closing quote, and the rest after it.
fn quoted_part(text: &str) -> Option<(String, &str)> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        part.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(next) => {
                part.push('"');
                rest = next;
            }
            None => return Some((part, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_values_before_tables() {
        let tree =
            json!({"plugins": {"a.b": {"on": true, "deep": {"text": "x\"y"}}}, "version": 2});
        let wanted = "version = 2\n\n[plugins]\n\n  [plugins.\"a.b\"]\n    on = true\n\n    [plugins.\"a.b\".deep]\n      text = \"x\\\"y\"\n";
        assert_eq!(to_toml(&tree), wanted);
    }

    #[test]
    fn splits_paths_at_dots_outside_of_quotes() {
        let parts = split_path("plugins.\"io.containerd.grpc.v1.cri\".sandbox_image").unwrap();
        assert_eq!(parts, ["plugins", "io.containerd.grpc.v1.cri", "sandbox_image"]);
        assert_eq!(split_path("\"a\"\"b\"").unwrap(), ["a\"b"]);
        for wrong in ["", ".", "a..b", "a.", "\"a", "a\"b", "\"a\"b"] {
            assert_eq!(split_path(wrong), None, "{wrong}");
        }
    }
}
