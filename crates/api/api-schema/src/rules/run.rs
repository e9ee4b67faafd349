//! Evaluates rules over an object within a shared cost limit.

use std::collections::HashMap;

use api_meta::{ErrorList, FieldError, Path};
use cel::{EvalError, Limits, PER_CALL_LIMIT, Value as CelValue};
use serde_json::Value;

use super::rule::{Rule, Rules};

/// The longest message that an expression may return, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The error for a message expression that ends the validation, in upstream's words.
#[derive(Debug, thiserror::Error)]
enum BudgetError {
    #[error(
        "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
    )]
    Total,
    #[error(
        "no further validation rules will be run due to call cost exceeds limit for messageExpression: {}",
        api_meta::go_quote(.0)
    )]
    Call(Box<str>),
}

/// A value to validate.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) value: &'a Value,
    /// The value before the update.
    pub(super) old: Option<&'a Value>,
    /// `true` if an enclosing value is unchanged.
    pub(super) unchanged: bool,
    pub(super) path: &'a Path,
}

pub(super) struct Run<'e> {
    pub(super) errors: &'e mut ErrorList,
    /// The remaining cost of the object's rules. A negative value stops the validation.
    pub(super) budget: i64,
}

impl Run<'_> {
    /// Evaluates the rules of a value and its descendants.
    pub(super) fn value(&mut self, rules: &Rules, subject: Subject<'_>) {
        let Subject { value, path, .. } = subject;
        // A null value is subject only to the rules of the enclosing schema.
        if value.is_null() || self.budget < 0 {
            return;
        }
        let old = subject.old.filter(|old| !old.is_null());
        let unchanged = subject.unchanged || old == Some(value);
        let subject = Subject { old, unchanged, ..subject };
        self.rules(rules, subject);
        for branch in &rules.all_of {
            self.value(branch, subject);
        }
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    let old = old.and_then(|old| old.get(name));
                    let member = Subject { value: member, old, unchanged, path };
                    if let Some(below) = &rules.values {
                        self.value(below, Subject { path: &path.key(name), ..member });
                    }
                    if let Some(below) = rules.fields.get(name.as_str()) {
                        self.value(below, Subject { path: &path.child(name), ..member });
                    }
                }
            }
            Value::Array(items) => {
                let Some(below) = &rules.items else { return };
                let old = rules.counterparts(old);
                for (at, item) in items.iter().enumerate() {
                    let old = old.get(&rules.keys_of(item)).copied();
                    let path = &path.index(at);
                    self.value(below, Subject { value: item, old, unchanged, path });
                }
            }
            _ => {}
        }
    }

    fn stop(&mut self, error: FieldError) {
        self.errors.push(error);
        self.budget = -1;
    }

    fn rules(&mut self, rules: &Rules, subject: Subject<'_>) {
        for rule in &rules.rules {
            // An unchanged value may violate a rule that is newer than the value.
            if self.budget < 0 || subject.unchanged && !rule.uses_old {
                continue;
            }
            if self.budget == 0 {
                let error = FieldError::invalid(subject.path, &*rules.kind, OUT_OF_BUDGET);
                return self.stop(error);
            }
            if rule.uses_old && subject.old.is_none() && !rule.optional_old {
                continue;
            }
            self.rule(rules, rule, subject);
        }
    }

    fn rule(&mut self, rules: &Rules, rule: &Rule, subject: Subject<'_>) {
        let invalid = |detail: String| FieldError::invalid(subject.path, &*rules.kind, detail);
        let program = match &rule.program {
            Ok(program) => program,
            Err(error) => return self.errors.push(invalid(format!("rule compile error: {error}"))),
        };
        let variables = match variables(rules, rule, subject) {
            Ok(variables) => variables,
            Err(error) => return self.errors.push(invalid(describe_error(&error, rule))),
        };
        let outcome = program.evaluate(&variables, limits());
        if !self.spend(outcome.cost) {
            return self.stop(invalid(OUT_OF_BUDGET.to_owned()));
        }
        match outcome.value {
            Ok(CelValue::Bool(true)) => {}
            Ok(_) => self.failed(rules, rule, subject, &variables),
            Err(EvalError::CostLimit) => {
                let error = EvalError::CostLimit;
                self.stop(invalid(format!(
                    "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {}",
                    rule.description()
                )));
            }
            Err(error) => self.errors.push(invalid(describe_error(&error, rule))),
        }
    }

    fn spend(&mut self, cost: u64) -> bool {
        match i64::try_from(cost) {
            Ok(cost) if cost <= self.budget => {
                self.budget -= cost;
                true
            }
            _ => false,
        }
    }

    fn failed(
        &mut self,
        rules: &Rules,
        rule: &Rule,
        subject: Subject<'_>,
        variables: &[Option<CelValue<'_>>],
    ) {
        let Subject { value, path, .. } = subject;
        let path = match &rule.field_path {
            Some(below) => path.child(below),
            None => path.clone(),
        };
        let detail = match self.message(rule, variables) {
            Ok(detail) => detail,
            Err(error) => {
                let error = FieldError::invalid(&path, &*rules.kind, error.to_string());
                return self.stop(error);
            }
        };
        // Objects and lists are not included in the error.
        let shown = (!matches!(value, Value::Object(_) | Value::Array(_))).then(|| value.clone());
        let error = match rule.reason.as_deref() {
            Some("FieldValueForbidden") => FieldError::forbidden(&path, detail),
            Some("FieldValueRequired") => FieldError::required(&path, detail),
            Some("FieldValueDuplicate") => FieldError::duplicate(&path, Value::Null),
            _ => FieldError::invalid(&path, Value::Null, detail),
        };
        let has_value = error.value.is_some();
        self.errors.push(FieldError { value: shown.filter(|_| has_value), ..error });
    }

    /// Returns the message of a failed rule. If its message expression fails, the rule's own message is used. If the
    /// expression exceeds the cost limit, the validation ends.
    fn message(
        &mut self,
        rule: &Rule,
        variables: &[Option<CelValue<'_>>],
    ) -> Result<String, BudgetError> {
        let Some((source, program)) = &rule.message_expression else { return Ok(rule.default()) };
        let variables: Vec<Option<CelValue<'_>>> = variables.to_vec();
        let outcome = program.evaluate(&variables, limits());
        if !self.spend(outcome.cost) {
            return Err(BudgetError::Total);
        }
        match outcome.value {
            Ok(CelValue::String(text)) => {
                let text = text.trim();
                let fits = !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
                Ok(if fits { text.to_owned() } else { rule.default() })
            }
            Err(EvalError::CostLimit) => Err(BudgetError::Call(source.clone())),
            _ => Ok(rule.default()),
        }
    }
}

fn limits<'c>() -> Limits<'c> {
    Limits { cost: PER_CALL_LIMIT, cancelled: None }
}

fn variables<'a>(
    rules: &'a Rules,
    rule: &Rule,
    subject: Subject<'a>,
) -> Result<[Option<CelValue<'a>>; 2], EvalError> {
    let itself = CelValue::from_json(subject.value, &rules.decl)?;
    if !rule.uses_old {
        return Ok([Some(itself), None]);
    }
    let old = subject.old.map(|old| CelValue::from_json(old, &rules.decl)).transpose()?;
    let old = if rule.optional_old { Some(CelValue::optional(old)) } else { old };
    Ok([Some(itself), old])
}

fn describe_error(error: &EvalError, rule: &Rule) -> String {
    let (text, shown) = (error.to_string(), rule.description());
    if text.starts_with("no such overload") {
        return format!(
            "'{text}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
        );
    }
    format!("{text} evaluating rule: {shown}")
}

impl Rule {
    /// Returns the rule's message, or its expression.
    fn description(&self) -> &str {
        if self.message.is_empty() { self.text.trim() } else { self.message.trim() }
    }

    fn default(&self) -> String {
        match self.message.trim() {
            "" => format!("failed rule: {}", self.description()),
            message => message.to_owned(),
        }
    }
}

impl Rules {
    /// Returns the first old item of each combination of keys. Items of other lists have no identity.
    fn counterparts<'v>(&self, old: Option<&'v Value>) -> HashMap<Vec<&'v Value>, &'v Value> {
        let mut first = HashMap::new();
        for item in
            old.filter(|_| self.keys.is_some()).and_then(Value::as_array).into_iter().flatten()
        {
            first.entry(self.keys_of(item)).or_insert(item);
        }
        first
    }

    fn keys_of<'v>(&self, item: &'v Value) -> Vec<&'v Value> {
        self.keys.iter().flatten().map(|key| &item[&**key]).collect()
    }
}
