//! Taints of nodes and tolerations of Pods.

use api_meta::Timestamp;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Toleration {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) operator: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) toleration_seconds: Option<i64>,
}

impl Toleration {
    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        let non_empty = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
        non_empty(&self.effect).is_none_or(|effect| effect == taint.effect)
            && non_empty(&self.key).is_none_or(|key| key == taint.key)
            && match self.operator.as_deref() {
                Some("Exists") => true,
                None | Some("" | "Equal") => self.value.as_deref().unwrap_or("") == taint.value(),
                _ => false,
            }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Taint {
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
    pub(crate) effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time_added: Option<Timestamp>,
}

impl Taint {
    pub(crate) fn value(&self) -> &str {
        self.value.as_deref().unwrap_or("")
    }
}
