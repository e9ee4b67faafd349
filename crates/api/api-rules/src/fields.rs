//! Validation of single fields: tables of field paths and rules, which are next to the kinds, and functions.

use std::{collections::HashSet, net::IpAddr, sync::LazyLock};

use api_meta::{ErrorList, FieldError, LabelSelector, Path, Quantity, Tree as _, validation};
use serde_json::{Map, Value};

use crate::meta::strings;

/// A field path and its rule. `[]` after a name means every item of the list. Fields of absent parents are not checked.
pub(crate) type FieldRule = (&'static str, Rule);

/// A rule for a field. Unless stated otherwise, a rule ignores an absent value. The decoder drops empty strings that Go
/// omits, so `""` is present only for pointer fields.
pub(crate) enum Rule {
    /// The value must be present and not empty; with upstream's explanation.
    Required(&'static str),
    /// The value must be in the list.
    OneOf(&'static [&'static str]),
    /// A mandatory value that is in the list.
    IsOneOf(&'static [&'static str]),
    /// A string for which the function returns no errors.
    Text(fn(&str) -> Vec<String>),
    /// A string that is empty or satisfies the function.
    TextIfAny(fn(&str) -> Vec<String>),
    /// A string that satisfies the function. An absent string is checked as an empty one.
    IsText(fn(&str) -> Vec<String>),
    /// A mandatory, non-empty string that satisfies the function.
    Named(fn(&str) -> Vec<String>),
    /// A number in a range; with the message for other numbers.
    Within(i64, i64, &'static str),
    /// A number in a range; with the message for other numbers. An absent number is checked as 0.
    IsWithin(i64, i64, &'static str),
    /// A list without duplicate items.
    Unique,
    /// A list of items with distinct values of this field.
    UniqueBy(&'static str),
    /// A label selector.
    Selector,
    /// A map of valid labels.
    Labels,
    /// A non-negative quantity.
    Amount,
}

/// The value of a `null` item, which Go decodes as an empty struct.
static NOTHING: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));

/// Reports violations of the rules of a table.
pub(crate) fn check(object: &Value, rules: &[FieldRule], path: &Path, errors: &mut ErrorList) {
    for (field, rule) in rules {
        visit(object, field, path, &mut |value, path| rule.check(value, path, errors));
    }
}

/// Calls `found` for each value at a field path: once if the path has no list.
fn visit(here: &Value, field: &str, path: &Path, found: &mut dyn FnMut(&Value, &Path)) {
    let (step, rest) = field.split_once('.').map_or((field, None), |(s, r)| (s, Some(r)));
    if !here.is_object() {
        return;
    }
    let mut go = |value: &Value, path: &Path| match rest {
        Some(rest) => visit(value, rest, path, found),
        None => found(value, path),
    };
    match step.strip_suffix("[]") {
        None => go(here.at(step), &path.child(step)),
        Some(list) => {
            for (i, item) in here.items(list).iter().enumerate() {
                let item = if item.is_null() { &*NOTHING } else { item };
                go(item, &path.child(list).index(i));
            }
        }
    }
}

impl Rule {
    fn check(&self, value: &Value, path: &Path, errors: &mut ErrorList) {
        let text = || value.text("");
        match self {
            Self::Required(detail) => {
                if value.blank("") {
                    errors.push(FieldError::required(path, *detail));
                }
            }
            Self::OneOf(_) if value.is_null() => {}
            Self::OneOf(allowed) | Self::IsOneOf(allowed) => {
                if !allowed.contains(&text()) {
                    errors.push(FieldError::not_supported(path, text(), allowed));
                }
            }
            Self::Text(_) if value.is_null() => {}
            Self::TextIfAny(_) if text().is_empty() => {}
            Self::Text(validate) | Self::TextIfAny(validate) | Self::IsText(validate) => {
                let found = validate(text()).into_iter();
                errors.extend(found.map(|message| FieldError::invalid(path, text(), message)));
            }
            Self::Named(_) if text().is_empty() => errors.push(FieldError::required(path, "")),
            Self::Named(validate) => Self::Text(*validate).check(value, path, errors),
            Self::Within(..) if value.is_null() => {}
            Self::Within(low, high, detail) | Self::IsWithin(low, high, detail) => {
                let number = value.as_i64().unwrap_or_default();
                if !(*low..=*high).contains(&number) {
                    errors.push(FieldError::invalid(path, number, *detail));
                }
            }
            Self::Unique => validate_unique(value, "", path, errors),
            Self::UniqueBy(field) => validate_unique(value, field, path, errors),
            Self::Selector => validate_label_selector(value, path, errors),
            Self::Labels => errors.append(&mut validation::labels(&strings(value), path)),
            Self::Amount => {
                if let Ok(amount) = Quantity::parse(text())
                    && amount.is_negative()
                {
                    let detail = "must be greater than or equal to 0";
                    errors.push(FieldError::invalid(path, amount.to_string(), detail));
                }
            }
        }
    }
}

/// Reports duplicate items of a list, or items with duplicate values of `field`.
fn validate_unique(list: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    let mut seen: HashSet<&Value> = HashSet::new();
    for (i, item) in list.as_array().into_iter().flatten().enumerate() {
        let (key, path) = match field {
            "" => (item, path.index(i)),
            field => (item.at(field), path.index(i).child(field)),
        };
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(&path, key.clone()));
        }
    }
}

