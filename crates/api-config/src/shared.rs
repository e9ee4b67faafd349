//! Pieces that several components' kinds share.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How a component logs (`k8s.io/component-base`). Only the verbosity matters to us; the rest is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Logging {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// Nanoseconds, or a duration's text.
    pub flush_frequency: Value,
    pub verbosity: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<Value>,
    pub options: LoggingOptions,
}

impl Default for Logging {
    fn default() -> Self {
        Self {
            format: String::new(),
            flush_frequency: 0.into(),
            verbosity: 0,
            vmodule: Vec::new(),
            options: LoggingOptions::default(),
        }
    }
}

/// Options for each of the formats that logs can be written in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoggingOptions {
    pub text: LoggingOutput,
    pub json: LoggingOutput,
}

/// How logs of one format are buffered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingOutput {
    /// Errors go to stderr and all else, buffered, to stdout.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub split_stream: bool,
    /// A quantity.
    pub info_buffer_size: Value,
}

impl Default for LoggingOutput {
    fn default() -> Self {
        Self { split_stream: false, info_buffer_size: "0".into() }
    }
}

/// How a component reaches the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: f32,
    pub burst: i32,
}

/// What keeps Pods off a node that do not tolerate it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Taint {
    pub key: String,
    #[serde(skip_serializing_if = "unset")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Whether a field says nothing and is left out, as Go's `omitempty` does.
pub(crate) fn unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Leaves out what Go's `omitempty` leaves out of large kinds: nulls, empty texts and empty lists; fields named in
/// `keep` stay. Structures stay even where nothing is left of them; maps are `Option`s, so they become nulls. A
/// false or a zero stays: only its type tells whether it was set, so such fields carry [`unset`] where it was not.
pub(crate) fn tidy(value: Value, keep: &[&str]) -> Value {
    let Value::Object(fields) = value else { return value };
    let says_nothing = |v: &Value| match v {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    fields
        .into_iter()
        .filter(|(name, v)| keep.contains(&name.as_str()) || !says_nothing(v))
        .map(|(name, v)| (name, tidy(v, keep)))
        .collect()
}
