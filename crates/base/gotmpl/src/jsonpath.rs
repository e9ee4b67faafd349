//! kubectl's JSONPath: members, indexes, wildcards and equality filters, and templates of them.

use serde_json::Value;

/// The error of a JSONPath template.
#[derive(Debug, thiserror::Error)]
pub enum JsonPathError {
    #[error("unclosed action")]
    Unclosed,
    #[error("not in range, nothing to end")]
    NoRange,
    #[error("a range has no end")]
    NoEnd,
    #[error("{action} is not a string: {source}")]
    Text { action: String, source: serde_json::Error },
    #[error("{0} is not found")]
    NotFound(String),
}

/// A template such as `{range .items[*]}{.name}{"\n"}{end}`.
pub struct Template(Vec<Node>);

enum Node {
    Text(String),
    Path(String),
    Range(String, Vec<Node>),
}

impl Template {
    /// Parses a template.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let mut rest = text;
        let nodes = nodes(&mut rest, false)?;
        Ok(Self(nodes))
    }

    /// Evaluates the template. A path without results is an error, unless `allow_missing` is set.
    pub fn print(&self, value: &Value, allow_missing: bool) -> Result<String, JsonPathError> {
        let mut out = String::new();
        print(&self.0, value, allow_missing, &mut out)?;
        Ok(out)
    }

    /// Returns the values that the paths of the template find.
    pub fn values<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let paths = self.0.iter().filter_map(|node| match node {
            Node::Path(path) => Some(find(value, path)),
            _ => None,
        });
        paths.flatten().collect()
    }
}

fn nodes(rest: &mut &str, in_range: bool) -> Result<Vec<Node>, JsonPathError> {
    let mut nodes = Vec::new();
    while let Some(start) = rest.find('{') {
        if start > 0 {
            nodes.push(Node::Text(rest[..start].to_owned()));
        }
        let inner = &rest[start + 1..];
        let end = closing(inner, '{', '}').ok_or(JsonPathError::Unclosed)?;
        let action = inner[..end].trim();
        *rest = &inner[end + 1..];
        if action == "end" {
            return if in_range { Ok(nodes) } else { Err(JsonPathError::NoRange) };
        }
        nodes.push(match action.strip_prefix("range ") {
            Some(path) => Node::Range(path.trim().to_owned(), self::nodes(rest, true)?),
            None if action.starts_with('"') => {
                let text = serde_json::from_str(action);
                let action = || action.to_owned();
                Node::Text(text.map_err(|source| JsonPathError::Text { action: action(), source })?)
            }
            None => Node::Path(action.to_owned()),
        });
    }
    if in_range {
        return Err(JsonPathError::NoEnd);
    }
    if !rest.is_empty() {
        nodes.push(Node::Text((*rest).to_owned()));
    }
    Ok(nodes)
}

fn print(
    nodes: &[Node],
    value: &Value,
    allow_missing: bool,
    out: &mut String,
) -> Result<(), JsonPathError> {
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Range(path, inner) => {
                for item in find(value, path) {
                    print(inner, item, allow_missing, out)?;
                }
            }
            Node::Path(path) => {
                let found = find(value, path);
                if found.is_empty() && !allow_missing {
                    return Err(JsonPathError::NotFound(path.trim_start_matches('.').to_owned()));
                }
                let words = found.iter().map(|found| match found {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                });
                out.push_str(&words.collect::<Vec<_>>().join(" "));
            }
        }
    }
    Ok(())
}

/// Returns all values that a path such as `.status.conditions[?(@.type=="Ready")].status` finds.
pub fn find<'a>(root: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![root];
    let mut rest = path.trim().trim_start_matches(['$', '@']);
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
    /// An unsupported step, which finds nothing.
    Unknown,
}

/// Splits off the first step of a path.
fn step(path: &str) -> (Step<'_>, &str) {
    if let Some(inner) = path.strip_prefix('[') {
        let Some(end) = closing(inner, '[', ']') else { return (Step::Unknown, "") };
        return (bracket(&inner[..end]), &inner[end + 1..]);
    }
    let path = path.strip_prefix('.').unwrap_or(path);
    // A dot in a name is written as `\.`.
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

/// Returns the position of the bracket that closes `inner`, skipping quotes and nested brackets.
fn closing(inner: &str, open: char, close: char) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (i, c) in inner.char_indices() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, c) if c == open => depth += 1,
            (None, c) if c == close && depth == 0 => return Some(i),
            (None, c) if c == close => depth -= 1,
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
    fn prints_templates_like_kubectl() {
        let object = json!({"items": [{"n": "a", "v": 1}, {"n": "b", "v": 2}], "list": ["x", "y"]});
        let print_text = |text: &str| Template::parse(text)?.print(&object, false);
        for (text, expected) in [
            ("{.items[0].n} and {.list}", "a and [\"x\",\"y\"]"),
            ("{.items[*].n}", "a b"),
            ("{range .items[*]}{.n}={.v}{\"\\n\"}{end}.", "a=1\nb=2\n."),
            ("{range .list[*]}{@};{end}", "x;y;"),
        ] {
            assert_eq!(print_text(text).unwrap(), expected, "{text}");
        }
        for bad in ["{.items", "{end}", "{range .list[*]}", "{.nope}", "{\"a}"] {
            assert!(print_text(bad).is_err(), "{bad}");
        }
        let template = Template::parse("{.nope}{.list[*]}").unwrap();
        assert_eq!(template.print(&object, true).unwrap(), "x y");
        assert_eq!(template.values(&object), [&json!("x"), &json!("y")]);
    }

    #[test]
    fn finds_values_of_printer_columns() {
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
