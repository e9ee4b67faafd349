//! A policy's compiled expressions and their evaluation on a request.

use std::time::Duration;

use api_meta::Tree as _;
use api_rules::expressions::{ResultType, Scope};
use cel::{Composition, EvalError, Value as Cel};
use serde_json::{Map, Value, json};

use super::{
    question::Question,
    result::{Annotation, Decision, PolicyResult},
};
use crate::{
    conditions::Conditions,
    expressions::{BUDGET, Expression, ExpressionError, ExpressionInput, OutOfBudget, Run},
};

/// The longest message that an expression may return, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;

/// The compiled expressions of a policy.
#[derive(Debug)]
pub(super) struct CompiledPolicy {
    composition: Composition,
    conditions: Conditions,
    validations: Vec<Validation>,
    annotations: Vec<(String, Expression)>,
    pub(super) mutations: Vec<Mutation>,
}

#[derive(Debug)]
struct Validation {
    expression: Expression,
    message: String,
    message_expression: Option<Expression>,
    reason: String,
}

/// An entry of `mutations`.
#[derive(Debug)]
pub struct Mutation {
    expression: Expression,
    /// `true` for `patchType: JSONPatch`, otherwise the expression returns an apply configuration.
    patch: bool,
}

/// The result of a mutation.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A JSON patch.
    Patch(Vec<u8>),
    /// An apply configuration to merge into the object.
    Configuration(Value),
}

