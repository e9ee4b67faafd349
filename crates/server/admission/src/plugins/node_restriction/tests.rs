use api_meta::UserInfo;
use serde_json::json;

use super::*;
use crate::{
    Operation,
    plugins::service_account::MIRROR,
    testing::{Cluster, Try},
};

fn kubelet(node: &str) -> UserInfo {
    UserInfo::new(format!("system:node:{node}"), &["system:nodes"])
}

fn pod(node: &str) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid"},
        "spec": {
            "nodeName": node,
            "volumes": [{"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"serviceAccountToken": {"audience": "vault"}}]}}]
        }
    })
}

fn cluster() -> Cluster {
    Cluster::default()
        .with(&GroupResource::NODES, json!({"metadata": {"name": "n1", "uid": "node-uid"}}))
        .with(&GroupResource::PODS, pod("n1"))
}

fn mirror(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = json!({
        "metadata": {
            "name": "m", "namespace": "ns", "annotations": {MIRROR: "hash"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": true}]
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "a"}]}
    });
    change(&mut pod);
    pod
}

#[test]
fn rejects_mirror_pods_with_references() {
    let cluster = cluster();
    let create = |pod: Value| {
        Try::create(&cluster, &GroupResource::PODS).by(kubelet("n1")).refusal(&NodeRestriction, pod)
    };
    let cases: [(Value, &str); 8] = [
        (mirror(|_| {}), "admitted"),
        (
            mirror(|p| p["metadata"]["annotations"] = Value::Null),
            "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create mirror pods",
        ),
        (
            mirror(|p| p["spec"]["nodeName"] = "n2".into()),
            "node \"n1\" can only create pods with spec.nodeName set to itself",
        ),
        (
            mirror(|p| p["metadata"]["ownerReferences"] = Value::Null),
            "node \"n1\" can only create pods with an owner reference set to itself",
        ),
        (
            mirror(|p| p["metadata"]["ownerReferences"][0]["uid"] = "x".into()),
            "node \"n1\" UID mismatch: expected node-uid got x",
        ),
        (
            mirror(|p| p["spec"]["serviceAccountName"] = "x".into()),
            "node \"n1\" can not create pods that reference a service account",
        ),
        (
            mirror(|p| p["spec"]["volumes"] = json!([{"secret": {"secretName": "s"}}])),
            "node \"n1\" can not create pods that reference secrets",
        ),
        (
            mirror(|p| {
                p["spec"]["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "c"}}])
            }),
            "node \"n1\" can not create pods that reference configmaps",
        ),
    ];
    for (pod, want) in cases {
        let got = create(pod);
        assert!(got.contains(want), "{got}");
    }
    let other = Try::create(&cluster, &GroupResource::PODS).refusal(&NodeRestriction, pod(""));
    assert!(other.starts_with("admitted"), "only nodes are restricted");
}

#[test]
fn rejects_changes_to_pods_of_other_nodes() {
    let cluster = cluster();
    let delete = |node: &str| {
        Try::delete(&cluster, &GroupResource::PODS, pod("n1"))
            .by(kubelet(node))
            .refusal(&NodeRestriction, Value::Null)
    };
    assert!(delete("n1").starts_with("admitted"));
    assert!(
        delete("n2").ends_with("node \"n2\" can only delete pods with spec.nodeName set to itself")
    );
    let status = |node: &str, new: Value| {
        Try::update(&cluster, &GroupResource::PODS, pod("n1"))
            .by(kubelet(node))
            .sub("status")
            .refusal(&NodeRestriction, new)
    };
    assert!(status("n1", pod("n1")).starts_with("admitted"));
    assert!(status("n2", pod("n1")).contains("can only update pod status"));
    let mut labelled = pod("n1");
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(
        status("n1", labelled).ends_with("node \"n1\" cannot update labels through pod status")
    );
    let evict = |node: &str| {
        let eviction = json!({"metadata": {"name": "p", "namespace": "ns"}});
        Try::create(&cluster, &GroupResource::PODS)
            .by(kubelet(node))
            .sub("eviction")
            .refusal(&NodeRestriction, eviction)
    };
    assert!(evict("n1").starts_with("admitted"));
    assert!(evict("n2").ends_with("node n2 can only evict pods with spec.nodeName set to itself"));
    for other in ["binding", "exec", "ephemeralcontainers"] {
        let refusal = Try::create(&cluster, &GroupResource::PODS)
            .by(kubelet("n1"))
            .sub(other)
            .refusal(&NodeRestriction, pod("n1"));
        let wanted = format!(
            "unexpected pod subresource \"{other}\", only 'status' and 'eviction' are allowed"
        );
        assert!(refusal.ends_with(&wanted), "{refusal}");
    }
    let update = Try::update(&cluster, &GroupResource::PODS, pod("n1")).by(kubelet("n1"));
    assert!(
        update.refusal(&NodeRestriction, pod("n1")).contains("unexpected operation \"UPDATE\"")
    );
}

#[test]
fn restricts_node_labels() {
    let cluster = cluster();
    let node = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
    let create = |object: Value| {
        Try::create(&cluster, &GroupResource::NODES)
            .by(kubelet("n1"))
            .refusal(&NodeRestriction, object)
    };
    let good = json!({"kubernetes.io/hostname": "n1", "mine": "x", "example.com/a": "b", "node.kubernetes.io/x": "y", "a.kubelet.kubernetes.io/z": ""});
    assert!(create(node("n1", good)).starts_with("admitted"));
    assert!(
        create(node("n2", json!({}))).ends_with("node \"n1\" is not allowed to modify node \"n2\"")
    );
    let bad = json!({"node-restriction.kubernetes.io/a": "b", "node-role.kubernetes.io/control-plane": "",
        "windlass.node-restriction.kubernetes.io/local-volumes": "n2", "x.k8s.io/y": ""});
    assert!(create(node("n1", bad)).ends_with("is not allowed to set the following labels: node-restriction.kubernetes.io/a, node-role.kubernetes.io/control-plane, windlass.node-restriction.kubernetes.io/local-volumes, x.k8s.io/y"));

    let role = json!({"node-role.kubernetes.io/control-plane": ""});
    let update = |old: Value, new: Value| {
        Try::update(&cluster, &GroupResource::NODES, old)
            .by(kubelet("n1"))
            .refusal(&NodeRestriction, new)
    };
    assert!(
        update(node("n1", role.clone()), node("n1", role.clone())).starts_with("admitted"),
        "what others set may stay"
    );
    assert!(
        update(node("n1", role), node("n1", json!({})))
            .ends_with("is not allowed to modify labels: node-role.kubernetes.io/control-plane")
    );
    let mut tainted = node("n1", json!({}));
    tainted["spec"] = json!({"taints": [{"key": "a"}]});
    assert!(
        update(tainted, node("n1", json!({})))
            .ends_with("node \"n1\" is not allowed to modify taints")
    );
}

#[test]
fn allows_tokens_for_pods_of_node() {
    let cluster = cluster();
    let ask = |node: &str, bound: Value, audiences: Value| {
        let review = json!({"metadata": {"namespace": "ns", "name": "app"}, "spec": {"boundObjectRef": bound, "audiences": audiences}});
        Try::create(&cluster, &GroupResource::SERVICE_ACCOUNTS)
            .by(kubelet(node))
            .sub("token")
            .refusal(&NodeRestriction, review)
    };
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "pod-uid"});
    assert!(ask("n1", bound.clone(), Value::Null).starts_with("admitted"));
    assert!(ask("n1", bound.clone(), json!(["vault"])).starts_with("admitted"));
    assert!(
        ask("n1", bound.clone(), json!(["other"]))
            .ends_with("not authorized to request tokens for this audience")
    );
    assert!(
        ask("n2", bound, Value::Null)
            .ends_with("node requested token bound to a pod scheduled on a different node")
    );
    assert!(
        ask("n1", Value::Null, Value::Null).ends_with("node requested token not bound to a pod")
    );
    assert!(
        ask(
            "n1",
            json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "old"}),
            Value::Null
        )
        .contains("does not match the UID in record")
    );
}

