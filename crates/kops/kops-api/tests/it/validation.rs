use std::collections::BTreeSet;

use api_meta::FieldError;
use kops_api::{Kind, Object, validate_cluster, validate_cluster_update, validate_group};
use serde_json::{Value, json};

const TABLE: &str = include_str!("validation.tsv");

fn cluster() -> Object {
    let mut cluster = Object::new(Kind::Cluster, "a.example.com");
    cluster.spec = json!({
        "cloudProvider": {"aws": {}}, "authorization": {"rbac": {}},
        "networking": {
            "networkCIDR": "172.20.0.0/16", "nonMasqueradeCIDR": "100.64.0.0/10", "podCIDR": "100.96.0.0/11",
            "serviceClusterIPRange": "100.64.0.0/13", "topology": {"dns": "Public"},
            "subnets": [{"name": "a", "cidr": "172.20.0.0/19", "type": "Public"}],
        },
        "kubeAPIServer": {"serviceClusterIPRange": "100.64.0.0/13"},
        "etcdClusters": [{"name": "main", "etcdMembers": [{"name": "a", "instanceGroup": "some-ig"}]}],
    });
    cluster
}

fn group() -> Object {
    let mut group = Object::new(Kind::InstanceGroup, "some-ig");
    group.spec = json!({"role": "Node", "minSize": 1, "maxSize": 1, "image": "my-image"});
    group
}

fn overlay(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                match value {
                    Value::Null => drop(under.remove(&key)),
                    value => overlay(under.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (under, over) => *under = over,
    }
}

fn messages(errors: &[FieldError]) -> BTreeSet<String> {
    errors.iter().map(|e| format!("{}::{}", e.kind.words(), e.field)).collect()
}

#[test]
fn reports_exactly_the_expected_errors() {
    let mut missed = Vec::new();
    for row in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let [kind, over, expected] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let over: Value = serde_json::from_str(over).unwrap_or_else(|e| panic!("{row}: {e}"));
        let errors = if kind == "cluster" {
            let mut cluster = cluster();
            overlay(&mut cluster.spec, over);
            validate_cluster(&cluster, true)
        } else {
            let mut group = group();
            overlay(&mut group.spec, over);
            validate_group(&group, Some(&cluster()))
        };
        let expected = expected.split("; ").filter(|e| *e != "-").map(str::to_owned).collect();
        if messages(&errors) != expected {
            missed.push(format!("{row}\n  told: {:?}", messages(&errors)));
        }
    }
    assert!(missed.is_empty(), "{}:\n{}", missed.len(), missed.join("\n"));
}

#[test]
fn suggests_corrected_ranges() {
    for (text, detail) in [
        ("192.168.0.1", "Could not be parsed as a CIDR (did you mean \"192.168.0.1/32\")"),
        ("fd00::1", "Could not be parsed as a CIDR (did you mean \"fd00::1/64\")"),
        ("10.128.0.0/8", "Network contains bits outside prefix (did you mean \"10.0.0.0/8\")"),
        ("nowhere", "Could not be parsed as a CIDR"),
    ] {
        let mut cluster = cluster();
        overlay(&mut cluster.spec, json!({"sshAccess": [text]}));
        let errors = validate_cluster(&cluster, true);
        assert_eq!(errors.iter().map(|e| e.detail.as_str()).collect::<Vec<_>>(), [detail]);
    }
}

