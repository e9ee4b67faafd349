//! The labels, taints and mounts of nodes.

use std::{collections::BTreeMap, path::PathBuf};

use api_meta::validation;
use serde::{Deserialize, Serialize};

use super::error::ConfigError;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeConfig {
    /// The labels. Those that a later file leaves out are removed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The taints. Those that a later file leaves out are removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// The mounts of further nodes. They cannot change later. The first node is this host, and has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_mounts: Vec<ExtraMount>,
}

/// A taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// The key.
    pub key: String,
    /// The value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// The effect: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A directory or file of this host that a node sees at another path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExtraMount {
    /// The path on this host.
    pub host_path: PathBuf,
    /// The path inside the node. It must exist on this host, too, because nodes share the host's files.
    pub container_path: PathBuf,
}

impl NodeConfig {
    /// Checks the node with this index in the document.
    pub(super) fn check(&self, index: usize) -> Result<(), ConfigError> {
        let wrong = |field: &str, value: &str, expected| {
            Err(ConfigError::Value {
                field: format!("nodes[{index}].{field}"),
                value: value.to_owned(),
                expected,
            })
        };
        for (key, value) in &self.labels {
            if !validation::qualified_name(key).is_empty() {
                return wrong("labels", key, "a label key");
            }
            if !validation::label_value(value).is_empty() {
                return wrong("labels", value, "a label value");
            }
        }
        for taint in &self.taints {
            if !validation::qualified_name(&taint.key).is_empty() {
                return wrong("taints[].key", &taint.key, "a label key");
            }
            if !validation::label_value(&taint.value).is_empty() {
                return wrong("taints[].value", &taint.value, "a label value");
            }
            if !EFFECTS.contains(&taint.effect.as_str()) {
                return wrong(
                    "taints[].effect",
                    &taint.effect,
                    "NoSchedule, PreferNoSchedule or NoExecute",
                );
            }
        }
        if index == 0 && !self.extra_mounts.is_empty() {
            return wrong("extraMounts", "", "possible, because the first node is this host");
        }
        for mount in &self.extra_mounts {
            for path in [&mount.host_path, &mount.container_path] {
                if !path.is_absolute() || !path.exists() {
                    let path = path.display().to_string();
                    return wrong(
                        "extraMounts",
                        &path,
                        "an absolute path that exists on this host",
                    );
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value) -> NodeConfig {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn rejects_invalid_nodes() {
        for (value, index, field) in [
            (json!({"labels": {"a b": ""}}), 0, "nodes[0].labels"),
            (json!({"labels": {"a": "b c"}}), 1, "nodes[1].labels"),
            (json!({"taints": [{"key": "a", "effect": "Never"}]}), 1, "nodes[1].taints[].effect"),
            (json!({"taints": [{"key": "", "effect": "NoExecute"}]}), 1, "nodes[1].taints[].key"),
            (json!({"extraMounts": [{"hostPath": "/", "containerPath": "/"}]}), 0, "this host"),
            (json!({"extraMounts": [{"hostPath": "tmp", "containerPath": "/tmp"}]}), 1, "absolute"),
            (
                json!({"extraMounts": [{"hostPath": "/tmp", "containerPath": "/no-such"}]}),
                1,
                "/no-such",
            ),
        ] {
            let message = read(value.clone()).check(index).unwrap_err().to_string();
            assert!(message.contains(field), "{value}: {message}");
        }
        assert!(read(json!({"labels": {"example.com/a": ""}, "taints": [{"key": "a", "effect": "NoExecute"}],
            "extraMounts": [{"hostPath": "/tmp", "containerPath": "/mnt"}]})).check(1).is_ok());
    }
}
