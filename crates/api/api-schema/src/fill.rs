//! Defaults and zero values of absent members.

use api_meta::{Budget, BudgetExceeded, is_zero};
use serde_json::{Map, Value};

use crate::{
    node::{Field, NodeId, Presence, Shape, Struct},
    schema::Schema,
};

/// The treatment of absent and zero members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Keep the tree as given. For patches and applied configurations.
    Given,
    /// Omit or fill in zero values as Go's encoder does. For objects that are read from storage.
    Zeroes,
    /// Fill in zero values and the schema's defaults. For objects that are written.
    Defaults,
    /// Fill in like `Defaults`, but keep a `null` that a custom resource does not allow, so that validation rejects it.
    /// For applied configurations.
    Applied,
}

impl Fill {
    pub(crate) fn has_defaults(self) -> bool {
        matches!(self, Self::Defaults | Self::Applied)
    }
}

/// Fills in missing defaults. A budget bounds the growth, because a short list of empty items with large defaults could
/// become huge. After an error, the value is partially filled.
pub fn apply_defaults(
    schema: &Schema,
    node: NodeId,
    value: &mut Value,
) -> Result<(), BudgetExceeded> {
    put_defaults(schema, node, value, &mut Budget::object())
}

/// Like [`apply_defaults`], for the missing members of an object only. Members that are present stay as they are.
pub fn apply_member_defaults(
    schema: &Schema,
    node: NodeId,
    value: &mut Value,
) -> Result<(), BudgetExceeded> {
    match (&schema.node(node).shape, value) {
        (Shape::Struct(body), Value::Object(members)) => {
            default_members(schema, body, members, &mut Budget::object())
        }
        _ => Ok(()),
    }
}

fn put_defaults(
    schema: &Schema,
    node: NodeId,
    value: &mut Value,
    budget: &mut Budget,
) -> Result<(), BudgetExceeded> {
    if !schema.below.defaults[node.0 as usize] {
        return Ok(());
    }
    match (&schema.node(node).shape, value) {
        (Shape::Struct(body), Value::Object(members)) => budget.nested(|budget| {
            for (name, member) in members.iter_mut() {
                if let Some(field) = body.field(name) {
                    put_defaults(schema, field.node, member, budget)?;
                }
            }
            default_members(schema, body, members, budget)
        }),
        (Shape::Map { value: node, .. }, Value::Object(members)) => budget.nested(|budget| {
            members.values_mut().try_for_each(|member| put_defaults(schema, *node, member, budget))
        }),
        (Shape::List { item, .. }, Value::Array(items)) => budget.nested(|budget| {
            items.iter_mut().try_for_each(|value| put_defaults(schema, *item, value, budget))
        }),
        _ => Ok(()),
    }
}

/// Fills in the defaults of a struct's members. A `null` counts as absent if the member has a default and is not
/// nullable.
fn default_members(
    schema: &Schema,
    body: &Struct,
    members: &mut Map<String, Value>,
    budget: &mut Budget,
) -> Result<(), BudgetExceeded> {
    for field in body.lookup.defaulted.iter().map(|at| &body.fields[*at as usize]) {
        let Some(default) = default_of(schema, field) else { continue };
        let absent = match members.get(&*field.name) {
            None => true,
            Some(Value::Null) => !schema.node(field.node).nullable,
            Some(_) => false,
        };
        if absent {
            budget.member(&field.name, members.is_empty())?;
            let value = whole_default(schema, field.node, default, budget)?;
            members.insert(field.name.as_ref().to_owned(), value);
        }
    }
    Ok(())
}

/// Returns a copy of a default, with the defaults of its own missing members.
pub(crate) fn whole_default(
    schema: &Schema,
    node: NodeId,
    default: &Value,
    budget: &mut Budget,
) -> Result<Value, BudgetExceeded> {
    budget.tree(default)?;
    let mut value = default.clone();
    put_defaults(schema, node, &mut value, budget)?;
    Ok(value)
}

