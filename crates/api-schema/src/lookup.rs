//! What is asked of a struct for every object that is read or written, prepared once: where a field of some name is,
//! which fields have defaults, which are written out though nobody gave them.

use crate::{Field, Node, Presence, Shape, Struct};

/// Made from a struct's fields when its schema is complete.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// The beginning of each field's name as a number, in the order of the fields. Most names differ there, and
    /// numbers that lie side by side are compared faster than texts that each lie elsewhere.
    prefixes: Box<[u64]>,
    /// The fields with a default.
    pub(crate) defaulted: Box<[u32]>,
    /// The fields whose zero value is written out, be it `null`.
    pub(crate) always: Box<[u32]>,
}

/// The first eight bytes; what is shorter sorts, as among texts, before what it begins.
fn prefix(name: &str) -> u64 {
    let mut bytes = [0; 8];
    let length = name.len().min(8);
    bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
    u64::from_be_bytes(bytes)
}

impl Lookup {
    /// Where a field is among `fields`.
    pub(crate) fn position(&self, fields: &[Field], name: &str) -> Option<usize> {
        debug_assert_eq!(self.prefixes.len(), fields.len(), "the schema is not complete");
        let wanted = prefix(name);
        let first = self.prefixes.partition_point(|prefix| *prefix < wanted);
        let same = self.prefixes[first..].iter().take_while(|prefix| **prefix == wanted).count();
        (first..first + same).find(|at| *fields[*at].name == *name)
    }
}

/// What is below each node of an arena.
#[derive(Debug, Default)]
pub(crate) struct Below {
    /// Members with defaults.
    pub(crate) defaults: Box<[bool]>,
    /// Members that are written as `null`.
    pub(crate) nulls: Box<[bool]>,
}

/// Prepares every struct of an arena, and says of each node what is below it.
pub(crate) fn prepare(nodes: &mut [Node]) -> Below {
    let own_default: Vec<bool> = nodes.iter().map(|node| node.default.is_some()).collect();
    for node in nodes.iter_mut() {
        let Shape::Struct(body) = &mut node.shape else { continue };
        let fields = &body.fields;
        let those = |wanted: &dyn Fn(&Field) -> bool| {
            let at = |(at, field): (usize, &Field)| wanted(field).then_some(at as u32);
            fields.iter().enumerate().filter_map(at).collect()
        };
        let has_default =
            |field: &Field| field.default.is_some() || own_default[field.node.0 as usize];
        body.lookup = Lookup {
            prefixes: fields.iter().map(|field| prefix(&field.name)).collect(),
            defaulted: those(&has_default),
            always: those(&|field| matches!(field.presence, Presence::Always | Presence::Null)),
        };
    }
    let is_null = |field: &Field| field.presence == Presence::Null;
    Below {
        defaults: below(nodes, &|body| !body.lookup.defaulted.is_empty()),
        nulls: below(nodes, &|body| body.fields.iter().any(is_null)),
    }
}

/// Types may be recursive: what is known of a node is asked again until nothing more comes out.
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

    /// Every name finds its field, and no other name does.
    #[test]
    fn fields_are_found_by_their_names() {
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
    fn defaults_are_known_to_be_below() {
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
