//! Prints KYAML, the YAML dialect with explicit braces and quotes.

use serde_json::Value;

/// Prints one document.
pub(super) fn print(value: &Value) -> String {
    format!("---\n{}\n", text(value, 0))
}

fn text(value: &Value, depth: usize) -> String {
    let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
    match value {
        Value::Object(members) if !members.is_empty() => {
            let lines = members
                .iter()
                .map(|(key, value)| format!("{inner}{}: {},\n", name(key), text(value, depth + 1)));
            format!("{{\n{}{outer}}}", lines.collect::<String>())
        }
        // Objects share the brackets of their list, so they are not indented twice.
        Value::Array(items) if items.first().is_some_and(Value::is_object) => {
            let items: Vec<String> = items.iter().map(|item| text(item, depth)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Array(items) if !items.is_empty() => {
            let lines = items.iter().map(|item| format!("{inner}{},\n", text(item, depth + 1)));
            format!("[\n{}{outer}]", lines.collect::<String>())
        }
        other => other.to_string(),
    }
}

/// Returns a key, quoted if YAML could read it as another type.
fn name(key: &str) -> String {
    let is_plain = key.starts_with(|c: char| c.is_ascii_alphabetic())
        && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&key.to_ascii_lowercase().as_str());
    if is_plain { key.to_owned() } else { Value::from(key).to_string() }
}
