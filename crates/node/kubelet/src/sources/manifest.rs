//! Manifests of static Pods.

use std::{collections::BTreeMap, sync::Arc};

use data_encoding::HEXLOWER;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use pod_core::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::references;
use crate::annotations;

/// The static Pods by source, `file` or `http`.
pub(crate) type StaticPods = BTreeMap<&'static str, Vec<Arc<Pod>>>;

/// The error of a manifest that is not a Pod.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    #[error(transparent)]
    Yaml(#[from] api_config::Error),
    #[error("it is not a valid Pod: {0}")]
    NoPod(#[from] serde_json::Error),
    #[error("it is a {0}, not a v1 Pod")]
    WrongKind(String),
    #[error("the Pod has no metadata.name")]
    NoName,
    #[error("the Pod has no containers")]
    NoContainers,
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
}

/// The node that reads a manifest, the time, and the kind of the manifest's source.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    pub(super) node: &'a str,
    pub(super) now: Timestamp,
    pub(super) source: &'static str,
}

/// Parses a manifest into a Pod of this node.
pub(super) fn parse(text: &str, origin: Origin<'_>) -> Result<Pod, ManifestError> {
    pod(api_config::yaml::parse(text)?, text, origin)
}

/// Turns a manifest into a Pod of this node. The Pod's UID is a hash of the text.
pub(super) fn pod(value: Value, text: &str, origin: Origin<'_>) -> Result<Pod, ManifestError> {
    let Origin { node, now, source } = origin;
    let (version, kind) = api_config::gvk(&value);
    if (version, kind) != ("v1", "Pod") {
        return Err(ManifestError::WrongKind(format!("{version} {kind}")));
    }
    let mut pod: Pod = serde_json::from_value(value)?;
    let name = pod.metadata.name.clone().filter(|n| !n.is_empty()).ok_or(ManifestError::NoName)?;
    let spec = pod
        .spec
        .as_mut()
        .filter(|s| !s.containers.is_empty())
        .ok_or(ManifestError::NoContainers)?;
    if let Some(resource) = references::find(spec) {
        return Err(ManifestError::Reference(resource));
    }
    let mut hash = Sha256::new();
    hash.update(node);
    hash.update(text);
    let hash = HEXLOWER.encode(&hash.finalize()[..16]);
    spec.node_name = Some(node.to_owned());
    // Taints do not evict a static Pod.
    let forever = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let tolerations = spec.tolerations.get_or_insert_default();
    if !tolerations.contains(&forever) {
        tolerations.push(forever);
    }
    pod.metadata.name = Some(format!("{name}-{node}"));
    pod.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    pod.metadata.uid = Some(hash.clone());
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::HASH.to_owned(), hash);
    annotations.insert(annotations::SEEN.to_owned(), now.to_string());
    annotations.insert(annotations::SOURCE.to_owned(), source.to_owned());
    pod.status = None;
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    fn of(node: &str) -> Origin<'_> {
        Origin { node, now: NOW, source: "file" }
    }

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: c, image: i}]\n";

    #[test]
    fn turns_manifest_into_pod_of_this_node() {
        let pod = parse(POD, of("n1")).unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("web-n1"));
        assert_eq!(pod.metadata.uid, parse(POD, of("n1")).unwrap().metadata.uid);
        assert_ne!(pod.metadata.uid, parse(POD, of("n2")).unwrap().metadata.uid);
        assert!(pod_core::is_static(&pod));
    }

    #[test]
    fn rejects_invalid_manifests_with_the_cause() {
        for (text, cause) in [
            ("", "not a v1 Pod"),
            ("apiVersion: v1\nkind: Service\n", "Service"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", "containers"),
            ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c}]}\n", "name"),
            ("apiVersion: v1\nkind: Pod\nspec: {containers: 3}\n", "not a valid Pod"),
            (
                POD.replace("spec:", "spec:\n  serviceAccountName: admin").as_str(),
                "static pods may not reference serviceaccounts",
            ),
            ("{\"apiVersion\": \"v1\", \"kind", ""),
        ] {
            let error = parse(text, of("n")).unwrap_err().to_string();
            assert!(error.contains(cause), "{text:?}: {error}");
        }
    }
}
