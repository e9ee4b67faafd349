use std::collections::BTreeSet;

use api_meta::{FieldSelector, UserInfo};
use proptest::{prelude::*, sample::select};
use serde_json::json;

use super::*;

fn kubelet(node: &str) -> UserInfo {
    UserInfo::new(format!("system:node:{node}"), &["system:nodes", "system:authenticated"])
}

/// Returns only the fields that the authorizer declares to read.
fn shown(object: &Value, paths: &[&str]) -> Value {
    let member = |(name, value): (&String, &Value)| {
        let split = paths.iter().filter_map(|path| path.split_once('.'));
        let below: Vec<&str> = split.filter(|(first, _)| first == name).map(|(_, p)| p).collect();
        if paths.contains(&name.as_str()) {
            Some((name.clone(), value.clone()))
        } else {
            (!below.is_empty()).then(|| (name.clone(), shown(value, &below)))
        }
    };
    match object {
        Value::Object(map) => map.iter().filter_map(member).collect(),
        Value::Array(items) => items.iter().map(|item| shown(item, paths)).collect(),
        other => other.clone(),
    }
}

fn pod(name: &str, node: &str) -> Value {
    let pod = json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("{name}-uid")},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "app",
            "imagePullSecrets": [{"name": "pull"}],
            "containers": [{
                "env": [{"valueFrom": {"secretKeyRef": {"name": "env-secret"}}}, {"valueFrom": {"configMapKeyRef": {"name": "env-map"}}}],
                "envFrom": [{"secretRef": {"name": "from-secret"}}]
            }],
            "volumes": [
                {"name": "a", "secret": {"secretName": "mounted"}},
                {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "c", "ephemeral": {"volumeClaimTemplate": {}}},
                {"name": "d", "projected": {"sources": [{"configMap": {"name": "projected"}}, {"serviceAccountToken": {}}]}}
            ],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}],
            "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "init-secret"}}}]}]
        },
        "status": {
            "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "made"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "extended"}
        }
    });
    let mut shown = shown(&pod, &POD_MEMBERS);
    shown["metadata"] = json!({"name": name, "namespace": "ns"});
    shown
}

#[test]
fn declares_secret_of_every_volume_source() {
    for (source, path) in refs::SECRET_SOURCES {
        let member = format!("spec.volumes.{source}.{path}");
        assert!(POD_MEMBERS.contains(&member.as_str()), "{member}");
    }
}

#[test]
fn node_reads_objects_of_its_pods() {
    let nodes = NodeAuthorizer::new();
    nodes.changed(Changed::of(&GroupResource::PODS, &pod("p", "n1")));
    let volume = json!({
        "metadata": {"name": "pv"},
        "spec": {"claimRef": {"namespace": "ns", "name": "data"}, "csi": {"nodeStageSecretRef": {"name": "stage", "namespace": "storage"}}}
    });
    nodes.changed(Changed::of(&GroupResource::PERSISTENT_VOLUMES, &volume));
    let attachment = json!({"metadata": {"name": "va"}, "spec": {"nodeName": "n1"}});
    nodes.changed(Changed::of(&GroupResource::VOLUME_ATTACHMENTS, &attachment));

    let (one, two) = (kubelet("n1"), kubelet("n2"));
    let ask = |user, verb, group, resource, namespace, name| {
        nodes.authorize(
            &Attributes::resource(user, verb, group, resource).in_namespace(namespace).named(name),
        )
    };
    let needed = [
        ("", "secrets", "ns", "pull"),
        ("", "secrets", "ns", "env-secret"),
        ("", "secrets", "ns", "from-secret"),
        ("", "secrets", "ns", "init-secret"),
        ("", "secrets", "ns", "mounted"),
        ("", "secrets", "storage", "stage"),
        ("", "configmaps", "ns", "env-map"),
        ("", "configmaps", "ns", "projected"),
        ("", "persistentvolumeclaims", "ns", "data"),
        ("", "persistentvolumeclaims", "ns", "p-c"),
        ("", "persistentvolumes", "", "pv"),
        ("", "pods", "ns", "p"),
        ("", "serviceaccounts", "ns", "app"),
        ("resource.k8s.io", "resourceclaims", "ns", "claim"),
        ("resource.k8s.io", "resourceclaims", "ns", "made"),
        ("resource.k8s.io", "resourceclaims", "ns", "extended"),
        ("storage.k8s.io", "volumeattachments", "", "va"),
    ];
    for (group, resource, namespace, name) in needed {
        assert!(
            ask(&one, "get", group, resource, namespace, name).is_allowed(),
            "{resource} {name}"
        );
        let other = ask(&two, "get", group, resource, namespace, name);
        assert_eq!(
            other.reason(),
            "no relationship found between node 'n2' and this object",
            "{resource} {name}"
        );
    }
    assert!(!ask(&one, "get", "", "secrets", "other", "mounted").is_allowed());
    assert!(!ask(&one, "delete", "", "secrets", "ns", "mounted").is_allowed());
    assert!(!ask(&one, "list", "", "secrets", "ns", "").is_allowed());

    nodes.changed(Changed::of(&GroupResource::PODS, &pod("p", "n1")).gone());
    for (group, resource, namespace, name) in &needed[..13] {
        assert!(
            !ask(&one, "get", group, resource, namespace, name).is_allowed(),
            "{resource} {name} after its Pod"
        );
    }
}