#[test]
fn validates_groups_against_their_cluster() {
    let of = |patch: Value, spec: Value| {
        let (mut cluster, mut group) = (cluster(), group());
        overlay(&mut cluster.spec, patch);
        overlay(&mut group.spec, spec);
        messages(&validate_group(&group, Some(&cluster)))
    };
    let karpenter = |gates: &str, size: i64| {
        of(
            json!({"karpenter": {"featureGates": gates}}),
            json!({"manager": "Karpenter", "minSize": size, "maxSize": 9}),
        )
    };
    for (gates, wrong) in [
        ("", false),
        ("NodeRepair=false,StaticCapacity=true", false),
        ("StaticCapacity=false,StaticCapacity=true", false),
        ("NodeRepair=true", true),
        (" ", true),
        ("StaticCapacity=false", true),
        ("StaticCapacity=true,StaticCapacity=false", true),
    ] {
        assert_eq!(!karpenter(gates, 4).is_empty(), wrong, "{gates:?}");
    }
    let gce = || json!({"cloudProvider": {"aws": null, "gce": {}}});
    let other = || json!({"cloudProvider": {"aws": null, "do": {}}});
    let none = || json!({"networking": {"topology": {"dns": "None"}}});
    let server = || json!({"role": "APIServer", "zones": ["a"]});
    let forbidden = BTreeSet::from(["Forbidden::spec.role".to_owned()]);
    assert!(of(gce(), server()).is_empty());
    assert_eq!(of(other(), server()), forbidden);
    assert_eq!(of(none(), server()), forbidden);
    let manager = BTreeSet::from(["Forbidden::spec.manager".to_owned()]);
    assert_eq!(of(gce(), json!({"manager": "Karpenter", "zones": ["a"]})), manager);
    let zones = BTreeSet::from(["Required value::spec.zones".to_owned()]);
    assert_eq!(of(gce(), json!({})), zones);
    let volumes = json!({"volumes": [{"device": "/dev/sdb", "size": 1}]});
    assert_eq!(of(other(), volumes), BTreeSet::from(["Forbidden::spec.volumes".to_owned()]));
    let pool = json!({"cloudProvider": {"aws": {"warmPool": {"minSize": 3}}}});
    assert!(of(pool.clone(), json!({"role": "ControlPlane", "subnets": ["a"]})).is_empty());
    let size = BTreeSet::from(["Invalid value::spec.warmPool.maxSize".to_owned()]);
    assert_eq!(of(pool, json!({"warmPool": {"maxSize": 2}})), size);
    let strange = json!({"etcdClusters": [{"name": "main", "etcdMembers": [{"name": "a", "instanceGroup": "m"}]}]});
    let lost = of(strange, json!({"role": "ControlPlane", "subnets": ["a"]}));
    assert_eq!(lost, BTreeSet::from(["Forbidden::spec.metadata.name".to_owned()]));
}

#[test]
fn names_must_be_dns_names() {
    for (name, wrong) in [
        ("a.example.com", false),
        ("a", true),
        ("", true),
        ("test.-", true),
        ("!", true),
        ("A", true),
    ] {
        let mut object = cluster();
        object.metadata = json!({"name": name});
        assert_eq!(!validate_cluster(&object, true).is_empty(), wrong, "{name:?}");
    }
}

#[test]
fn accepts_name_without_dot_if_cluster_has_no_records() {
    let mut object = cluster();
    object.metadata = json!({"name": "a"});
    overlay(&mut object.spec, json!({"networking": {"topology": {"dns": "None"}}}));
    assert!(validate_cluster(&object, true).is_empty());
    let mut imported = cluster();
    let annotations = json!({"kops.kubernetes.io/management": "imported"});
    imported.metadata = json!({"name": "a", "annotations": annotations});
    assert!(validate_cluster(&imported, true).is_empty());
}

#[test]
fn rejects_moving_etcd_members() {
    let of = |clusters: Value| {
        let mut cluster = cluster();
        overlay(&mut cluster.spec, json!({"etcdClusters": clusters}));
        cluster
    };
    let members = |groups: &[(&str, &str)]| -> Value {
        groups.iter().map(|(name, group)| json!({"name": name, "instanceGroup": group})).collect()
    };
    let main = |groups| json!([{"name": "main", "etcdMembers": members(groups)}]);
    let three = of(main(&[("a", "x"), ("b", "y"), ("c", "z")]));
    for (new, old, created, expected) in [
        (main(&[("a", "x"), ("b", "y"), ("d", "w")]), &three, "main", None),
        (main(&[("a", "x"), ("b", "y"), ("c", "z")]), &of(main(&[("a", "x")])), "main", None),
        (main(&[("a", "x"), ("b", "y"), ("c", "w")]), &three, "events", None),
        (
            main(&[("a", "x"), ("b", "y"), ("c", "w")]),
            &three,
            "main",
            Some("Forbidden::spec.etcdClusters[main].etcdMembers[c].instanceGroup"),
        ),
        (
            json!([{"name": "events", "etcdMembers": members(&[("a", "x")])}]),
            &three,
            "main",
            Some("Forbidden::spec.etcdClusters[main]"),
        ),
    ] {
        let errors = validate_cluster_update(&of(new), old, &[created]);
        assert_eq!(messages(&errors), expected.map(str::to_owned).into_iter().collect());
    }
}
