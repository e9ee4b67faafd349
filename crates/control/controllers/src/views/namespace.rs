//! Namespaces.

use api_meta::{ObjectMeta, null_default};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Namespace {
    pub(crate) metadata: ObjectMeta,
    pub(crate) spec: NamespaceSpec,
    pub(crate) status: NamespaceStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamespaceSpec {
    #[serde(deserialize_with = "null_default")]
    pub(crate) finalizers: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct NamespaceStatus {
    pub(crate) phase: String,
}
