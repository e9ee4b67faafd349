//! The occurrences that become Events: an object, a type, a reason and a message.

use serde::{Deserialize, Serialize};

/// The object that an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// The API version, such as `apps/v1`.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// The namespace; empty for cluster-scoped objects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The uid; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The resourceVersion; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The part of the object: `spec.containers{name}` for an Event about one container.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_path: String,
}

/// The type of an Event; the names are the API's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    Normal,
    Warning,
}

impl EventKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// An occurrence to record.
#[derive(Clone, Debug)]
pub struct Occurrence {
    /// The object concerned.
    pub regarding: ObjectRef,
    /// The type.
    pub kind: EventKind,
    /// The reason, one word in upper camel case.
    pub reason: String,
    /// The message for users.
    pub message: String,
}
