//! The JSONPath of printer columns: members, indexes, wildcards and equality filters, as upstream's CRDs use it.

use serde_json::Value;

/// All values that a path such as `.status.conditions[?(@.type=="Ready")].status` finds.
pub(crate) fn find<'a>(root: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![root];
    let mut rest = path.trim().trim_start_matches('$');
    while !rest.is_empty() {
        let (step, after) = step(rest);
        found = found.into_iter().flat_map(|value| step.apply(value)).collect();
        rest = after;
    }
    found
}

enum Step<'p> {
    Member(&'p str),
    Index(i64),
    All,
    Filter {
        path: &'p str,
        value: &'p str,
    },
    /// Something that this dialect does not have finds nothing.
    Unknown,
}

/// The first step of a path, and what follows it.
fn step(path: &str) -> (Step<'_>, &str) {
    if let Some(inner) = path.strip_prefix('[') {
        let Some(end) = closing(inner) else { return (Step::Unknown, "") };
        return (bracket(&inner[..end]), &inner[end + 1..]);
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    // A dot inside a name is written `\.`.
    let mut end = path.len();
    let bytes = path.as_bytes();
    for (i, byte) in bytes.iter().enumerate() {
        if matches!(byte, b'.' | b'[') && (i == 0 || bytes[i - 1] != b'\\') {
            end = i;
            break;
        }
    }
    match &path[..end] {
        "*" => (Step::All, &path[end..]),
        name => (Step::Member(name), &path[end..]),
    }
}

/// Where the bracket opened before `inner` closes, quotes and nested brackets apart.
fn closing(inner: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (i, c) in inner.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(i),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Step<'_> {
    let unquoted = |text: &'_ str| -> Option<usize> {
        let text = text.trim();
        let quoted = text.len() >= 2
            && (text.starts_with('"') && text.ends_with('"')
                || text.starts_with('\'') && text.ends_with('\''));
        quoted.then_some(text.len())
    };
    let inner = inner.trim();
    if inner == "*" {
        return Step::All;
    }
    if let Ok(index) = inner.parse() {
        return Step::Index(index);
    }
    if unquoted(inner).is_some() {
        return Step::Member(&inner[1..inner.len() - 1]);
    }
    let filter = inner.strip_prefix("?(").and_then(|f| f.strip_suffix(')'));
    if let Some((left, right)) = filter.and_then(|f| f.split_once("==")) {
        let right = right.trim();
        let value = if unquoted(right).is_some() { &right[1..right.len() - 1] } else { right };
        if let Some(path) = left.trim().strip_prefix('@') {
            return Step::Filter { path, value };
        }
    }
    Step::Unknown
}

impl Step<'_> {
    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Member(name) => value.get(name.replace("\\.", ".")).into_iter().collect(),
            Self::Index(index) => {
                let Some(items) = value.as_array() else { return Vec::new() };
                let index = if *index < 0 { items.len() as i64 + index } else { *index };
                usize::try_from(index).ok().and_then(|i| items.get(i)).into_iter().collect()
            }
            Self::All => match value {
                Value::Array(items) => items.iter().collect(),
                Value::Object(members) => members.values().collect(),
                _ => Vec::new(),
            },
            Self::Filter { path, value: wanted } => {
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                let matches = |item: &&Value| {
                    find(item, path).iter().any(|v| match v {
                        Value::String(text) => text == wanted,
                        other => *other.to_string() == **wanted,
                    })
                };
                items.iter().filter(matches).collect()
            }
            Self::Unknown => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finds_what_printer_columns_name() {
        let object = json!({
            "spec": {"replicas": 3, "a.b": "dotted", "list": [{"n": 1}, {"n": 2}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
        });
        let table: [(&str, Vec<Value>); 9] = [
            (".spec.replicas", vec![json!(3)]),
            (".spec.list[*].n", vec![json!(1), json!(2)]),
            (".spec.list[-1].n", vec![json!(2)]),
            (".spec.list[5].n", vec![]),
            (".spec['a.b']", vec![json!("dotted")]),
            (".spec.a\\.b", vec![json!("dotted")]),
            (".status.conditions[?(@.type==\"Ready\")].status", vec![json!("True")]),
            (".status.conditions[?(@.type=='None')].status", vec![]),
            (".missing.path", vec![]),
        ];
        for (path, expected) in table {
            let found: Vec<Value> = find(&object, path).into_iter().cloned().collect();
            assert_eq!(found, expected, "{path}");
        }
    }
}