/// Reports a missing required string.
pub(crate) fn validate_present(object: &Value, field: &str, path: &Path, errors: &mut ErrorList) {
    if object.blank(field) {
        errors.push(FieldError::required(&path.child(field), ""));
    }
}

/// Reports a value outside a list. An empty value is reported as missing.
pub(crate) fn validate_one_of(
    object: &Value,
    field: &str,
    allowed: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    let value = object.text(field);
    if value.is_empty() {
        errors.push(FieldError::required(&path.child(field), ""));
    } else if !allowed.contains(&value) {
        errors.push(FieldError::not_supported(&path.child(field), value, allowed));
    }
}

/// Reports a value outside a list, for an optional field. An empty string is present only for pointer fields.
pub(crate) fn validate_optional_one_of(
    object: &Value,
    field: &str,
    allowed: &[&str],
    path: &Path,
    errors: &mut ErrorList,
) {
    if let Some(value) = object.at(field).as_str()
        && !allowed.contains(&value)
    {
        errors.push(FieldError::not_supported(&path.child(field), value, allowed));
    }
}

/// Parses an IP address, or reports an error.
pub(crate) fn check_ip(text: &str, path: &Path, errors: &mut ErrorList) -> Option<IpAddr> {
    let ip = validation::ip(text);
    ip.map_err(|message| errors.push(FieldError::invalid(path, text, message))).ok()
}

/// Reports whether a list of addresses or ranges has more than one of an IP family.
pub(crate) fn repeats_a_family<'a>(list: impl Iterator<Item = &'a str>) -> bool {
    let (v6, v4): (Vec<&str>, Vec<&str>) = list.partition(|text| text.contains(':'));
    v6.len() > 1 || v4.len() > 1
}

/// Validates the form of a signer's name.
pub(crate) fn validate_signer_name(signer: &str, path: &Path, errors: &mut ErrorList) {
    if signer.matches('/').count() != 1 {
        let detail =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(FieldError::invalid(path, signer, detail));
    }
}

/// Validates a label selector in its JSON form. Null is valid.
pub(crate) fn validate_label_selector(selector: &Value, path: &Path, errors: &mut ErrorList) {
    if let Ok(selector) = serde_json::from_value::<LabelSelector>(selector.clone()) {
        errors.append(&mut selector.validate(path));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn checks_rules_at_field_paths() {
        const RULES: &[FieldRule] = &[
            ("spec.list[].kind", Rule::IsOneOf(&["A", "B"])),
            ("spec.list[].deep.name", Rule::Named(validation::dns1123_label)),
            ("spec.list", Rule::UniqueBy("kind")),
            ("spec.words[]", Rule::IsText(validation::dns1123_label)),
            ("spec.words", Rule::Unique),
            ("spec.mode", Rule::OneOf(&["X"])),
            ("spec.count", Rule::Within(0, 9, "must fit")),
            ("spec.must", Rule::IsWithin(1, 9, "must be there")),
            ("spec.text", Rule::Required("give one")),
            ("spec.size", Rule::Amount),
            ("absent.text", Rule::Required("")),
        ];
        let messages = |object: Value| {
            let mut errors = ErrorList::new();
            check(&object, RULES, &Path::new(""), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let good = json!({"spec": {"list": [{"kind": "A", "deep": {"name": "n"}}, {"kind": "B"}],
            "words": ["a", "b"], "count": 9, "must": 1, "text": "t", "size": "1Gi"}});
        assert_eq!(messages(good), Vec::<String>::new());
        let bad = json!({"spec": {"list": [{"kind": "A", "deep": {}}, {"kind": "A"}, null],
            "words": ["a", "a"], "mode": "", "count": -1, "size": "-1"}});
        assert_eq!(
            messages(bad),
            [
                "spec.list[2].kind: Unsupported value: \"\": supported values: \"A\", \"B\"",
                "spec.list[0].deep.name: Required value",
                "spec.list[1].kind: Duplicate value: \"A\"",
                "spec.words[1]: Duplicate value: \"a\"",
                "spec.mode: Unsupported value: \"\": supported values: \"X\"",
                "spec.count: Invalid value: -1: must fit",
                "spec.must: Invalid value: 0: must be there",
                "spec.text: Required value: give one",
                "spec.size: Invalid value: \"-1\": must be greater than or equal to 0",
            ]
        );
    }
}
