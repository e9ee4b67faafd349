//! The `x-kubernetes-validations` of custom resources, compiled once per version.
//!
//! A rule sees its value as `self` and the value before the update as `oldSelf`. Values correlate by field names and
//! map keys, and in keyed lists by the keys. Other values have no `oldSelf`.

use std::{collections::BTreeMap, sync::Arc};

use api_meta::{ErrorList, FieldError, Path, Tree as _};
use cel::{Decl, Program};
use serde_json::{Value, json};

mod compile;
mod declare;
mod run;
#[cfg(test)]
mod tests;

pub(crate) use compile::compile;

/// Returns the declaration of a kind's objects for expressions, from its structural schema. `name` is the type's name.
pub fn declared(schema: &Value, name: &str) -> Option<Decl> {
    declare::declare(schema, true, name)
}

/// The cost limit of all rules for one object, about a second in upstream.
const RUNTIME_BUDGET: i64 = 10_000_000;
/// The limit on the estimated cost of a rule, over all values that it may be evaluated for.
const RULE_LIMIT: u64 = 10_000_000;
/// The limit on the estimated total cost of the rules of one version.
const TOTAL_LIMIT: u64 = 100_000_000;
/// The longest message that an expression may return, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;
/// The maximum size of a request, which bounds how often a value fits into it.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// The rules of a schema and its descendants.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The `type` keyword, which upstream shows instead of a value.
    kind: Box<str>,
    decl: Arc<Decl>,
    rules: Vec<Rule>,
    fields: BTreeMap<Box<str>, Rules>,
    values: Option<Box<Rules>>,
    items: Option<Box<Rules>>,
    /// The keys of a list whose items correlate.
    keys: Option<Box<[Box<str>]>>,
    all_of: Vec<Rules>,
}

#[derive(Debug)]
struct Rule {
    text: Box<str>,
    message: Box<str>,
    reason: Option<Box<str>>,
    /// The path below the value at which a failure is reported.
    field_path: Option<Box<str>>,
    optional_old: bool,
    /// The program, or the compile error, which is reported for every object. New definitions with such rules are
    /// rejected, but other releases may have stored them.
    program: Result<Program, String>,
    uses_old: bool,
    message_expression: Option<(Box<str>, Program)>,
}

impl Rules {
    /// Evaluates all rules for a value.
    pub(crate) fn validate(&self, value: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        if errors.iter().any(FieldError::is_blocking) {
            let detail = "some validation rules were not checked because the object was invalid; correct \
                the existing errors to complete validation";
            errors.push(FieldError::invalid(&Path::new(""), Value::Null, detail));
            return;
        }
        let mut run = run::Run { errors, budget: RUNTIME_BUDGET };
        run.value(self, value, old, false, &Path::new(""));
    }
}

trait Blocking {
    fn is_blocking(&self) -> bool;
}

impl Blocking for FieldError {
    /// Reports whether an error prevents the evaluation of rules.
    fn is_blocking(&self) -> bool {
        use api_meta::ErrorType::*;
        matches!(self.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)
    }
}

/// Returns a rule as upstream's compile errors show it.
fn shown(rule: &Value) -> Value {
    json!({
        "Rule": rule.text("rule"),
        "Message": rule.text("message"),
        "MessageExpression": rule.text("messageExpression"),
        "Reason": rule["reason"],
        "FieldPath": rule.text("fieldPath"),
        "OptionalOldSelf": rule["optionalOldSelf"],
    })
}