#[test]
fn requires_node_name_of_leases_and_csi_nodes() {
    let cluster = cluster();
    let lease = |namespace: &str, name: &str| {
        let lease = json!({"metadata": {"name": name, "namespace": namespace}});
        Try::create(&cluster, &GroupResource::LEASES)
            .by(kubelet("n1"))
            .refusal(&NodeRestriction, lease)
    };
    assert!(lease("kube-node-lease", "n1").starts_with("admitted"));
    assert!(
        lease("kube-node-lease", "n2")
            .ends_with("can only access node lease with the same name as the requesting node")
    );
    assert!(
        lease("kube-system", "n1")
            .ends_with("can only access leases in the \"kube-node-lease\" system namespace")
    );
    let unnamed = Try {
        user: UserInfo::new("system:node:", &["system:nodes"]),
        operation: Operation::Create,
        ..Try::create(&cluster, &GroupResource::LEASES)
    };
    assert!(
        unnamed
            .refusal(&NodeRestriction, json!({"metadata": {"name": "x"}}))
            .contains("could not determine node from user")
    );
}

#[test]
fn rejects_csr_for_other_node() {
    use base64::{Engine, prelude::BASE64_STANDARD as BASE64};
    use rcgen::DnType;
    let cluster = cluster();
    let ask = |signer: &str, names: &[&str]| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        let kinds = [DnType::CommonName, DnType::CustomDnType(vec![2, 5, 4, 3])];
        for (kind, name) in kinds.into_iter().zip(names) {
            params.distinguished_name.push(kind, *name);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let csr = json!({"metadata": {"name": "c"}, "spec": {
            "signerName": format!("kubernetes.io/{signer}"), "request": BASE64.encode(pem)}});
        Try::create(&cluster, &GroupResource::CERTIFICATE_SIGNING_REQUESTS)
            .by(kubelet("n1"))
            .refusal(&NodeRestriction, csr)
    };
    for signer in ["kubelet-serving", "kube-apiserver-client-kubelet"] {
        assert!(ask(signer, &["system:node:n1"]).starts_with("admitted"));
        let refusal = ask(signer, &["system:node:n2"]);
        assert!(
            refusal.ends_with("can only create a node CSR with CN=system:node:n1"),
            "{refusal}"
        );
        let refusal = ask(signer, &["system:node:n1", "system:kube-controller-manager"]);
        assert!(refusal.contains("unable to parse csr: "), "{refusal}");
        assert!(refusal.contains("its subject has 2 common names"), "{refusal}");
    }
    assert!(ask("kube-apiserver-client", &["anybody"]).starts_with("admitted"));
}

