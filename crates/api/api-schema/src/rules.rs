//! The `x-kubernetes-validations` of custom resources, compiled once per version.
//!
//! A rule sees its value as `self` and the value before the update as `oldSelf`. Values correlate by field names and
//! map keys, and in keyed lists by the keys. Other values have no `oldSelf`.

use api_meta::{ErrorList, FieldError, Path};
use cel::Decl;
use serde_json::Value;

mod compile;
mod declare;
mod rule;
mod run;
#[cfg(test)]
mod tests;

pub(crate) use compile::compile;
pub(crate) use rule::Rules;

/// Returns the declaration of a kind's objects for expressions, from its structural schema. `name` is the type's name.
pub fn declared(schema: &Value, name: &str) -> Option<Decl> {
    declare::declare(schema, true, name)
}

/// The cost limit of all rules for one object, about a second in upstream.
const RUNTIME_BUDGET: i64 = 10_000_000;
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
        let path = &Path::new("");
        run.value(self, run::Subject { value, old, unchanged: false, path });
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
