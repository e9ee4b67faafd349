//! Validates custom resources against their schema, with the messages of upstream's validator.

use std::collections::{HashMap, HashSet};

use api_meta::{ErrorList, FieldError, Path};
use serde_json::{Map, Number, Value};

use crate::{
    formats,
    node::{ListType, Node, NodeId, Rules, Shape},
    schema::Schema,
};

/// Returns the errors of an object of the type at `node`, which replaces `old`. Unchanged values are not validated, so
/// that objects can be updated that were stored before their schema was tightened.
pub fn validate(schema: &Schema, node: NodeId, value: &Value, old: Option<&Value>) -> ErrorList {
    let mut check = Check { schema, errors: ErrorList::new() };
    check.value(node, value, old, &Path::new(""));
    check.errors
}

/// Evaluates the `x-kubernetes-validations` of the type at `node` and adds to the errors of [`validate`].
pub fn validate_rules(
    schema: &Schema,
    node: NodeId,
    value: &Value,
    old: Option<&Value>,
    errors: &mut ErrorList,
) {
    if let Some(rules) = schema.rules_of(node) {
        rules.validate(value, old, errors);
    }
}

pub(crate) fn validate_at(schema: &Schema, node: NodeId, value: &Value, path: &Path) -> ErrorList {
    let mut check = Check { schema, errors: ErrorList::new() };
    check.value(node, value, None, path);
    check.errors
}

struct Check<'s> {
    schema: &'s Schema,
    errors: ErrorList,
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number)
            if number.is_f64() && number.as_f64().is_none_or(|n| n.fract() != 0.0) =>
        {
            "number"
        }
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the expected type if the value has another one.
fn mistyped(node: &Node, value: &Value) -> Option<&'static str> {
    let actual = type_name(value);
    let expected = match &node.shape {
        Shape::Struct(_) | Shape::Map { .. } => "object",
        Shape::List { .. } => "array",
        Shape::Integer { .. } => "integer",
        Shape::Number if actual == "integer" => return None,
        Shape::Number => "number",
        Shape::Boolean => "boolean",
        Shape::IntOrString if actual == "integer" || actual == "string" => return None,
        Shape::IntOrString => "integer,string",
        Shape::Any | Shape::Quantity => return None,
        Shape::String | Shape::Bytes | Shape::Time | Shape::MicroTime | Shape::Duration => "string",
    };
    (expected != actual).then_some(expected)
}

