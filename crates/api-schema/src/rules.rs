//! `x-kubernetes-validations`: rules of custom kinds, compiled once for each version of a definition.
//!
//! A rule sees the value that its schema is of as `self`, and what was in its place before as `oldSelf`. Places
//! correlate by the names of fields and keys, and by the keys of lists that are maps; elsewhere there is no `oldSelf`.

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

/// What expressions see of a kind's objects, by the kind's structural schema. `name` is the type's.
pub fn declared(schema: &Value, name: &str) -> Option<Decl> {
    declare::declare(schema, true, name)
}

/// What the rules of one object may cost together: about a second of upstream's time.
const RUNTIME_BUDGET: i64 = 10_000_000;
/// What a rule may be estimated at, over all values that it may be evaluated for.
const RULE_LIMIT: u64 = 10_000_000;
/// What the rules of a definition's version may be estimated at together.
const TOTAL_LIMIT: u64 = 100_000_000;
/// The longest message that an expression may make, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;
/// What a request holds, from which it follows how often a value fits into it.
const MAX_REQUEST: u64 = 3 * 1024 * 1024;

/// The rules of a schema and of all below it.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The type keyword, which upstream shows in place of a value.
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
    /// Below the value, where the rule's failure is told.
    field_path: Option<Box<str>>,
    optional_old: bool,
    /// A rule that does not compile is told of with every object. Definitions with such rules are refused, but they may
    /// be stored by another version.
    program: Result<Program, String>,
    uses_old: bool,
    message_expression: Option<(Box<str>, Program)>,
}

impl Rules {
    /// Everything that the rules have against a value.
    pub(crate) fn validate(&self, value: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        if errors.iter().any(FieldError::is_blocking) {
            let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
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
    /// Whether a value is so wrong that rules cannot be asked about it.
    fn is_blocking(&self) -> bool {
        use api_meta::ErrorType::*;
        matches!(self.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid)
    }
}

/// A rule as upstream shows it where it does not compile.
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
