//! Query and path parameters.

use std::{collections::HashMap, sync::LazyLock};

use api_meta::Tree as _;
use serde_json::{Value, json};

/// The descriptions by parameter, optionally with a method (`fieldManager@patch`) or kind (`tty@PodExecOptions`).
static DESCRIPTIONS: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
    let lines = include_str!("../../facts/parameters.tsv").lines();
    let line = |line: &'static str| {
        let (name, text) = line.split_once('\t')?;
        Some((name, serde_json::from_str(text).ok()?))
    };
    lines.filter_map(line).collect()
});

/// The operation of a parameter.
#[derive(Clone, Copy)]
pub(super) struct ParameterContext<'a> {
    pub(super) kind: &'a str,
    /// The HTTP method; empty for a parameter of all operations of a path.
    pub(super) method: &'a str,
}

impl ParameterContext<'_> {
    fn describe(self, name: &str) -> Option<String> {
        if name == "name" {
            return Some(format!("name of the {}", self.kind));
        }
        let of = |place: &str| DESCRIPTIONS.get(format!("{name}@{place}").as_str());
        of(self.method).or_else(|| of(self.kind)).or_else(|| DESCRIPTIONS.get(name)).cloned()
    }
}

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

/// Returns the query parameters of a streaming subresource; empty for other subresources.
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

/// Builds a parameter. A leading question mark makes it a query parameter instead of a path parameter.
#[rustfmt::skip]
pub(super) fn parameter(name: &str, about: ParameterContext<'_>) -> Value {
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
    let mut parameter = match (name, name.strip_prefix('?')) {
        ("name" | "namespace" | "path", _) => json!({"name": name, "in": "path", "required": true, "schema": schema}),
        (_, Some(name)) => json!({"name": name, "in": "query", "schema": schema}),
        (name, None) => json!({"name": name, "in": "query", "schema": schema}),
    };
    if let Some(description) = about.describe(name) {
        parameter.put(&["description"], description);
    }
    parameter
}