impl Check<'_> {
    /// Reports an error with the message of upstream's validator: `spec.x in body should …`.
    fn invalid(&mut self, path: &Path, value: &Value, what: impl std::fmt::Display) {
        self.errors.push_with(|| {
            let detail = format!("{} in body {what}", path.as_str());
            FieldError::invalid(path, value.clone(), detail.trim_start().to_owned())
        });
    }

    /// Validates a value. `old` is the correlated value before the update.
    fn value(&mut self, id: NodeId, value: &Value, old: Option<&Value>, path: &Path) {
        api_meta::steps::spend(1);
        let node = self.schema.node(id);
        if old == Some(value) {
            return;
        }
        if value.is_null() && node.nullable {
            // Only this keyword applies to values of every type.
            node.rules.as_deref().inspect(|rules| self.enumeration(rules, value, path));
            return;
        }
        let untyped = node.rules.as_ref().is_some_and(|rules| rules.untyped)
            && !matches!(node.shape, Shape::IntOrString);
        if let Some(expected) = mistyped(node, value).filter(|_| !untyped) {
            let actual = type_name(value);
            let detail =
                format!("{} in body must be of type {expected}: \"{actual}\"", path.as_str());
            self.errors.push(FieldError::type_invalid(
                path,
                actual,
                detail.trim_start().to_owned(),
            ));
            node.rules.as_deref().inspect(|rules| self.enumeration(rules, value, path));
            return;
        }
        if let Some(rules) = &node.rules {
            self.rules(rules, value, path);
        }
        match (&node.shape, value) {
            (Shape::Struct(body), Value::Object(members)) => {
                for (name, member) in members {
                    if let Some(field) = body.field(name) {
                        self.value(field.node, member, below(old, name), &path.child(name));
                    }
                }
            }
            (Shape::Map { value: node, .. }, Value::Object(members)) => {
                for (name, member) in members {
                    self.value(*node, member, below(old, name), &path.child(name));
                }
            }
            (Shape::List { item, list }, Value::Array(items)) => {
                let before = counterparts(list, old);
                for (at, value) in items.iter().enumerate() {
                    let old = before.get(&keys_of(list, value)).copied();
                    self.value(*item, value, old, &path.index(at));
                }
                self.unique(list, items, path);
            }
            _ => {}
        }
    }

    fn rules(&mut self, rules: &Rules, value: &Value, path: &Path) {
        match value {
            Value::Number(number) => self.number(rules, number, value, path),
            Value::String(text) => self.text(rules, text, value, path),
            Value::Array(items) => self.items(rules, items, value, path),
            Value::Object(members) => self.object(rules, members, value, path),
            _ => {}
        }
        self.enumeration(rules, value, path);
        self.branches(rules, value, path);
    }

    fn enumeration(&mut self, rules: &Rules, value: &Value, path: &Path) {
        if !rules.enumeration.is_empty()
            && !rules.enumeration.iter().any(|allowed| is_same(allowed, value))
        {
            self.errors.push_with(|| {
                let allowed: Vec<String> = rules.enumeration.iter().map(plain).collect();
                FieldError::not_supported(path, value.clone(), &allowed)
            });
        }
    }

    fn number(&mut self, rules: &Rules, number: &Number, value: &Value, path: &Path) {
        let Some(number) = number.as_f64() else { return };
        if let Some(least) = rules.minimum {
            if rules.exclusive_minimum && number <= least {
                self.invalid(path, value, format_args!("should be greater than {least}"));
            } else if !rules.exclusive_minimum && number < least {
                self.invalid(
                    path,
                    value,
                    format_args!("should be greater than or equal to {least}"),
                );
            }
        }
        if let Some(most) = rules.maximum {
            if rules.exclusive_maximum && number >= most {
                self.invalid(path, value, format_args!("should be less than {most}"));
            } else if !rules.exclusive_maximum && number > most {
                self.invalid(path, value, format_args!("should be less than or equal to {most}"));
            }
        }
        if let Some(factor) = rules.multiple_of.filter(|f| *f > 0.0) {
            let quotient = number / factor;
            if (quotient - quotient.round()).abs() > 1e-9 {
                self.invalid(path, value, format_args!("should be a multiple of {factor}"));
            }
        }
        let range = match rules.format.as_deref() {
            Some("int32") => Some(f64::from(i32::MIN)..=f64::from(i32::MAX)),
            _ => None,
        };
        if range.is_some_and(|range| !range.contains(&number)) {
            self.invalid(path, value, "must be of type int32: \"int64\"");
        }
    }

    fn text(&mut self, rules: &Rules, text: &str, value: &Value, path: &Path) {
        let needs_length = rules.min_length.is_some() || rules.max_length.is_some();
        let length = if needs_length { text.chars().count() as u64 } else { 0 };
        if let Some(most) = rules.max_length.filter(|most| length > *most) {
            self.errors
                .push(FieldError::too_long(path, usize::try_from(most).unwrap_or(usize::MAX)));
        }
        if let Some(least) = rules.min_length.filter(|least| length < *least) {
            self.invalid(path, value, format_args!("should be at least {least} chars long"));
        }
        if let Some(pattern) = rules.pattern.as_ref().filter(|pattern| !pattern.matches(text)) {
            self.invalid(path, value, format_args!("should match '{}'", pattern.text()));
        }
        if let Some(format) =
            rules.format.as_deref().filter(|format| !formats::matches(format, text))
        {
            self.invalid(
                path,
                value,
                format_args!("must be of type {format}: {}", api_meta::go_quote(text)),
            );
        }
    }

    fn items(&mut self, rules: &Rules, items: &[Value], value: &Value, path: &Path) {
        let count = items.len() as u64;
        if let Some(least) = rules.min_items.filter(|least| count < *least) {
            self.invalid(path, value, format_args!("should have at least {least} items"));
        }
        if let Some(most) = rules.max_items.filter(|most| count > *most) {
            self.errors.push(FieldError::too_many(
                path,
                items.len(),
                usize::try_from(most).unwrap_or(usize::MAX),
            ));
        }
        if rules.unique_items && repeats(items.iter().map(ToString::to_string)).next().is_some() {
            self.invalid(path, value, "shouldn't contain duplicates");
        }
    }

    fn object(&mut self, rules: &Rules, members: &Map<String, Value>, value: &Value, path: &Path) {
        let count = members.len() as u64;
        if let Some(least) = rules.min_properties.filter(|least| count < *least) {
            self.invalid(path, value, format_args!("should have at least {least} properties"));
        }
        if let Some(most) = rules.max_properties.filter(|most| count > *most) {
            self.errors.push(FieldError::too_many(
                path,
                members.len(),
                usize::try_from(most).unwrap_or(usize::MAX),
            ));
        }
        for name in rules.required.iter().filter(|name| !members.contains_key(&***name)) {
            self.errors.push(FieldError::required(&path.child(name), ""));
        }
        for name in ["apiVersion", "kind"].into_iter().filter(|_| rules.embedded) {
            match members.get(name) {
                None => self.errors.push(FieldError::required(&path.child(name), "")),
                Some(member) if member == "" => {
                    let detail = "must not be empty";
                    self.errors.push(FieldError::invalid(&path.child(name), "", detail));
                }
                Some(_) => {}
            }
        }
    }

    fn branches(&mut self, rules: &Rules, value: &Value, path: &Path) {
        // Each branch is validated once. Branches nest, so validating one twice would double the work at each level.
        let validate_branch = |branch: &NodeId| validate_at(self.schema, *branch, value, path);
        let judge_all =
            |branches: &[NodeId]| branches.iter().map(validate_branch).collect::<Vec<ErrorList>>();
        // Upstream also reports the errors of the best branch, which is the one with the fewest errors.
        let closest = |judged: Vec<ErrorList>| {
            judged.into_iter().min_by_key(|errors| errors.len()).unwrap_or_default()
        };
        let quoted = api_meta::go_quote(path.as_str());
        let (mut found, mut besides) = (Vec::new(), Vec::new());
        let any_of = judge_all(&rules.any_of);
        if !any_of.is_empty() && any_of.iter().all(|errors| !errors.is_empty()) {
            found.push(format!("{quoted} must validate at least one schema (anyOf)"));
            besides.extend(closest(any_of));
        }
        let one_of = judge_all(&rules.one_of);
        if !one_of.is_empty() {
            let rule = "must validate one and only one schema (oneOf)";
            match one_of.iter().filter(|errors| errors.is_empty()).count() {
                1 => {}
                0 => {
                    found.push(format!("{quoted} {rule}. Found none valid"));
                    besides.extend(closest(one_of));
                }
                n => found.push(format!("{quoted} {rule}. Found {n} valid alternatives")),
            }
        }
        let all_of = judge_all(&rules.all_of);
        if all_of.iter().any(|errors| !errors.is_empty()) {
            found.push(format!("{quoted} must validate all the schemas (allOf)"));
            besides.extend(all_of.into_iter().flatten());
        }
        if rules.not.as_ref().is_some_and(|branch| validate_branch(branch).is_empty()) {
            found.push(format!("{quoted} must not validate the schema (not)"));
        }
        // Upstream puts the path only into the message.
        let nowhere = Path::new("");
        let found = found.into_iter().map(|message| FieldError::invalid(&nowhere, "", message));
        self.errors.extend(found.chain(besides));
    }

    /// Reports duplicate items of sets, and duplicate keys of keyed lists.
    fn unique(&mut self, list: &ListType, items: &[Value], path: &Path) {
        if let ListType::Map(_) = list
            && let Some(at) = items.iter().position(|item| !item.is_object() && !item.is_null())
        {
            let detail = "must be an object for an array of list-type map";
            self.errors.push(FieldError::invalid(&path.index(at), items[at].clone(), detail));
            return;
        }
        let repeated: Vec<usize> = match list {
            ListType::Atomic => return,
            ListType::Set => repeats(items.iter().map(ToString::to_string)).collect(),
            ListType::Map(keys) => {
                let key_of = |item: &Value| {
                    keys.iter().map(|key| item[&**key].to_string()).collect::<Vec<_>>().join("\0")
                };
                repeats(items.iter().map(key_of)).collect()
            }
        };
        for at in repeated {
            let shown = match list {
                ListType::Map(keys) => keys
                    .iter()
                    .map(|key| (key.as_ref().to_owned(), items[at][&**key].clone()))
                    .collect(),
                _ => items[at].clone(),
            };
            self.errors.push(FieldError::duplicate(&path.index(at), shown));
        }
    }
}