#[test]
fn node_writes_only_its_own_objects() {
    let nodes = NodeAuthorizer::new();
    let user = kubelet("n1");
    let selector = |text: &str| text.parse::<FieldSelector>().unwrap();
    let (mine, yours, me) =
        (selector("spec.nodeName=n1"), selector("spec.nodeName=n2"), selector("metadata.name=n1"));
    let on = |verb, group, resource| Attributes::resource(&user, verb, group, resource);
    let list = |resource, fields| Attributes { field_selector: fields, ..on("list", "", resource) };
    let lease = |verb, namespace, name| {
        on(verb, "coordination.k8s.io", "leases").in_namespace(namespace).named(name)
    };
    let cases = [
        (list("pods", Some(&mine)), true),
        (list("pods", Some(&yours)), false),
        (list("pods", None), false),
        (list("nodes", Some(&me)), true),
        (list("nodes", None), false),
        (on("get", "", "nodes").named("n1"), true),
        (on("get", "", "nodes").named("n2"), false),
        (on("create", "", "nodes"), true),
        (on("patch", "", "nodes").with_subresource("status").named("n1"), true),
        (on("delete", "", "nodes").named("n1"), false),
        (on("create", "", "pods").in_namespace("ns"), true),
        (on("patch", "", "pods").with_subresource("status").in_namespace("ns").named("p"), true),
        (on("create", "", "pods").with_subresource("eviction").in_namespace("ns").named("p"), true),
        (on("update", "", "pods").in_namespace("ns").named("p"), false),
        (lease("update", "kube-node-lease", "n1"), true),
        (lease("update", "kube-node-lease", "n2"), false),
        (lease("update", "default", "n1"), false),
        (lease("list", "kube-node-lease", ""), false),
        (on("patch", "storage.k8s.io", "csinodes").named("n1"), true),
        (on("patch", "storage.k8s.io", "csinodes").named("n2"), false),
        (on("create", "authorization.k8s.io", "subjectaccessreviews"), true),
        (on("list", "", "services"), true),
        (
            on("create", "", "serviceaccounts")
                .with_subresource("token")
                .in_namespace("ns")
                .named("x"),
            false,
        ),
        (on("create", "certificates.k8s.io", "certificatesigningrequests"), true),
        (on("list", "", "namespaces"), false),
    ];
    for (request, want) in cases {
        assert_eq!(nodes.authorize(&request).is_allowed(), want, "{request}");
    }
    let nobody = UserInfo::new("system:node:n1", &["system:authenticated"]);
    assert_eq!(
        nodes.authorize(&Attributes::resource(&nobody, "get", "", "nodes").named("n1")),
        Decision::NoOpinion(None)
    );
}

#[test]
fn mirror_pod_gives_no_access() {
    let nodes = NodeAuthorizer::new();
    let mut mirror = pod("p", "n1");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    nodes.changed(Changed::of(&GroupResource::PODS, &mirror));
    let user = kubelet("n1");
    let get = |resource, name| {
        nodes.authorize(
            &Attributes::resource(&user, "get", "", resource).in_namespace("ns").named(name),
        )
    };
    assert!(get("pods", "p").is_allowed());
    assert!(!get("secrets", "mounted").is_allowed());
}

proptest! {
    /// The counts equal those of a scan over all Pods.
    #[test]
    fn counts_equal_scan_of_pods(changes in prop::collection::vec((select(vec!["a", "b", "c"]), select(vec!["", "n1", "n2"]), select(vec!["s1", "s2"]), any::<bool>()), 0..40)) {
        let nodes = NodeAuthorizer::new();
        let mut pods: std::collections::BTreeMap<&str, Value> = Default::default();
        for (name, node, secret, delete) in changes {
            let new = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("{name}{node}{secret}")}, "spec": {"nodeName": node, "imagePullSecrets": [{"name": secret}]}});
            pods.remove(name);
            let change = Changed::of(&GroupResource::PODS, &new);
            if delete {
                nodes.changed(change.gone());
            } else {
                nodes.changed(change);
                pods.insert(name, new);
            }
        }
        for node in ["n1", "n2"] {
            let on_node = pods.values().filter(|p| p["spec"]["nodeName"] == node);
            let secrets: BTreeSet<&str> = on_node.map(|p| p["spec"]["imagePullSecrets"][0]["name"].as_str().unwrap()).collect();
            let user = kubelet(node);
            for secret in ["s1", "s2"] {
                let request = Attributes::resource(&user, "get", "", "secrets").in_namespace("ns").named(secret);
                prop_assert_eq!(nodes.authorize(&request).is_allowed(), secrets.contains(secret));
            }
        }
        let graph = nodes.graph.read();
        prop_assert!(graph.nodes.values().all(|counts| !counts.is_empty()));
    }
}

#[test]
fn node_creates_and_lists_certificate_requests_of_its_pods() {
    let features = FeatureGates::parse(["PodCertificateRequest=true"]).unwrap();
    let nodes = NodeAuthorizer::with_features(&features);
    let user = kubelet("n1");
    let selector = |text: &str| text.parse::<FieldSelector>().unwrap();
    let (mine, yours) =
        (selector("spec.nodeName=n1,metadata.name=r"), selector("spec.nodeName=n2"));
    let on = |verb, fields| Attributes {
        field_selector: fields,
        ..Attributes::resource(&user, verb, "certificates.k8s.io", "podcertificaterequests")
            .in_namespace("ns")
    };
    for (attributes, allowed) in [
        (on("create", None), true),
        (on("list", Some(&mine)), true),
        (on("watch", Some(&mine)), true),
        (on("list", Some(&yours)), false),
        (on("list", None), false),
        (on("get", None).named("r"), false),
        (on("delete", None).named("r"), false),
        (on("update", None).with_subresource("status").named("r"), false),
        (on("create", None).with_subresource("status").named("r"), false),
    ] {
        let decision = nodes.authorize(&attributes);
        assert_eq!(decision.is_allowed(), allowed, "{} {:?}", attributes.verb, attributes.name);
        assert!(!NodeAuthorizer::new().authorize(&attributes).is_allowed());
    }
}
