//! Sets of field paths in their wire form (`fieldsV1`).
//!
//! A set is a tree of JSON objects. A member name is a path element: `f:name` is a field, `k:{"name":"x"}` a list item
//! by its keys, `v:"x"` a list item by its value, and `i:0` one by its index. An empty object is a path in the set. The
//! member `.` of an object means that the object's own path is in the set.
//!
//! Tracking works on the wire form without decoding, and touches only the changed paths. Element names are canonical
//! JSON, so that equal elements are equal strings.

mod path;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub use path::FieldSetError;
pub(crate) use path::display;
use path::{SELF, canonical_element};

/// A set of field paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSet(pub(crate) Map<String, Value>);

impl FieldSet {
    /// Parses a `fieldsV1` document and makes its element names canonical.
    pub fn from_value(value: Value) -> Result<Self, FieldSetError> {
        match value {
            Value::Null => Ok(Self::default()),
            Value::Object(map) => canonical(map).map(Self),
            _ => Err(FieldSetError::NotAnObject(String::new())),
        }
    }

    /// Wraps a document that [`FieldSet::into_value`] produced.
    pub(crate) fn trusted(value: Value) -> Self {
        match value {
            Value::Object(map) => Self(map),
            _ => Self::default(),
        }
    }

    /// Returns the `fieldsV1` document.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// Creates the set of dotted field paths, such as `metadata.name`.
    pub fn of(paths: &[&str]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(path.split('.').map(field));
        }
        set
    }

    /// Reports whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a path of elements in wire form.
    pub fn insert(&mut self, path: impl IntoIterator<Item = String>) {
        let mut added = Part { member: true, kids: Map::new() };
        let path: Vec<String> = path.into_iter().collect();
        for element in path.into_iter().rev() {
            let mut kids = Map::new();
            added.attach(element, &mut kids);
            added = Part { member: false, kids };
        }
        union(&mut self.0, &added.kids);
    }

    /// Reports whether exactly this path, in wire form, is in the set.
    pub fn contains(&self, path: &[&str]) -> bool {
        let mut here = &self.0;
        for element in path {
            match here.get(*element) {
                Some(Value::Object(next)) => here = next,
                _ => return false,
            }
        }
        !path.is_empty() && is_member(here)
    }

    /// Adds the paths of another set.
    pub fn union(&mut self, other: &Self) {
        union(&mut self.0, &other.0);
    }

    /// Removes the paths of `other`, but not their descendants.
    pub fn difference(&mut self, other: &Self) {
        difference(&mut self.0, &other.0, false);
    }

    /// Removes the paths of `other` and their descendants.
    pub(crate) fn difference_recursive(&mut self, other: &Self) {
        difference(&mut self.0, &other.0, true);
    }

    /// Returns the paths that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(intersection(&self.0, &other.0))
    }

    /// Returns the paths without descendants in the set.
    #[must_use]
    pub fn leaves(&self) -> Self {
        Self(leaves(&self.0))
    }

    /// Returns all paths, parents before children.
    pub fn paths(&self) -> Vec<Vec<&str>> {
        let mut found = Vec::new();
        collect(&self.0, &mut Vec::new(), &mut found);
        found
    }
}

/// Returns the path element of a field.
pub(crate) fn field(name: &str) -> String {
    format!("f:{name}")
}

/// A node under construction: whether its own path is in the set, and its children.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) member: bool,
    pub(crate) kids: Map<String, Value>,
}

impl Part {
    pub(crate) fn leaf() -> Self {
        Self { member: true, kids: Map::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.kids.is_empty()
    }

    /// Adds the node under `element` of `parent`, unless it is empty.
    pub(crate) fn attach(self, element: String, parent: &mut Map<String, Value>) {
        let mut kids = self.kids;
        if close(&mut kids, self.member) {
            parent.insert(element, Value::Object(kids));
        }
    }
}

pub(crate) fn is_member(node: &Map<String, Value>) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

/// Returns the children of a node.
pub(crate) fn kids(
    node: &Map<String, Value>,
) -> impl Iterator<Item = (&String, &Map<String, Value>)> {
    api_meta::steps::spend(1);
    node.iter().filter(|(element, _)| *element != SELF).filter_map(|(element, kid)| {
        let kid = kid.as_object()?;
        Some((element, kid))
    })
}

/// Removes the mark of the node's own path, and returns whether it was there.
fn open(node: &mut Map<String, Value>) -> bool {
    node.is_empty() || node.remove(SELF).is_some()
}

/// Reverts [`open`]. Returns `false` if the node is empty and must be removed.
fn close(node: &mut Map<String, Value>, member: bool) -> bool {
    if node.is_empty() {
        return member;
    }
    if member {
        node.insert(SELF.to_owned(), Value::Object(Map::new()));
    }
    true
}

fn union(into: &mut Map<String, Value>, other: &Map<String, Value>) {
    for (element, theirs) in kids(other) {
        match into.get_mut(element) {
            Some(Value::Object(ours)) => {
                let member = open(ours) | is_member(theirs);
                union(ours, theirs);
                close(ours, member);
            }
            _ => {
                into.insert(element.clone(), Value::Object(theirs.clone()));
            }
        }
    }
}

fn difference(from: &mut Map<String, Value>, other: &Map<String, Value>, recursive: bool) {
    // Iterate over the smaller set. An object may have many managers with few fields, and a large change affects each.
    if from.len() < other.len() {
        from.retain(|element, ours| match (ours, other.get(element)) {
            (Value::Object(ours), Some(Value::Object(theirs))) if element != SELF => {
                remains(ours, theirs, recursive)
            }
            _ => true,
        });
        return;
    }
    for (element, theirs) in kids(other) {
        let Some(Value::Object(ours)) = from.get_mut(element) else { continue };
        if !remains(ours, theirs, recursive) {
            from.remove(element);
        }
    }
}

/// Removes the paths of `theirs` from a node. Returns `false` if the node is then empty and must be removed.
fn remains(ours: &mut Map<String, Value>, theirs: &Map<String, Value>, recursive: bool) -> bool {
    let gone = is_member(theirs);
    if gone && recursive {
        return false;
    }
    let member = open(ours) && !gone;
    difference(ours, theirs, recursive);
    close(ours, member)
}

fn intersection(a: &Map<String, Value>, b: &Map<String, Value>) -> Map<String, Value> {
    let mut common = Map::new();
    let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
    for (element, theirs) in kids(few) {
        let Some(Value::Object(ours)) = many.get(element) else { continue };
        let part =
            Part { member: is_member(ours) && is_member(theirs), kids: intersection(ours, theirs) };
        part.attach(element.clone(), &mut common);
    }
    common
}

fn leaves(set: &Map<String, Value>) -> Map<String, Value> {
    let mut found = Map::new();
    for (element, node) in kids(set) {
        found.insert(element.clone(), Value::Object(leaves(node)));
    }
    found
}

fn collect<'a>(
    set: &'a Map<String, Value>,
    path: &mut Vec<&'a str>,
    found: &mut Vec<Vec<&'a str>>,
) {
    for (element, node) in kids(set) {
        path.push(element);
        if is_member(node) {
            found.push(path.clone());
        }
        collect(node, path, found);
        path.pop();
    }
}

fn canonical(map: Map<String, Value>) -> Result<Map<String, Value>, FieldSetError> {
    let mut result = Map::new();
    for (element, node) in map {
        let Value::Object(node) = node else { return Err(FieldSetError::NotAnObject(element)) };
        let element = canonical_element(element)?;
        result.insert(element, Value::Object(canonical(node)?));
    }
    Ok(result)
}
