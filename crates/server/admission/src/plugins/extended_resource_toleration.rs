use std::collections::{BTreeSet, HashSet};

use api_meta::{GroupResource, Tree as _};
use serde_json::{Value, json};

use crate::request::{AdmissionResult, Plugin, Request};

/// Adds tolerations for the taints of nodes with the extended resources that a Pod requests.
pub(crate) struct ExtendedResourceToleration;

fn is_extended(resource: &str) -> bool {
    let native =
        resource.split_once('/').is_none_or(|(domain, _)| domain.contains("kubernetes.io"));
    !native && !resource.starts_with("requests.")
}

impl Plugin for ExtendedResourceToleration {
    fn mutates(&self, request: &Request<'_>) -> bool {
        request.is(&GroupResource::PODS) && (request.creates() || request.updates())
    }

    fn mutate(&self, _: &Request<'_>, pod: &mut Value) -> AdmissionResult {
        let containers = ["spec.containers", "spec.initContainers"];
        let resources: BTreeSet<String> = containers
            .iter()
            .flat_map(|list| pod.items(list))
            .flat_map(|container| container.pairs("resources.requests"))
            .filter(|(resource, _)| is_extended(resource))
            .map(|(resource, _)| resource.to_owned())
            .collect();
        let known: HashSet<Value> = pod.items("spec.tolerations").iter().cloned().collect();
        for resource in resources {
            let toleration = json!({"key": resource, "operator": "Exists", "effect": "NoSchedule"});
            if !known.contains(&toleration) {
                pod.push(&["spec", "tolerations"], toleration);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, Try, pod};

    #[test]
    fn tolerates_requested_extended_resources() {
        let spec = json!({"containers": [{"resources": {"requests": {"cpu": "1", "example.com/gpu": "1"}}}]});
        let made = Try::create(&Cluster::default(), &GroupResource::PODS)
            .admitted(&ExtendedResourceToleration, pod(spec));
        assert_eq!(
            made["spec"]["tolerations"],
            json!([{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}])
        );
    }
}
