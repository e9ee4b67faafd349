//! The scheduler's configuration on machines.

use api_meta::Tree as _;
use kops_api::yaml;
use serde_json::json;

use crate::error::Error;

const KIND: &str = "KubeSchedulerConfiguration";
const BESIDE: &str = "the objects stored with the cluster (clusteraddons/default)";

/// Returns the user's configuration among the objects stored with the cluster, or an empty one, with the kubeconfig's
/// path.
pub fn scheduler_config(beside: &str) -> Result<String, Error> {
    let mut config = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": KIND});
    for tree in yaml::parse_all(BESIDE, beside)? {
        if tree.text("kind") == KIND {
            config = tree;
        }
    }
    config.put("clientConnection.kubeconfig", "/var/lib/kube-scheduler/kubeconfig");
    Ok(yaml::to_string(&config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_users_configuration_and_sets_kubeconfig() {
        let usual = scheduler_config("").unwrap();
        assert!(usual.contains("kubeconfig: /var/lib/kube-scheduler/kubeconfig"), "{usual}");
        let beside = "kind: ConfigMap\n---\nkind: KubeSchedulerConfiguration\nparallelism: 3\nclientConnection: {qps: 7}\n";
        let own = scheduler_config(beside).unwrap();
        assert!(
            own.contains("parallelism: 3")
                && own.contains("qps: 7")
                && own.contains("kubeconfig: /var/")
        );
        assert!(scheduler_config("a: [").is_err());
    }
}
