use std::collections::BTreeMap;

use api_config::{Decoded, decode};
use api_meta::{GroupResource, Selector, SelectorError, Status, Tree as _};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    configuration::ConfigurationError,
    request::{AdmissionResult, Outcome, Plugin, Request},
};

/// Restricts the Pods of a namespace to the nodes that its annotation or else the cluster's configuration selects.
#[derive(Default)]
pub(crate) struct PodNodeSelector {
    /// The node labels for Pods of namespaces without the annotation.
    default: Vec<(String, String)>,
    /// The labels that Pods may select nodes by, by namespace.
    allowed: BTreeMap<String, Vec<(String, String)>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Configuration {
    pod_node_selector_plugin_config: BTreeMap<String, String>,
}

const DEFAULT: &str = "clusterDefaultNodeSelector";

impl PodNodeSelector {
    /// Reads `podNodeSelectorPluginConfig`; null means no configuration.
    pub(crate) fn configured(configuration: &Value) -> Result<Self, ConfigurationError> {
        if configuration.is_null() {
            return Ok(Self::default());
        }
        let read: Decoded<Configuration> =
            decode("podNodeSelectorPluginConfig", configuration.clone())?;
        let mut allowed = BTreeMap::new();
        for (namespace, text) in read.value.pod_node_selector_plugin_config {
            match labels(&text) {
                Ok(labels) => allowed.insert(namespace, labels),
                Err(source) => return Err(ConfigurationError::NodeSelector { namespace, source }),
            };
        }
        Ok(Self { default: allowed.remove(DEFAULT).unwrap_or_default(), allowed })
    }

    /// Returns the node labels that the namespace requires.
    fn required_labels(
        &self,
        request: &Request<'_>,
        pod: &Value,
    ) -> Result<Vec<(String, String)>, Status> {
        let namespace = request.objects.get(&GroupResource::NAMESPACES, "", request.namespace);
        match namespace.as_deref().and_then(|namespace| namespace.annotation(ANNOTATION)) {
            None => Ok(self.default.clone()),
            Some(text) => labels(text).map_err(|e| {
                request.forbidden(pod, format!("namespace {}: {e}", request.namespace))
            }),
        }
    }

    fn is_allowed(&self, namespace: &str, selector: &Value) -> bool {
        let Some(allowed) = self.allowed.get(namespace).filter(|allowed| !allowed.is_empty())
        else {
            return true;
        };
        let stands =
            |key: &String, value: &Value| allowed.iter().any(|(k, v)| k == key && value == v);
        selector.as_object().is_none_or(|all| all.iter().all(|(key, value)| stands(key, value)))
    }
}

fn concerns(request: &Request<'_>) -> bool {
    request.is(&GroupResource::PODS) && request.creates()
}

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";

impl Plugin for PodNodeSelector {
    fn mutates(&self, request: &Request<'_>) -> bool {
        concerns(request)
    }

    fn mutate(&self, request: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        for (key, value) in self.required_labels(request, pod)? {
            let way = &["spec", "nodeSelector", &key];
            if pod.has(way) && *pod.at(way) != value.as_str() {
                return Err(conflict(request, pod));
            }
            pod.put(way, value);
        }
        Ok(())
    }

    fn validate(&self, request: &Request<'_>, pod: &Value, _: &mut Outcome) -> AdmissionResult {
        if !concerns(request) {
            return Ok(());
        }
        let selector = pod.at("spec.nodeSelector");
        if self
            .required_labels(request, pod)?
            .iter()
            .any(|(key, value)| selector[key] != value.as_str())
        {
            return Err(conflict(request, pod));
        }
        if !self.is_allowed(request.namespace, selector) {
            let cause = "pod node label selector labels conflict with its namespace whitelist";
            return Err(request.forbidden(pod, cause));
        }
        Ok(())
    }
}

fn conflict(request: &Request<'_>, pod: &Value) -> Status {
    request
        .forbidden(pod, "pod node label selector conflicts with its namespace node label selector")
}

/// Parses labels of the form `a=b,c=d`.
fn labels(text: &str) -> Result<Vec<(String, String)>, SelectorError> {
    let selector: Selector = text.parse()?;
    let label = |r: &api_meta::Requirement| Some((r.key().to_owned(), r.values().first()?.clone()));
    Ok(selector.requirements().iter().filter_map(label).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Cluster, Try, pod};

    #[test]
    fn merges_selector_and_rejects_conflicts() {
        let namespace =
            json!({"metadata": {"name": "ns", "annotations": {ANNOTATION: "disk=ssd,zone=a"}}});
        let cluster = Cluster::default().with(&GroupResource::NAMESPACES, namespace);
        let create = Try::create(&cluster, &GroupResource::PODS);
        let made = create.admitted(
            &PodNodeSelector::default(),
            pod(json!({"nodeSelector": {"zone": "a", "x": "y"}})),
        );
        assert_eq!(made["spec"]["nodeSelector"], json!({"disk": "ssd", "zone": "a", "x": "y"}));
        let refusal = create
            .refusal(&PodNodeSelector::default(), pod(json!({"nodeSelector": {"zone": "b"}})));
        assert!(
            refusal.ends_with(
                "pod node label selector conflicts with its namespace node label selector"
            )
        );
    }
    #[test]
    fn applies_cluster_default_and_allowed_labels() {
        let configuration = json!({"podNodeSelectorPluginConfig":
            {"clusterDefaultNodeSelector": "env=dev", "ns": "env=dev,zone=a"}});
        let plugin = PodNodeSelector::configured(&configuration).unwrap();
        let cluster = Cluster::default()
            .with(&GroupResource::NAMESPACES, json!({"metadata": {"name": "ns"}}));
        let create = Try::create(&cluster, &GroupResource::PODS);
        let made = create.admitted(&plugin, pod(json!({"nodeSelector": {"zone": "a"}})));
        assert_eq!(made["spec"]["nodeSelector"], json!({"env": "dev", "zone": "a"}));
        for other in [json!({"zone": "b"}), json!({"disk": "ssd"})] {
            let refusal = create.refusal(&plugin, pod(json!({"nodeSelector": other})));
            assert!(refusal.ends_with("conflict with its namespace whitelist"), "{refusal}");
        }
        let wrong = json!({"podNodeSelectorPluginConfig": {"ns": "a=b=c"}});
        assert!(PodNodeSelector::configured(&wrong).is_err());
    }
}
