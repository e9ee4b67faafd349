use api_meta::Tree as _;
use kops_api::{Kind, Object, VersionName};
use serde_json::{Value, json};

fn cluster(spec: Value) -> Value {
    json!({"apiVersion": "kops.k8s.io/v1alpha2", "kind": "Cluster", "metadata": {"name": "a.example.com"}, "spec": spec})
}

fn problems(tree: Value) -> Vec<String> {
    match Object::from_tree("test", tree) {
        Ok(_) => Vec::new(),
        Err(error) => error.problems().iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn names_unknown_fields_by_path() {
    for (spec, expected) in [
        (json!({"chanel": "stable"}), "spec.chanel: Forbidden: unknown field"),
        (
            json!({"subnets": [{"name": "a"}, {"cdir": "x"}]}),
            "spec.subnets[1].cdir: Forbidden: unknown field",
        ),
        (json!({"controlPlaneKubelet": {}}), "spec.controlPlaneKubelet: Forbidden: unknown field"),
        (
            json!({"kubelet": {"maxPods": "5"}}),
            "spec.kubelet.maxPods: Invalid value: \"5\": must be a whole number that fits its field",
        ),
        (
            json!({"kubelet": {"maxPods": 1i64 << 40}}),
            "spec.kubelet.maxPods: Invalid value: 1099511627776: must be a whole number that fits its field",
        ),
        (json!({"channel": 1}), "spec.channel: Invalid value: 1: must be a string"),
        (json!({"subnets": {"a": 1}}), "spec.subnets: Invalid value: \"{...}\": must be a list"),
        (
            json!({"etcdClusters": [{"cpuRequest": "much"}]}),
            "spec.etcdClusters[0].cpuRequest: Invalid value: \"much\": must be a quantity such as 100m or 1Gi",
        ),
        (
            json!({"kubelet": {"streamingConnectionIdleTimeout": "1 h"}}),
            "spec.kubelet.streamingConnectionIdleTimeout: Invalid value: \"1 h\": must be a duration such as 1m30s",
        ),
        (
            json!({"cloudProvider": "nimbus"}),
            "spec.cloudProvider: Unsupported value: \"nimbus\": supported values: \"aws\", \"azure\", \"digitalocean\", \"gce\", \"hetzner\", \"linode\", \"openstack\", \"scaleway\"",
        ),
        (
            json!({"cloudProvider": "gce", "warmPool": {}}),
            "spec.cloudProvider: Forbidden: warmPool supports only AWS, and the cluster's cloud is \"gce\"",
        ),
    ] {
        assert_eq!(problems(cluster(spec.clone())), [expected], "{spec}");
    }
}

#[test]
fn reports_all_problems_of_a_document() {
    assert_eq!(problems(cluster(json!({"a": 1, "b": 2, "channel": []}))).len(), 3);
}

#[test]
fn rejects_foreign_and_broken_documents() {
    let deep = format!("{}1{}", "{\"spec\":".repeat(200), "}".repeat(200));
    for document in [
        "",
        "a: [",
        "[]",
        "apiVersion: v1\nkind: Pod\n",
        "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nspec: []\n",
        "apiVersion: kops.k8s.io/v1alpha9\nkind: Cluster\n",
        "apiVersion: kops.k8s.io/v1alpha2\nkind: Toolbox\n",
        "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nspec:\n  channel: stab",
        deep.as_str(),
    ] {
        // The last but one is cut inside a value, which a YAML parser cannot detect: its kind and fields are valid.
        let cut = document.ends_with("stab");
        assert_eq!(Object::read("test", document.as_bytes()).is_ok(), cut, "{document:.60}");
    }
}

#[test]
fn reads_and_writes_other_kinds() {
    for (kind, spec) in [
        (
            Kind::Keyset,
            json!({"type": "Keypair", "primaryId": "7", "keys": [{"id": "7", "publicMaterial": "aGk="}]}),
        ),
        (Kind::SshCredential, json!({"publicKey": "ssh-ed25519 AAAA"})),
        (
            Kind::Host,
            json!({"instanceGroup": "nodes", "publicKey": "k", "podCIDRs": ["10.0.0.0/24"]}),
        ),
    ] {
        let tree = json!({"apiVersion": "kops.k8s.io/v1alpha2", "kind": kind.name(), "metadata": {"name": "x"}, "spec": spec});
        let object = Object::from_tree("test", tree.clone()).unwrap();
        assert_eq!(object.to_tree(VersionName::V1alpha2), tree);
    }
}

#[test]
fn converts_negated_fields_and_roles() {
    let tree = cluster(
        json!({"DisableSubnetTags": true, "hooks": [{"name": "h", "disabled": true, "roles": ["Master", "Node"]}]}),
    );
    let object = Object::from_tree("test", tree).unwrap();
    assert_eq!(object.spec.opt_flag("networking.tagSubnets"), Some(false));
    assert_eq!(
        object.spec.items("hooks")[0],
        json!({"name": "h", "enabled": false, "roles": ["ControlPlane", "Node"]})
    );
}
