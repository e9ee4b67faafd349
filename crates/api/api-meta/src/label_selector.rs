use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    field::{ErrorList, FieldError, Path},
    object_meta::null_default,
    quote::go_quote,
    selector::{Operator, Requirement, Selector, SelectorError},
    validation,
};

/// The label selector of an object's field. All pairs and requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// The labels that must have these values.
    #[serde(
        default,
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "null_default"
    )]
    pub match_labels: BTreeMap<String, String>,
    /// The set-based requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub match_expressions: Vec<LabelSelectorRequirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LabelSelectorRequirement {
    /// The key of the label.
    pub key: String,
    /// The operator: `In`, `NotIn`, `Exists` or `DoesNotExist`.
    #[serde(default)]
    pub operator: String,
    /// The values; empty for `Exists` and `DoesNotExist`.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "null_default")]
    pub values: Vec<String>,
}

impl LabelSelector {
    /// Returns `true` if the selector has no conditions and so selects everything.
    pub fn is_empty(&self) -> bool {
        self.match_labels.is_empty() && self.match_expressions.is_empty()
    }

    /// Compiles the selector of an optional field: an absent one selects nothing, an empty one everything.
    pub fn selector_of(selector: Option<&Self>) -> Result<Selector, SelectorError> {
        selector.map_or(Ok(Selector::nothing()), Self::to_selector)
    }

    /// Compiles the selector. Returns an error for an unknown operator or an invalid key.
    pub fn to_selector(&self) -> Result<Selector, SelectorError> {
        let mut requirements =
            Vec::with_capacity(self.match_labels.len() + self.match_expressions.len());
        for (key, value) in &self.match_labels {
            requirements.push(Requirement::new(key, Operator::Equals, vec![value.clone()])?);
        }
        for expression in &self.match_expressions {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => {
                    return Err(SelectorError(format!(
                        "{} is not a valid label selector operator",
                        go_quote(other)
                    )));
                }
            };
            requirements.push(Requirement::new(
                &expression.key,
                operator,
                expression.values.clone(),
            )?);
        }
        Ok(Selector::new(requirements))
    }

    /// Validates the selector at `path`.
    pub fn validate(&self, path: &Path) -> ErrorList {
        let mut errors = validation::labels(&self.match_labels, &path.child("matchLabels"));
        for (i, expression) in self.match_expressions.iter().enumerate() {
            let at = path.child("matchExpressions").index(i);
            let operator = expression.operator.as_str();
            errors.extend(values_error(operator, expression.values.is_empty(), &at));
            if !matches!(operator, "In" | "NotIn" | "Exists" | "DoesNotExist") {
                errors.push(FieldError::invalid(
                    &at.child("operator"),
                    operator,
                    "not a valid selector operator",
                ));
            }
            errors.extend(validation::label_key(&expression.key, &at.child("key")));
            for (v, value) in expression.values.iter().enumerate() {
                let at = at.child("values").index(v);
                errors.extend(
                    validation::label_value(value)
                        .into_iter()
                        .map(|m| FieldError::invalid(&at, value.as_str(), m)),
                );
            }
        }
        errors
    }
}

/// Returns the error of a requirement's values at `path`: some operators need values, others allow none.
pub fn values_error(operator: &str, is_empty: bool, path: &Path) -> Option<FieldError> {
    match (operator, is_empty) {
        ("In" | "NotIn", true) => Some(FieldError::required(
            &path.child("values"),
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        ("Exists" | "DoesNotExist", false) => Some(FieldError::forbidden(
            &path.child("values"),
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn compiles_to_selector() {
        let selector: LabelSelector = serde_json::from_value(json!({
            "matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [
                {"key": "c", "operator": "In", "values": ["y", "x"]},
                {"key": "d", "operator": "DoesNotExist", "values": null}
            ]
        }))
        .unwrap();
        assert_eq!(selector.to_selector().unwrap().to_string(), "a=1,b=2,c in (x,y),!d");
        assert!(LabelSelector::selector_of(None).unwrap().matches_none());
        assert!(LabelSelector::default().to_selector().unwrap().is_everything());
        assert_eq!(selector.validate(&Path::new("spec.selector")), ErrorList::new());
    }

    #[test]
    fn rejects_unknown_operators() {
        let expression =
            LabelSelectorRequirement { key: "a".into(), operator: "Has".into(), values: vec![] };
        let selector =
            LabelSelector { match_expressions: vec![expression], ..LabelSelector::default() };
        assert_eq!(
            selector.to_selector().unwrap_err().to_string(),
            "\"Has\" is not a valid label selector operator"
        );
        assert_eq!(
            selector.validate(&Path::new("s"))[0].to_string(),
            "s.matchExpressions[0].operator: Invalid value: \"Has\": not a valid selector operator"
        );
    }
}
