//! Conditions in the status of any object.

use api_meta::{ErrorList, FieldError, Path, Tree as _, validation};
use serde_json::Value;

const MAX_REASON_LENGTH: usize = 1024;
const MAX_MESSAGE_LENGTH: usize = 32 << 10;

/// Returns a condition of an object, or `None`.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object.items("status.conditions").iter().find(|c| c.text("type") == kind)
}

/// Reports whether a condition of an object is true.
pub(crate) fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| c.text("status") == "True")
}

/// Validates a list of conditions (`metav1.Condition`).
pub(crate) fn validate_conditions(conditions: &[Value], path: &Path, errors: &mut ErrorList) {
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        errors.extend(validation::label_key(condition.text("type"), &path.child("type")));
        let (status, known) = (condition.text("status"), ["False", "True", "Unknown"]);
        if !known.contains(&status) {
            errors.push(FieldError::not_supported(&path.child("status"), status, &known));
        }
        let generation = condition.int("observedGeneration");
        if generation < 0 {
            let detail = "must be greater than or equal to zero";
            errors.push(FieldError::invalid(&path.child("observedGeneration"), generation, detail));
        }
        if condition.blank("lastTransitionTime") {
            errors.push(FieldError::required(&path.child("lastTransitionTime"), ""));
        }
        let (reason, at) = (condition.text("reason"), path.child("reason"));
        if reason.is_empty() {
            errors.push(FieldError::required(&at, ""));
        } else if reason.len() > MAX_REASON_LENGTH {
            errors.push(FieldError::too_long(&at, MAX_REASON_LENGTH));
        } else {
            let messages = validation::condition_reason(reason).into_iter();
            errors.extend(messages.map(|message| FieldError::invalid(&at, reason, message)));
        }
        if condition.text("message").len() > MAX_MESSAGE_LENGTH {
            errors.push(FieldError::too_long(&path.child("message"), MAX_MESSAGE_LENGTH));
        }
    }
}