fn below<'v>(old: Option<&'v Value>, name: &str) -> Option<&'v Value> {
    old?.get(name)
}

/// Returns the first old item of each combination of keys. Items of other lists have no identity.
fn counterparts<'v>(list: &ListType, old: Option<&'v Value>) -> HashMap<Vec<&'v Value>, &'v Value> {
    let mut first = HashMap::new();
    if let ListType::Map(_) = list {
        for item in old.and_then(Value::as_array).into_iter().flatten() {
            first.entry(keys_of(list, item)).or_insert(item);
        }
    }
    first
}

fn keys_of<'v>(list: &ListType, item: &'v Value) -> Vec<&'v Value> {
    match list {
        ListType::Map(keys) => keys.iter().map(|key| &item[&**key]).collect(),
        _ => Vec::new(),
    }
}

/// Returns the indexes of duplicate items.
fn repeats(items: impl Iterator<Item = String>) -> impl Iterator<Item = usize> {
    let mut seen = HashSet::new();
    items.enumerate().filter_map(move |(at, item)| (!seen.insert(item)).then_some(at))
}

/// Reports whether two values are equal. Numbers are compared by value, such as `1` and `1.0`.
fn is_same(a: &Value, b: &Value) -> bool {
    api_meta::steps::spend(1);
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
