//! Conditions in an object's status.

use api_meta::Tree as _;
use serde_json::{Value, json};

/// Sets a condition. Returns `true` if it has changed.
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
    // The time of the last change of the status, not of the reason.
    let since = if before["status"] == truth {
        before["lastTransitionTime"].clone()
    } else {
        json!(crate::clock::now().to_string())
    };
    let condition = json!({
        "type": kind,
        "status": truth,
        "reason": reason,
        "message": message,
        "lastTransitionTime": since,
    });
    match known {
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    status.put(&["conditions"], json!(conditions));
    true
}

/// Returns `true` if the condition's status is True.
pub(crate) fn holds(status: &Value, kind: &str) -> bool {
    status.items("conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
}