fn certificate_request() -> Value {
    json!({"metadata": {"name": "r", "namespace": "ns"}, "spec": {
        "signerName": "a.b/c", "podName": "p", "podUID": "pod-uid", "nodeName": "n1",
        "nodeUID": "node-uid", "serviceAccountName": "sa", "serviceAccountUID": "sa-uid"}})
}

/// Returns a cluster with a Pod on node n1 that has a certificate of the signer a.b/c.
fn cluster_with_certificate(change: impl FnOnce(&mut Value)) -> Cluster {
    let mut pod = pod("n1");
    pod["spec"]["serviceAccountName"] = "sa".into();
    let source = json!({"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519"}});
    pod["spec"]["volumes"] = json!([{"projected": {"sources": [source]}}]);
    change(&mut pod);
    let node = |name: &str, uid: &str| json!({"metadata": {"name": name, "uid": uid}});
    let account = json!({"metadata": {"name": "sa", "namespace": "ns", "uid": "sa-uid"}});
    Cluster::default()
        .with(&GroupResource::NODES, node("n1", "node-uid"))
        .with(&GroupResource::NODES, node("n2", "other-uid"))
        .with(&GroupResource::PODS, pod)
        .with(&GroupResource::SERVICE_ACCOUNTS, account)
}

#[test]
fn node_requests_certificates_only_for_its_pods() {
    let resource = GroupResource::POD_CERTIFICATE_REQUESTS;
    let refusal = |cluster: &Cluster, node: &str, change: &dyn Fn(&mut Value)| {
        let mut request = certificate_request();
        change(&mut request["spec"]);
        Try::create(cluster, &resource).by(kubelet(node)).refusal(&NodeRestriction, request)
    };
    let cluster = cluster_with_certificate(|_| {});
    assert!(refusal(&cluster, "n1", &|_| {}).starts_with("admitted"));
    let set = |node: &str, field: &'static str, value: &'static str| {
        refusal(&cluster, node, &move |spec: &mut Value| spec[field] = value.into())
    };
    for (node, field, value, words) in [
        ("n2", "podName", "p", "which is not the requesting node \"n2\""),
        ("n1", "nodeName", "n2", "PodCertificateRequest.Spec.NodeName=\"n2\""),
        ("n1", "nodeUID", "x", "names node UID \"x\", inconsistent with the running node"),
        ("n1", "podName", "gone", "pods \"gone\" not found"),
        ("n1", "podUID", "x", "contains pod UID (\"x\") which differs from running pod"),
        ("n1", "serviceAccountName", "x", "contains serviceAccountName (\"x\") that differs"),
        ("n1", "serviceAccountUID", "x", "names service account UID \"x\""),
        ("n1", "signerName", "a.b/other", "no volume of pod \"ns/p\" has a podCertificate source"),
    ] {
        let found = set(node, field, value);
        assert!(found.contains(words), "{field}: {found}");
    }
    // A node that names itself and another node's Pod.
    let elsewhere = refusal(&cluster, "n2", &|spec| {
        spec["nodeName"] = "n2".into();
        spec["nodeUID"] = "other-uid".into();
    });
    assert!(elsewhere.contains("pod \"ns/p\" is not running on node \"n2\""), "{elsewhere}");
    let mirror =
        cluster_with_certificate(|pod| pod["metadata"]["annotations"] = json!({MIRROR: "x"}));
    let found = refusal(&mirror, "n1", &|_| {});
    assert!(found.contains("pod \"ns/p\" is a mirror pod"), "{found}");
    let status = Try::update(&cluster, &resource, certificate_request()).sub("status");
    let found = status.by(kubelet("n1")).refusal(&NodeRestriction, certificate_request());
    assert!(found.contains("unexpected operation"), "{found}");
}
