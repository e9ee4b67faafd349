//! Query and path parameters.

use serde_json::{Value, json};

#[rustfmt::skip]
pub(super) const LIST: &[&str] = &[
    "allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion",
    "resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch",
];
#[rustfmt::skip]
pub(super) const DELETE_COLLECTION: &[&str] = &[
    "continue", "dryRun", "fieldSelector", "gracePeriodSeconds", "ignoreStoreReadErrorWithClusterBreakingPotential",
    "labelSelector", "limit", "orphanDependents", "propagationPolicy", "resourceVersion", "resourceVersionMatch",
    "sendInitialEvents", "timeoutSeconds",
];
#[rustfmt::skip]
pub(super) const DELETE: &[&str] = &[
    "dryRun", "gracePeriodSeconds", "ignoreStoreReadErrorWithClusterBreakingPotential", "orphanDependents",
    "propagationPolicy",
];
pub(super) const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
pub(super) const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];

/// What the streaming subresources take besides the name, and nothing for others.
#[rustfmt::skip]
pub(super) fn of_subresource(name: &str) -> &'static [&'static str] {
    match name {
        "attach" => &["container", "stderr", "stdin", "stdout", "tty"],
        "exec" => &["command", "container", "stderr", "stdin", "stdout", "tty"],
        "portforward" => &["ports"],
        "proxy" => &["?path"],
        "proxy/{path}" => &["path", "?path"],
        "log" => &[
            "container", "follow", "insecureSkipTLSVerifyBackend", "limitBytes", "previous", "sinceSeconds", "stream",
            "tailLines", "timestamps",
        ],
        _ => &[],
    }
}

/// A parameter. A question mark makes a query parameter of what would be one of the path.
#[rustfmt::skip]
pub(super) fn parameter(name: &str) -> Value {
    let kind = match name {
        "gracePeriodSeconds" | "limit" | "limitBytes" | "ports" | "sinceSeconds" | "tailLines" | "timeoutSeconds" => {
            "integer"
        }
        "allowWatchBookmarks" | "follow" | "force" | "ignoreStoreReadErrorWithClusterBreakingPotential"
        | "insecureSkipTLSVerifyBackend" | "orphanDependents" | "previous" | "sendInitialEvents" | "stderr" | "stdin"
        | "stdout" | "timestamps" | "tty" | "watch" => "boolean",
        _ => "string",
    };
    let schema = json!({"type": kind, "uniqueItems": true});
    match (name, name.strip_prefix('?')) {
        ("name" | "namespace" | "path", _) => json!({"name": name, "in": "path", "required": true, "schema": schema}),
        (_, Some(name)) => json!({"name": name, "in": "query", "schema": schema}),
        (name, None) => json!({"name": name, "in": "query", "schema": schema}),
    }
}