/// Writes `null` for lists and times that are nil in Go. `forgotten` is set for storage that does not distinguish empty
/// lists from nil, such as protobuf.
pub fn write_nulls(schema: &Schema, node: NodeId, value: &mut Value, forgotten: bool) {
    if !schema.below.nulls[node.0 as usize] {
        return;
    }
    match (&schema.node(node).shape, value) {
        (Shape::Struct(body), Value::Object(members)) => {
            for field in &body.fields {
                let null = field.presence == Presence::Null;
                match members.get_mut(&*field.name) {
                    Some(member) if null && forgotten && is_empty(schema, field, member) => {
                        *member = Value::Null;
                    }
                    Some(member) => write_nulls(schema, field.node, member, forgotten),
                    None if null => {
                        members.insert(field.name.as_ref().to_owned(), Value::Null);
                    }
                    None => {}
                }
            }
        }
        (Shape::Map { value: node, .. }, Value::Object(members)) => {
            members.values_mut().for_each(|member| write_nulls(schema, *node, member, forgotten));
        }
        (Shape::List { item, .. }, Value::Array(items)) => {
            items.iter_mut().for_each(|value| write_nulls(schema, *item, value, forgotten));
        }
        _ => {}
    }
}

/// Reports whether a list or map is empty. An empty raw object is not nil.
fn is_empty(schema: &Schema, field: &Field, value: &Value) -> bool {
    let shape = &schema.node(field.node).shape;
    matches!(shape, Shape::List { .. } | Shape::Map { .. }) && is_zero(value)
}

fn default_of<'s>(schema: &'s Schema, field: &'s Field) -> Option<&'s Value> {
    field.default.as_ref().or_else(|| schema.node(field.node).default.as_ref())
}

impl Schema {
    /// Fills in the missing members of a struct: defaults if requested, and the zero values that Go writes.
    pub(crate) fn fill(
        &self,
        body: &Struct,
        members: &mut Map<String, Value>,
        fill: Fill,
        typed: bool,
        budget: &mut Budget,
    ) -> Result<(), BudgetExceeded> {
        if fill.has_defaults() {
            default_members(self, body, members, budget)?;
        }
        let always: &[u32] = if typed { &body.lookup.always } else { &[] };
        for field in always.iter().map(|at| &body.fields[*at as usize]) {
            if !members.contains_key(&*field.name) {
                let zero = match field.presence {
                    Presence::Null => Value::Null,
                    _ => self.zero(field.node, fill, budget)?,
                };
                if !zero.is_null() || field.presence == Presence::Null {
                    budget.member(&field.name, members.is_empty())?;
                    members.insert(field.name.as_ref().to_owned(), zero);
                }
            }
        }
        Ok(())
    }

    /// Returns the zero value that Go writes for a type, or `null` if it writes none.
    pub(crate) fn zero(
        &self,
        node: NodeId,
        fill: Fill,
        budget: &mut Budget,
    ) -> Result<Value, BudgetExceeded> {
        Ok(match &self.node(node).shape {
            Shape::Struct(body) => {
                let mut members = Map::new();
                if fill != Fill::Given {
                    budget.nested(|budget| self.fill(body, &mut members, fill, true, budget))?;
                }
                Value::Object(members)
            }
            Shape::Map { .. } => Value::Object(Map::new()),
            Shape::List { .. } => Value::Array(Vec::new()),
            Shape::String | Shape::Bytes => Value::from(""),
            Shape::Integer { .. } | Shape::Number | Shape::IntOrString => Value::from(0),
            Shape::Boolean => Value::from(false),
            Shape::Quantity => Value::from("0"),
            Shape::Time | Shape::MicroTime | Shape::Duration | Shape::Any => Value::Null,
        })
    }
}

#[cfg(test)]
mod tests {
    use api_meta::GroupVersionKind;
    use serde_json::{Value, json};

    use crate::{
        Fill, NodeId, Schema, Shape, apply_defaults, apply_member_defaults, decode_value,
        write_nulls,
    };

    fn read(group: &str, kind: &str, given: Value, fill: Fill) -> Value {
        let schema = Schema::builtin();
        let node = schema.kind(group, "v1", kind).unwrap();
        decode_value(schema, node, given, fill).unwrap().value
    }

