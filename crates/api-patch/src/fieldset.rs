//! Sets of field paths, kept in their wire form (`fieldsV1`).
//!
//! A set is a tree of JSON objects. A member name is a path element: `f:name` a field, `k:{"name":"x"}` an
//! element of a list by its keys, `v:"x"` an element of a list by its value, `i:0` one by its index. An empty
//! object is a path in the set; `.` inside an object says that its own path is in the set too.
//!
//! Keeping the wire form means that tracking a write decodes and encodes nothing: it touches only the paths
//! that changed. Element names are canonical JSON, so that equal elements are equal strings.

mod path;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

pub(crate) use path::display;

/// Marks the path of the object that holds it as a member.
const SELF: &str = ".";

/// A set of field paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldSet(pub(crate) Map<String, Value>);

/// A `fieldsV1` document that is not a set of field paths.
#[derive(Debug, thiserror::Error)]
pub enum FieldSetError {
    #[error("fieldsV1: expected an object at {0:?}")]
    NotAnObject(String),
    #[error("fieldsV1: {0:?} is not a path element")]
    BadElement(String),
}

impl FieldSet {
    /// Reads a `fieldsV1` document, making its element names canonical.
    pub fn from_value(value: Value) -> Result<Self, FieldSetError> {
        match value {
            Value::Null => Ok(Self::default()),
            Value::Object(map) => canonical(map).map(Self),
            _ => Err(FieldSetError::NotAnObject(String::new())),
        }
    }

    /// Takes a document that was written by [`FieldSet::into_value`] before.
    pub(crate) fn trusted(value: Value) -> Self {
        match value {
            Value::Object(map) => Self(map),
            _ => Self::default(),
        }
    }

    /// The set as a `fieldsV1` document.
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    /// The set of some dotted field paths (`metadata.name`), as the reset fields of a resource are written.
    pub fn of(paths: &[&str]) -> Self {
        let mut set = Self::default();
        for path in paths {
            set.insert(path.split('.').map(field));
        }
        set
    }

    /// Whether there is no path in the set.
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

    /// Whether this very path, in wire form, is in the set; one beneath it does not count.
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

    /// Takes the paths of `other` away, but not those beneath them.
    pub fn difference(&mut self, other: &Self) {
        difference(&mut self.0, &other.0, false);
    }

    /// Takes the paths of `other` and all paths beneath them away.
    pub(crate) fn difference_recursive(&mut self, other: &Self) {
        difference(&mut self.0, &other.0, true);
    }

    /// The paths that both have.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(intersection(&self.0, &other.0))
    }

    /// The paths that have no path of the set beneath them.
    #[must_use]
    pub fn leaves(&self) -> Self {
        Self(leaves(&self.0))
    }

    /// Every path, parents before children.
    pub fn paths(&self) -> Vec<Vec<&str>> {
        let mut found = Vec::new();
        collect(&self.0, &mut Vec::new(), &mut found);
        found
    }
}

/// The wire form of a field's path element.
pub(crate) fn field(name: &str) -> String {
    format!("f:{name}")
}

/// A node under construction: whether its own path is in the set, and what lies beneath.
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

    /// Hangs the node under `element`, unless it holds nothing.
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

/// The nodes beneath a node.
pub(crate) fn kids(
    node: &Map<String, Value>,
) -> impl Iterator<Item = (&String, &Map<String, Value>)> {
    api_meta::steps::spend(1);
    node.iter().filter(|(element, _)| *element != SELF).filter_map(|(element, kid)| {
        let kid = kid.as_object()?;
        Some((element, kid))
    })
}

/// Reduces a node to what lies beneath it, and says whether it was a member itself.
fn open(node: &mut Map<String, Value>) -> bool {
    node.is_empty() || node.remove(SELF).is_some()
}

/// Undoes [`open`]; false if the node holds nothing and must go.
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
    // An object may have many owners of little, each of whom a large change is taken from.
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

/// Takes the paths of `theirs` from a node; false if the node holds nothing then and must go.
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
        let element = path::canonical_element(element)?;
        result.insert(element, Value::Object(canonical(node)?));
    }
    Ok(result)
}