/// The reason why a mutation has no result, with upstream's messages.
#[derive(Debug, thiserror::Error)]
pub enum MutationError {
    #[error("{0}")]
    Compilation(String),
    #[error(transparent)]
    Expression(#[from] ExpressionError),
    #[error("type mismatch: {}", .0.join("\n"))]
    TypeMismatch(Vec<String>),
    #[error("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {0}")]
    NotJson(EvalError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

impl From<EvalError> for MutationError {
    fn from(error: EvalError) -> Self {
        Self::Expression(error.into())
    }
}

impl CompiledPolicy {
    pub(super) fn of(spec: &Value) -> Self {
        let params = spec["paramKind"].is_object();
        let mut composition = Composition::default();
        for variable in spec.items("variables").iter() {
            let scope = Scope { params, authorizer: true, composition: Some(&composition) };
            let program = scope.compile(variable.text("expression"), ResultType::Anything);
            composition.add(variable.text("name"), program);
        }
        let scope = Scope { params, authorizer: true, composition: Some(&composition) };
        let compiled = |text: &str, gives| Expression {
            program: scope.compile(text, gives),
            text: text.to_owned(),
        };
        let message = |text: &str| Expression {
            program: Scope { authorizer: false, ..scope }.compile(text, ResultType::Text),
            text: text.to_owned(),
        };
        let validation = |given: &Value| Validation {
            expression: compiled(given.text("expression"), ResultType::Bool),
            message: given.text("message").trim().to_owned(),
            message_expression: Some(given.text("messageExpression"))
                .filter(|text| !text.is_empty())
                .map(message),
            reason: given.text("reason").to_owned(),
        };
        let annotation = |given: &Value| {
            let expression = compiled(given.text("valueExpression"), ResultType::Annotation);
            (given.text("key").to_owned(), expression)
        };
        let mutation = |given: &Value| {
            let patch = given.text("patchType") == "JSONPatch";
            let (pointer, gives) = if patch {
                ("jsonPatch.expression", ResultType::Patch)
            } else {
                ("applyConfiguration.expression", ResultType::Configuration)
            };
            Mutation { expression: compiled(given.text(pointer), gives), patch }
        };
        Self {
            conditions: Conditions::of(spec, &scope),
            validations: spec.items("validations").iter().map(validation).collect(),
            annotations: spec.items("auditAnnotations").iter().map(annotation).collect(),
            mutations: spec.items("mutations").iter().map(mutation).collect(),
            composition,
        }
    }

    pub(super) fn conditions_hold(&self, question: &Question<'_>) -> Result<bool, ExpressionError> {
        if self.conditions.is_empty() {
            return Ok(true);
        }
        self.conditions.hold(&question.expression_input(), Some(&self.composition))
    }

    /// Evaluates the validations and audit annotations. With `fails_open`, errors do not reject the request.
    pub(super) fn judge(
        &self,
        question: &Question<'_>,
        fails_open: bool,
        elapsed: &dyn Fn() -> Duration,
    ) -> PolicyResult {
        let began = elapsed();
        let failed = |error: ExpressionError| {
            let took = elapsed().saturating_sub(began);
            PolicyResult::failed(error.to_string(), fails_open, took)
        };
        match self.conditions_hold(question) {
            Ok(true) => {}
            Ok(false) => return PolicyResult::default(),
            Err(_) if fails_open => return PolicyResult::default(),
            Err(error) => return failed(error),
        }
        let input = question.expression_input_with_namespace();
        let judged = self.decide(&input, fails_open, elapsed).and_then(|decisions| {
            Ok(PolicyResult { decisions, annotations: self.annotate(&input, fails_open)? })
        });
        judged.unwrap_or_else(failed)
    }

    fn decide(
        &self,
        input: &ExpressionInput<'_>,
        fails_open: bool,
        elapsed: &dyn Fn() -> Duration,
    ) -> Result<Vec<(Decision, Duration)>, ExpressionError> {
        let mut run = Run::new(input.activation(Some(&self.composition))?, BUDGET);
        let mut values = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            let began = elapsed();
            let value = run.evaluate(&validation.expression)?;
            values.push((value, elapsed().saturating_sub(began)));
        }
        // As upstream: variables are evaluated again for messages, with the budget that the validations left.
        let mut run = Run::new(input.activation(Some(&self.composition))?, run.left);
        let messages = self.messages(&mut run);
        let each = self.validations.iter().zip(values).enumerate();
        Ok(each
            .map(|(i, (validation, (value, took)))| {
                let decision = match (value, &messages) {
                    (Err(error), _) => Decision::error(error.to_string(), fails_open),
                    (Ok(_), Err(error)) => {
                        Decision::error(format!("failed messageExpression: {error}"), fails_open)
                    }
                    (Ok(Cel::Bool(true)), _) => Decision::Admit,
                    (Ok(_), Ok(messages)) => {
                        let own = messages.get(i).cloned().flatten();
                        Decision::deny(validation.message_of_failure(own), &validation.reason)
                    }
                };
                (decision, took)
            })
            .collect())
    }

    /// Evaluates the message expressions, one per validation.
    fn messages<'v>(&'v self, run: &mut Run<'v>) -> Result<Vec<Option<String>>, OutOfBudget> {
        let mut messages = Vec::with_capacity(self.validations.len());
        for validation in &self.validations {
            let Some(expression) = &validation.message_expression else {
                messages.push(None);
                continue;
            };
            messages.push(match run.evaluate(expression)? {
                Ok(Cel::String(text)) => Some(text.trim().to_owned()),
                _ => None,
            });
        }
        Ok(messages)
    }

    fn annotate(
        &self,
        input: &ExpressionInput<'_>,
        fails_open: bool,
    ) -> Result<Vec<Annotation>, ExpressionError> {
        let mut run = Run::new(input.activation(Some(&self.composition))?, BUDGET);
        let mut made = Vec::new();
        for (key, expression) in &self.annotations {
            made.push(match run.evaluate(expression)? {
                Ok(Cel::String(text)) if text.trim().is_empty() => Annotation::Nothing,
                Ok(Cel::String(text)) => {
                    Annotation::Text { key: key.clone(), text: text.trim().to_owned() }
                }
                Ok(Cel::Null) => Annotation::Nothing,
                Ok(other) => Annotation::Error(format!(
                    "valueExpression '{}' resulted in unsupported return type: {}. Return type \
                    must be either string or null.",
                    expression.text,
                    other.type_of().name()
                )),
                Err(_) if fails_open => Annotation::Nothing,
                Err(error) => Annotation::Error(error.to_string()),
            });
        }
        Ok(made)
    }

    pub(super) fn change(
        &self,
        mutation: &Mutation,
        question: &Question<'_>,
    ) -> Result<Change, MutationError> {
        let expression = &mutation.expression;
        if let Err(error) = &expression.program {
            return Err(MutationError::Compilation(error.to_string()));
        }
        let input = question.expression_input_with_namespace();
        let mut run = Run::new(input.activation(Some(&self.composition))?, BUDGET);
        let value = run.evaluate(expression).map_err(ExpressionError::from)??;
        if !mutation.patch {
            validate_type_names(&value)?;
            return Ok(Change::Configuration(value.to_json()?));
        }
        let steps: Vec<Value> = value.items()?.iter().map(step).collect::<Result<_, _>>()?;
        Ok(Change::Patch(serde_json::to_vec(&steps)?))
    }
}

/// Rejects typed objects whose type name does not match their field path.
fn validate_type_names(value: &Cel<'_>) -> Result<(), MutationError> {
    match value.misnamed() {
        misnamed if misnamed.is_empty() => Ok(()),
        misnamed => Err(MutationError::TypeMismatch(misnamed)),
    }
}

/// Converts a JSONPatch object to a JSON patch operation. Unset `op` and `path` become empty strings, other unset
/// members are left out.
fn step(given: &Cel<'_>) -> Result<Value, MutationError> {
    let json = |value: Cel<'_>| value.to_json().map_err(MutationError::NotJson);
    let mut step = Map::new();
    for field in ["op", "path"] {
        let value = given.member(field)?.map(json).transpose()?;
        step.insert(field.to_owned(), value.unwrap_or_else(|| json!("")));
    }
    if let Some(from) = given.member("from")? {
        step.insert("from".to_owned(), json(from)?);
    }
    if let Some(value) = given.member("value")? {
        validate_type_names(&value)?;
        step.insert("value".to_owned(), portable(json(value)?));
    }
    Ok(Value::Object(step))
}

/// Converts numbers as upstream's patches do, which pass through protobuf's `Value`: integers lose a zero fraction, and
/// integers that a double cannot hold become strings.
fn portable(value: Value) -> Value {
    const SAFE: u64 = 1 << 53;
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) if whole.unsigned_abs() >= SAFE => json!(whole.to_string()),
            (None, _) if number.is_u64() => json!(number.to_string()),
            (None, Some(float)) if float.fract() == 0.0 && float.abs() < SAFE as f64 => {
                json!(float as i64)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(portable).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(key, value)| (key, portable(value))).collect()
        }
        other => other,
    }
}

impl Validation {
    /// Returns the message of a failed validation: the result of its message expression, its `message`, or the
    /// expression's text.
    fn message_of_failure(&self, own: Option<String>) -> String {
        let fits =
            |text: &String| !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
        match own.filter(fits) {
            Some(own) => own,
            None if !self.message.is_empty() => self.message.clone(),
            None => format!("failed expression: {}", self.expression.text.trim()),
        }
    }
}
