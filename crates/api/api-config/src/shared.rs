//! The types that the configurations of several components share.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The logging settings of a component (`k8s.io/component-base`). Only the verbosity is used; the other fields are
/// preserved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Logging {
    /// The format, such as `text`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub format: String,
    /// The flush interval: nanoseconds, or a duration as text.
    pub flush_frequency: Value,
    /// The verbosity.
    pub verbosity: u32,
    /// The verbosity by module.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub vmodule: Vec<Value>,
    /// The options of the formats.
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

/// The options of the log formats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoggingOptions {
    /// The options of the format `text`.
    pub text: LoggingOutput,
    /// The options of the format `json`.
    pub json: LoggingOutput,
}

/// The buffering of one log format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingOutput {
    /// `true` to write errors to stderr and all else, buffered, to stdout.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub split_stream: bool,
    /// The buffer size, a quantity.
    pub info_buffer_size: Value,
}

impl Default for LoggingOutput {
    fn default() -> Self {
        Self { split_stream: false, info_buffer_size: "0".into() }
    }
}

/// The connection of a component to the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientConnection {
    /// The path of the kubeconfig.
    pub kubeconfig: String,
    /// The accepted content types.
    pub accept_content_types: String,
    /// The content type of requests.
    pub content_type: String,
    /// The limit of requests per second.
    pub qps: f32,
    /// The burst of requests.
    pub burst: i32,
}

/// A taint, which keeps Pods without a toleration off a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Taint {
    /// The key.
    pub key: String,
    /// The value.
    #[serde(skip_serializing_if = "unset")]
    pub value: String,
    /// The effect: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// Returns `true` for a default value, which is omitted like by Go's `omitempty`.
pub(crate) fn unset<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Removes what Go's `omitempty` removes from large kinds: nulls, empty strings and empty lists, except fields in
/// `keep`. Structs stay even if empty; maps are `Option`s, so empty ones are null. `false` and zero stay, because only
/// the type shows if they were set; fields that omit them use [`unset`].
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
