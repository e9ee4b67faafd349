//! JSON pointers into object trees.

use std::borrow::Cow;

use serde_json::Value;

/// The value at a JSON pointer. As `Value::pointer`, which copies every step twice to take out escapes that hardly any
/// has: admission looks at a Pod by some hundreds of pointers.
pub fn at_pointer<'v>(value: &'v Value, pointer: &str) -> Option<&'v Value> {
    steps(pointer)?.try_fold(value, |here, step| match here {
        Value::Object(members) => members.get(&*step),
        Value::Array(items) => items.get(index(&step)?),
        _ => None,
    })
}

/// As [`at_pointer`], for a value to change.
pub fn at_pointer_mut<'v>(value: &'v mut Value, pointer: &str) -> Option<&'v mut Value> {
    steps(pointer)?.try_fold(value, |here, step| match here {
        Value::Object(members) => members.get_mut(&*step),
        Value::Array(items) => items.get_mut(index(&step)?),
        _ => None,
    })
}

fn steps(pointer: &str) -> Option<impl Iterator<Item = Cow<'_, str>>> {
    let mut steps = pointer.split('/');
    // What comes before the first slash is nothing.
    let well_formed = steps.next()?.is_empty();
    let plain = |step| match str::contains(step, '~') {
        true => Cow::Owned(step.replace("~1", "/").replace("~0", "~")),
        false => Cow::Borrowed(step),
    };
    well_formed.then(|| steps.map(plain))
}

fn index(step: &str) -> Option<usize> {
    let canonical = step == "0" || !step.starts_with(['0', '+']);
    step.parse().ok().filter(|_| canonical)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{at_pointer, at_pointer_mut};

    #[test]
    fn pointers_lead_where_they_lead_elsewhere() {
        let tree = json!({"a": {"b": [{"c": 1}, 2]}, "x/y": {"~": 3}, "": {"": 4}, "0": 5});
        for pointer in [
            "",
            "a",
            "/a",
            "/a/b",
            "/a/b/0",
            "/a/b/0/c",
            "/a/b/1",
            "/a/b/2",
            "/a/b/00",
            "/a/b/+1",
            "/a/b/-",
            "/a/b/1/c",
            "/x~1y",
            "/x~1y/~0",
            "/x/y",
            "/",
            "//",
            "/0",
            "/a/",
            "/nothing/at/all",
        ] {
            assert_eq!(at_pointer(&tree, pointer), tree.pointer(pointer), "{pointer}");
            let (mut one, mut other) = (tree.clone(), tree.clone());
            assert_eq!(at_pointer_mut(&mut one, pointer), other.pointer_mut(pointer), "{pointer}");
        }
    }
}
