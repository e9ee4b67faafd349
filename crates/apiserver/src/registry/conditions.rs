//! Conditions in an object's status.

use api_meta::Tree as _;
use serde_json::{Value, json};

/// Sets a condition. Returns whether that changed anything.
pub(crate) fn set_condition(
    status: &mut Value,
    kind: &str,
    holds: bool,
    reason: &str,
    message: &str,
) -> bool {
    let truth = if holds { "True" } else { "False" };
    let mut conditions = status.items("conditions").to_vec();
    let known = conditions.iter().position(|c| c["type"] == kind);
    let before = known.map(|at| conditions[at].clone()).unwrap_or_default();
    if before["status"] == truth && before["reason"] == reason && before["message"] == message {
        return false;
    }
    // The time is that of the condition's last turn, not of a new reason.
    let since = match before["status"] == truth {
        true => before["lastTransitionTime"].clone(),
        false => json!(crate::clock::now().to_string()),
    };
    let condition = json!({"type": kind, "status": truth, "reason": reason, "message": message, "lastTransitionTime": since});
    match known {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    status.put(&["conditions"], json!(conditions));
    true
}

/// Whether a condition is true.
pub(crate) fn holds(status: &Value, kind: &str) -> bool {
    status.items("conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
}