    /// Builds a value with all members that are objects, lists or maps. Lists and maps have one item.
    fn sample(schema: &Schema, node: NodeId, above: &mut Vec<NodeId>) -> Value {
        if above.contains(&node) {
            return Value::Null;
        }
        above.push(node);
        let value = match &schema.node(node).shape {
            Shape::Struct(body) => {
                let members = body
                    .fields
                    .iter()
                    .map(|field| (field.name.to_string(), sample(schema, field.node, above)));
                members.filter(|(_, value)| !value.is_null()).collect()
            }
            Shape::Map { value, .. } => json!({"a": sample(schema, *value, above)}),
            Shape::List { item, .. } => json!([sample(schema, *item, above)]),
            _ => Value::Null,
        };
        above.pop();
        value
    }

    /// The API server fills in defaults once, when it decodes an object.
    #[test]
    fn leaves_nothing_to_fill_in_decoded_objects() {
        let schema = Schema::builtin();
        let mut defaulted = 0;
        for kind in &schema.kinds {
            let given = sample(schema, kind.node, &mut Vec::new());
            let plain = decode_value(schema, kind.node, given.clone(), Fill::Zeroes).unwrap().value;
            let decoded = decode_value(schema, kind.node, given, Fill::Defaults).unwrap().value;
            let mut filled = decoded.clone();
            apply_defaults(schema, kind.node, &mut filled).unwrap();
            assert_eq!(filled, decoded, "{}", kind.kind);
            defaulted += usize::from(plain != decoded);
        }
        assert!(defaulted > 10, "{defaulted} kinds have defaults");
    }

    #[test]
    fn fills_in_missing_members_only() {
        let status = json!({"type": "object", "default": {"a": 1}, "properties": {
            "a": {"type": "integer", "default": 2}, "b": {"type": "integer", "default": 3}}});
        let open_api = json!({"type": "object", "properties": {"spec": status, "status": status}});
        let path = api_meta::Path::new("s");
        let schema =
            Schema::from_crd(&open_api, &GroupVersionKind::new("g", "v1", "K"), &path).unwrap();
        let mut object = json!({"spec": {}});
        apply_member_defaults(&schema, schema.kinds[0].node, &mut object).unwrap();
        assert_eq!(object, json!({"spec": {}, "status": {"a": 1, "b": 3}}));
    }

    /// Lists and times that are values in Go are null if absent. Others are omitted.
    #[test]
    fn writes_nil_as_null() {
        let role = read("rbac.authorization.k8s.io", "Role", json!({}), Fill::Defaults);
        assert_eq!(role["rules"], Value::Null);
        assert!(role.as_object().unwrap().contains_key("rules"));
        let event = read("", "Event", json!({"involvedObject": {}}), Fill::Zeroes);
        for time in ["eventTime", "firstTimestamp", "lastTimestamp"] {
            assert_eq!(event.get(time), Some(&Value::Null), "{time}");
        }
        assert_eq!(event.get("series"), None);
        let meta = &event["metadata"];
        assert_eq!((meta.get("creationTimestamp"), meta.get("labels")), (None, None));
        let given = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let pod = read("", "Pod", given.clone(), Fill::Zeroes);
        let condition = json!({"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null});
        assert_eq!(pod["status"]["conditions"], json!([condition]));
        // An applied configuration stays as given.
        let applied = read("", "Pod", given.clone(), Fill::Given);
        assert_eq!(applied, given);
    }

    #[test]
    fn stored_empty_list_becomes_nil() {
        let (schema, group) = (Schema::builtin(), "rbac.authorization.k8s.io");
        let mut role = read(group, "Role", json!({"rules": []}), Fill::Defaults);
        let role_node = schema.kind(group, "v1", "Role").unwrap();
        write_nulls(schema, role_node, &mut role, false);
        assert_eq!(role["rules"], json!([]));
        write_nulls(schema, schema.kind(group, "v1", "Role").unwrap(), &mut role, true);
        assert_eq!(role["rules"], Value::Null);

        let group = "discovery.k8s.io";
        let mut slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": []}]});
        write_nulls(schema, schema.kind(group, "v1", "EndpointSlice").unwrap(), &mut slice, true);
        assert_eq!(
            slice,
            json!({"addressType": "IPv4", "ports": null,
                "endpoints": [{"addresses": ["192.0.2.1"]}, {"addresses": null}]})
        );
        // An empty raw object is not null.
        let mut revision = json!({"data": {}});
        write_nulls(
            schema,
            schema.kind("apps", "v1", "ControllerRevision").unwrap(),
            &mut revision,
            true,
        );
        assert_eq!(revision["data"], json!({}));
    }
}
