//! Computes the fields that a write changed, in one pass over the old and the new object.

use std::collections::BTreeMap;

use api_meta::is_zero;
use api_schema::{Field, NodeId, Presence, Schema};
use serde_json::{Map, Value};

use super::Form;
use crate::fieldset::{FieldSet, Part, field};

/// The fields that a write set or changed, and those that it removed.
#[derive(Debug, Default)]
pub(crate) struct Diff {
    pub(crate) changed: FieldSet,
    pub(crate) removed: FieldSet,
}

impl Diff {
    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.removed.is_empty()
    }
}

/// Fields without an owner: set by the server, or part of the object's identity.
pub(super) const UNOWNED: [&str; 2] = ["apiVersion", "kind"];
pub(super) const UNOWNED_METADATA: [&str; 8] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "resourceVersion",
    "managedFields",
    "selfLink",
];

/// Returns the difference between two objects. `None` means that the object did not exist.
pub(crate) fn objects(
    schema: &Schema,
    node: Option<NodeId>,
    old: Option<&Value>,
    new: &Value,
) -> Diff {
    let side = old.map_or(Side::Empty, Side::Value);
    let form = Form::of(schema, node, Some(new));
    let mut delta = Delta::default();
    fields(form, side, Side::Value(new), &UNOWNED, &mut |name, old, new| {
        if name == "metadata" {
            let form = Form::of(schema, form.child(name), Some(&Value::Object(Map::new())));
            let mut inner = Delta::default();
            fields(form, old, new, &UNOWNED_METADATA, &mut |name, old, new| {
                value(schema, form.child(name), old, new).attach(|| field(name), &mut inner);
            });
            inner.attach(|| field(name), &mut delta);
        } else {
            value(schema, form.child(name), old, new).attach(|| field(name), &mut delta);
        }
    });
    Diff { changed: FieldSet(delta.changed.kids), removed: FieldSet(delta.removed.kids) }
}

/// A side of a comparison.
#[derive(Clone, Copy, PartialEq)]
enum Side<'a> {
    Absent,
    /// Present but empty: null, or an empty Go struct.
    Empty,
    Value(&'a Value),
}

impl<'a> Side<'a> {
    fn of(value: Option<&'a Value>, or: Self) -> Self {
        match value {
            None => or,
            Some(Value::Null) => Side::Empty,
            Some(value) => Side::Value(value),
        }
    }

    fn value(self) -> Option<&'a Value> {
        match self {
            Side::Value(value) => Some(value),
            _ => None,
        }
    }

    fn map(self) -> Option<&'a Map<String, Value>> {
        self.value().and_then(Value::as_object)
    }

    fn items(self) -> &'a [Value] {
        self.value().and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// Reports whether Go cannot distinguish the value from an absent one.
    fn is_blank(self) -> bool {
        self.value().is_none_or(is_zero)
    }
}

#[derive(Default)]
struct Delta {
    changed: Part,
    removed: Part,
}

impl Delta {
    fn changed() -> Self {
        Self { changed: Part::leaf(), removed: Part::default() }
    }

    fn removed() -> Self {
        Self { changed: Part::default(), removed: Part::leaf() }
    }

    fn attach(self, element: impl FnOnce() -> String, parent: &mut Delta) {
        match (self.changed.is_empty(), self.removed.is_empty()) {
            (true, true) => {}
            (false, true) => self.changed.attach(element(), &mut parent.changed.kids),
            (true, false) => self.removed.attach(element(), &mut parent.removed.kids),
            (false, false) => {
                let element = element();
                self.changed.attach(element.clone(), &mut parent.changed.kids);
                self.removed.attach(element, &mut parent.removed.kids);
            }
        }
    }
}

fn value(schema: &Schema, id: Option<NodeId>, old: Side, new: Side) -> Delta {
    api_meta::steps::spend(1);
    if old == new {
        return Delta::default();
    }
    let form = Form::of(schema, id, new.value().or(old.value()));
    if matches!(form, Form::Leaf)
        || (old.is_blank() && new.is_blank())
        || is_mismatched(form, old, new)
    {
        return leaf(old, new);
    }
    let mut delta = Delta::default();
    match form {
        Form::Set | Form::MapList { .. } => items(schema, form, old, new, &mut delta),
        _ => fields(form, old, new, &[], &mut |name, old, new| {
            value(schema, form.child(name), old, new).attach(|| field(name), &mut delta);
        }),
    }
    delta.changed.member |= old == Side::Absent;
    delta.removed.member |= new == Side::Absent;
    delta
}

