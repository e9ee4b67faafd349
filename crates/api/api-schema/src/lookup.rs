//! Prepared lookup tables of structs: field positions, fields with defaults, and fields whose zero values are written.

use crate::node::{Field, Lookup, Node, Presence, Shape, Struct};

/// Returns the first eight bytes of a name as a number that sorts like the name. Shorter names are zero-padded.
fn prefix(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let length = name.len().min(8);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    u64::from_be_bytes(bytes)
}

impl Lookup {
    /// Returns the index of a field in `fields`.
    pub(crate) fn position(&self, fields: &[Field], name: &str) -> Option<usize> {
        debug_assert_eq!(self.prefixes.len(), fields.len(), "the schema is not complete");
        let key = prefix(name);
        let first = self.prefixes.partition_point(|prefix| *prefix < key);
        let same = self.prefixes[first..].iter().take_while(|prefix| **prefix == key).count();
        (first..first + same).find(|at| *fields[*at].name == *name)
    }
}

/// Properties of the descendants of each node in an arena.
#[derive(Debug, Default)]
pub(crate) struct DescendantFlags {
    /// `true` if a descendant has a default.
    pub(crate) defaults: Box<[bool]>,
    /// `true` if a descendant is written as `null`.
    pub(crate) nulls: Box<[bool]>,
}

/// Prepares every struct of an arena, and computes the properties of descendants.
pub(crate) fn prepare(nodes: &mut [Node]) -> DescendantFlags {
    let own_default: Vec<bool> = nodes.iter().map(|node| node.default.is_some()).collect();
    for node in nodes.iter_mut() {
        let Shape::Struct(body) = &mut node.shape else { continue };
        let fields = &body.fields;
        let indexes = |filter: &dyn Fn(&Field) -> bool| {
            let at = |(at, field): (usize, &Field)| filter(field).then_some(at as u32);
            fields.iter().enumerate().filter_map(at).collect()
        };
        let has_default =
            |field: &Field| field.default.is_some() || own_default[field.node.0 as usize];
        body.lookup = Lookup {
            prefixes: fields.iter().map(|field| prefix(&field.name)).collect(),
            defaulted: indexes(&has_default),
            always: indexes(&|field| matches!(field.presence, Presence::Always | Presence::Null)),
        };
    }
    let is_null = |field: &Field| field.presence == Presence::Null;
    DescendantFlags {
        defaults: below(nodes, &|body| !body.lookup.defaulted.is_empty()),
        nulls: below(nodes, &|body| body.fields.iter().any(is_null)),
    }
}

/// Computes a property of descendants. Types may be recursive, so it iterates to a fixed point.
fn below(nodes: &[Node], own: &dyn Fn(&Struct) -> bool) -> Box<[bool]> {
    let mut known = vec![false; nodes.len()];
    loop {
        let mut changed = false;
        for (at, node) in nodes.iter().enumerate().filter(|(at, _)| !known[*at]).collect::<Vec<_>>()
        {
            known[at] = match &node.shape {
                Shape::Struct(body) => {
                    own(body) || body.fields.iter().any(|field| known[field.node.0 as usize])
                }
                Shape::Map { value: below, .. } | Shape::List { item: below, .. } => {
                    known[below.0 as usize]
                }
                _ => false,
            };
            changed |= known[at];
        }
        if !changed {
            return known.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{Fill, Schema, Shape};

    /// Every field is found by its name, and other names find nothing.
    #[test]
    fn finds_fields_by_name() {
        for node in &Schema::builtin().nodes {
            let Shape::Struct(body) = &node.shape else { continue };
            for (at, field) in body.fields.iter().enumerate() {
                assert_eq!(body.lookup.position(&body.fields, &field.name), Some(at));
                let (longer, shorter) =
                    (format!("{}x", field.name), &field.name[..field.name.len() - 1]);
                for other in [longer.as_str(), shorter] {
                    let listed = body.fields.iter().position(|field| *field.name == *other);
                    assert_eq!(body.lookup.position(&body.fields, other), listed, "{other}");
                }
            }
        }
    }

    #[test]
    fn finds_defaults_of_descendants() {
        let schema = Schema::builtin();
        let pod = schema.kind("", "v1", "Pod").unwrap();
        let below = |name| {
            let node = schema.member(pod, name).unwrap();
            schema.below.defaults[node.0 as usize]
        };
        assert!(below("spec") && !below("metadata"));
        let given = json!({"spec": {"containers": [{"name": "a", "livenessProbe": {}}]}});
        let mut filled = given.clone();
        crate::apply_defaults(schema, pod, &mut filled).unwrap();
        assert_eq!(filled["spec"]["containers"][0]["livenessProbe"]["periodSeconds"], 10);
        let decoded = crate::decode_value(schema, pod, given, Fill::Defaults).unwrap().value;
        assert_eq!(decoded["spec"]["containers"][0]["livenessProbe"]["periodSeconds"], 10);
    }
}
