//! The kubelet's configuration file of a node, after a change of the document.

use std::fs;

use serde_json::Value;

use crate::{
    cluster::Cluster,
    config::{ClusterConfig, ConfigError},
    error::Error,
};

/// Replaces the document's fields in the node's file. The other fields come from kubeadm's phases and stay. A node that
/// has not joined has no file yet.
pub(crate) fn update(node: &Cluster, old: &ClusterConfig) -> Result<(), Error> {
    let (new, path) = (&node.settings.config, node.layout().kubelet_config());
    if (&old.kubelet, &old.feature_gates) == (&new.kubelet, &new.feature_gates) || !path.exists() {
        return Ok(());
    }
    let failed = |source| ConfigError::Section { section: "kubelet", source };
    let text = fs::read_to_string(&path).map_err(Error::file("reading", &path))?;
    let mut tree = api_config::yaml::parse(&text).map_err(failed)?;
    let shared = node.shared_kubelet().to_value().map_err(failed)?;
    replace(&mut tree, &shared, old, new);
    let text = api_config::yaml::to_string(&tree).map_err(failed)?;
    Ok(pki::write_file(&path, text.as_bytes(), pki::PUBLIC_MODE)?)
}

/// Replaces the fields that either document has by those of the shared settings, or removes them.
fn replace(tree: &mut Value, shared: &Value, old: &ClusterConfig, new: &ClusterConfig) {
    let Some(fields) = tree.as_object_mut() else { return };
    let changed = old.kubelet.keys().chain(new.kubelet.keys()).map(String::as_str);
    for field in changed.chain(["featureGates"]) {
        match shared.get(field) {
            Some(value) => drop(fields.insert(field.to_owned(), value.clone())),
            None => drop(fields.remove(field)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replaces_fields_of_both_documents_and_keeps_others() {
        let document = |kubelet: Value| -> ClusterConfig {
            serde_json::from_value(json!({"kubelet": kubelet})).unwrap()
        };
        let mut tree = json!({"address": "192.0.2.1", "maxPods": 5, "evictionHard": {"a": "1"}, "podsPerCore": 2,
            "featureGates": {"Gone": true}});
        let shared = json!({"maxPods": 7, "evictionHard": {"memory.available": "100Mi"}});
        let old = document(json!({"evictionHard": {"a": "1"}, "podsPerCore": 2}));
        replace(&mut tree, &shared, &old, &document(json!({"maxPods": 7})));
        assert_eq!(
            tree,
            json!({"address": "192.0.2.1", "maxPods": 7, "evictionHard": {"memory.available": "100Mi"}})
        );
    }
}