fn leaf(old: Side, new: Side) -> Delta {
    match (old, new) {
        (Side::Absent, _) => Delta::changed(),
        (_, Side::Absent) => Delta::removed(),
        // Nil differs from an empty list, but not from an empty struct or string.
        (Side::Empty, Side::Value(Value::Array(_)))
        | (Side::Value(Value::Array(_)), Side::Empty) => Delta::changed(),
        (Side::Empty, new) if new.is_blank() => Delta::default(),
        (old, Side::Empty) if old.is_blank() => Delta::default(),
        _ => Delta::changed(),
    }
}

/// Reports whether a value does not have the type of its form. Such values are compared as a whole.
fn is_mismatched(form: Form, old: Side, new: Side) -> bool {
    [old, new].into_iter().filter_map(Side::value).any(|value| match form {
        Form::Set | Form::MapList { .. } => !value.is_array(),
        _ => !value.is_object(),
    })
}

/// Visits every field of either side in order, except those in `skip`.
fn fields<'a>(
    form: Form,
    old: Side<'a>,
    new: Side<'a>,
    skip: &[&str],
    visit: &mut dyn FnMut(&str, Side<'a>, Side<'a>),
) {
    let missing = |name: &str, parent: Side| match form.field(name) {
        Some(f) if parent != Side::Absent && always_present(f) => Side::Empty,
        _ => Side::Absent,
    };
    let (old_map, new_map) = (old.map(), new.map());
    for (name, now) in new_map.into_iter().flatten() {
        if skip.contains(&name.as_str()) {
            continue;
        }
        let before = Side::of(old_map.and_then(|map| map.get(name)), missing(name, old));
        visit(name, before, Side::of(Some(now), Side::Absent));
    }
    for (name, before) in old_map.into_iter().flatten() {
        if !skip.contains(&name.as_str()) && new_map.is_none_or(|map| !map.contains_key(name)) {
            visit(name, Side::of(Some(before), Side::Absent), missing(name, new));
        }
    }
}

/// Reports whether Go's type always has the field, so that it is empty instead of absent.
pub(super) fn always_present(field: &Field) -> bool {
    matches!(field.presence, Presence::Always | Presence::Null)
}

/// Compares lists item by item. Items with the same key are compared as one. Validation rejects such lists, but stored
/// objects may have them.
fn items(schema: &Schema, form: Form, old: Side, new: Side, delta: &mut Delta) {
    let mut groups: BTreeMap<String, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for item in old.items() {
        match form.element(schema, item) {
            Ok(element) => groups.entry(element).or_default().0.push(item),
            Err(_) => delta.changed.member = true,
        }
    }
    for item in new.items() {
        match form.element(schema, item) {
            Ok(element) => groups.entry(element).or_default().1.push(item),
            Err(_) => delta.changed.member = true,
        }
    }
    for (element, (old, new)) in groups {
        let inner = match (&old[..], &new[..]) {
            (old, new) if old == new => Delta::default(),
            (old, new) if old.len() <= 1 && new.len() <= 1 => {
                item(schema, form, old.first(), new.first())
            }
            ([_, _, ..], [_, _, ..]) => Delta::changed(),
            ([_, _, ..], new) => {
                let mut delta = item(schema, form, None, new.first());
                delta.removed.member = true;
                delta
            }
            (old, _) => {
                let mut delta = item(schema, form, old.first(), None);
                delta.changed.member = true;
                delta
            }
        };
        inner.attach(|| element, delta);
    }
}

/// Compares an item's two sides. Items of sets are leaves.
fn item<'a>(
    schema: &Schema,
    form: Form,
    old: Option<&&'a Value>,
    new: Option<&&'a Value>,
) -> Delta {
    let side = |item: Option<&&'a Value>| item.map_or(Side::Absent, |item| Side::Value(item));
    match form.item() {
        Some(node) => value(schema, Some(node), side(old), side(new)),
        None => leaf(side(old), side(new)),
    }
}
