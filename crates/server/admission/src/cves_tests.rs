//! Regression tests for published CVEs of Kubernetes' admission, named by CVE number.

use api_meta::{GroupResource, UserInfo};
use serde_json::{Value, json};

use crate::{
    image_policy,
    plugins::{
        node_restriction::NodeRestriction,
        service_account::{MIRROR, ServiceAccount},
    },
    testing::{Cluster, Try, pod},
};

fn kubelet() -> UserInfo {
    UserInfo::new("system:node:n1", &["system:nodes"])
}

fn node() -> Value {
    json!({"metadata": {"name": "n1", "uid": "node-uid"}})
}

/// CVE-2023-2727: ImagePolicyWebhook did not check images of ephemeral containers.
#[test]
fn cve_2023_2727_reviews_images_of_ephemeral_containers() {
    let cluster = Cluster::default();
    let old = pod(json!({"containers": [{"name": "a", "image": "one"}]}));
    let spec = json!({"containers": [{"name": "a", "image": "one"}],
        "ephemeralContainers": [{"name": "b", "image": "forbidden"}]});
    let update = Try::update(&cluster, &GroupResource::PODS, old).sub("ephemeralcontainers");
    let asked = update.asked(&pod(spec), image_policy::review_spec).unwrap();
    assert_eq!(asked["containers"], json!([{"image": "forbidden"}]));
}

/// CVE-2024-3177: `envFrom` could read Secrets that the service account may not mount.
#[test]
fn cve_2024_3177_binds_env_from_to_mountable_secrets() {
    let enforce = json!({"kubernetes.io/enforce-mountable-secrets": "true"});
    let account = json!({"metadata": {"name": "default", "namespace": "ns", "annotations": enforce},
        "secrets": [{"name": "known"}]});
    let cluster = Cluster::default().with(&GroupResource::SERVICE_ACCOUNTS, account);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let refusal = |secret: &str| {
            let from = json!([{"prefix": "A_"}, {"secretRef": {"name": secret}}]);
            let spec =
                json!({"serviceAccountName": "default", list: [{"name": "c", "envFrom": from}]});
            Try::create(&cluster, &GroupResource::PODS).refusal(&ServiceAccount, pod(spec))
        };
        assert!(refusal("known").starts_with("admitted"), "{list}");
        assert!(refusal("other").contains("with envFrom referencing secret.secretName=\"other\""));
    }
}

/// CVE-2025-4563: a node could use devices through a mirror Pod with claims that it may not read.
#[test]
fn cve_2025_4563_rejects_mirror_pod_with_resource_claims() {
    let cluster = Cluster::default().with(&GroupResource::NODES, node());
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": true});
    let refusal = |claims: Value| {
        let mirror = json!({
            "metadata": {"name": "m", "namespace": "ns", "annotations": {MIRROR: "h"}, "ownerReferences": [owner]},
            "spec": {"nodeName": "n1", "containers": [{"name": "a"}], "resourceClaims": claims},
        });
        let create = Try::create(&cluster, &GroupResource::PODS).by(kubelet());
        create.refusal(&NodeRestriction, mirror)
    };
    assert!(refusal(json!([])).starts_with("admitted"));
    for claim in [
        json!({"name": "c", "resourceClaimName": "somebodys"}),
        json!({"name": "c", "resourceClaimTemplateName": "t"}),
    ] {
        let refusal = refusal(json!([claim]));
        assert!(
            refusal.ends_with("node \"n1\" can not create pods that reference resourceclaims"),
            "{refusal}"
        );
    }
}

/// CVE-2025-5187: a node could add an owner to itself, so that the garbage collector deleted it, and register again
/// without its taints and labels.
#[test]
fn cve_2025_5187_rejects_node_that_changes_its_owners() {
    let cluster = Cluster::default().with(&GroupResource::NODES, node());
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "u"});
    let with = |owners: Value| {
        let mut node = node();
        node["metadata"]["ownerReferences"] = owners;
        node
    };
    for (old, new) in [
        (node(), with(json!([owner]))),
        (with(json!([owner])), node()),
        (with(json!([owner])), with(json!([owner, owner]))),
    ] {
        for subresource in ["", "status"] {
            let update = Try::update(&cluster, &GroupResource::NODES, old.clone()).by(kubelet());
            let refusal = update.sub(subresource).refusal(&NodeRestriction, new.clone());
            assert!(
                refusal.ends_with("node \"n1\" is not allowed to modify ownerReferences"),
                "{refusal}"
            );
        }
    }
    let update = Try::update(&cluster, &GroupResource::NODES, with(json!([owner]))).by(kubelet());
    assert!(update.refusal(&NodeRestriction, with(json!([owner]))).starts_with("admitted"));
}
