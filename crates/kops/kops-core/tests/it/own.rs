//! Tests with our own tables, without external files.

use api_meta::Tree as _;
use kops_api::{Kind, Object, VersionName};
use kops_core::{
    DnsZone, Machines, Network, NodeInputs, NodeKeyset, Subnet, Version, World,
    channel::Channel,
    complete, complete_group,
    create::{Options, create},
    node_config,
};
use serde_json::{Value, json};

/// A change, and the expected error.
type Case<T> = (fn(&mut T), &'static str);

fn channel() -> Channel {
    let text = "spec:\n  images:\n  - {name: ami-x, providerID: aws}\n  - {name: img-x, providerID: gce}\n  kopsVersions:\n  - {range: '>=1.36.0', kubernetesVersion: 1.36.1}\n";
    Channel::read("test", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"))
}

fn world() -> World {
    let zone = DnsZone {
        id: "Z1".into(),
        name: "example.com.".into(),
        private: Some(false),
        ..DnsZone::default()
    };
    let subnet = Subnet { id: "subnet-1".into(), zone: "r-1a".into(), cidr: "10.1.0.0/24".into() };
    let network =
        Network { cidr: "10.0.0.0/8".into(), subnets: vec![subnet], ..Network::default() };
    World {
        zones: vec![zone],
        networks: [("vpc-1".to_owned(), network)].into(),
        default_machine_types: [
            ("ControlPlane".to_owned(), "m".to_owned()),
            ("Node".to_owned(), "n".to_owned()),
        ]
        .into(),
        ..World::default()
    }
}

fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options {
        name: "a.example.com".into(),
        store: "s3://state".into(),
        cloud: "aws".into(),
        zones: vec!["r-1a".into(), "r-1b".into()],
        ..Options::default()
    };
    change(&mut options);
    options
}

fn made(options: &Options) -> Result<(Object, Vec<Object>), String> {
    let kops: Version = "1.36.2".parse().map_err(|e: kops_core::Error| e.to_string())?;
    create(options, &channel(), &world(), &kops).map_err(|e| e.to_string())
}

fn completed(options: &Options) -> Result<(Object, Vec<Object>), String> {
    let (cluster, groups) = made(options)?;
    let whole = complete(&cluster, &groups, &world(), &Machines::default());
    Ok((whole.map_err(|e| e.to_string())?, groups))
}

#[test]
fn completion_is_idempotent() {
    for (cloud, networking) in [
        ("aws", "cilium"),
        ("aws", "calico"),
        ("local", "cni"),
        ("metal", "kindnet"),
        ("gce", "gce"),
    ] {
        let options = options(|o| {
            o.cloud = cloud.into();
            o.networking = networking.into();
            if cloud == "gce" {
                o.zones = vec!["us-x1-a".into()];
            }
        });
        let (whole, groups) = completed(&options).unwrap_or_else(|e| panic!("{cloud}: {e}"));
        let again = complete(&whole, &groups, &world(), &Machines::default());
        let again = again.unwrap_or_else(|e| panic!("{cloud}: {e}"));
        assert_eq!(again.to_yaml(VersionName::V1alpha2), whole.to_yaml(VersionName::V1alpha2));
        // The stored form parses to the same object.
        let read = Object::read("stored", whole.to_yaml(VersionName::V1alpha2).as_bytes());
        let read = read.unwrap_or_else(|e| panic!("{cloud}: {e}"));
        assert_eq!(read.to_yaml(VersionName::V1alpha3), whole.to_yaml(VersionName::V1alpha3));
    }
}

#[test]
fn keeps_the_users_values() {
    let (mut cluster, groups) = made(&options(|_| {})).unwrap_or_else(|e| panic!("{e}"));
    for (path, text) in [
        ("spec.kubeAPIServer.securePort", "8443"),
        ("spec.kubelet.evictionHard", "memory.available<1Gi"),
        ("spec.networking.cilium.version", "v1.18.1"),
        ("spec.kubeDNS.nodeLocalDNS.enabled", "true"),
    ] {
        cluster.set_field(path, text).unwrap_or_else(|e| panic!("{e}"));
    }
    let whole = complete(&cluster, &groups, &world(), &Machines::default())
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(whole.spec.opt_int("kubeAPIServer.securePort"), Some(8443));
    assert_eq!(whole.spec.text("networking.cilium.version"), "v1.18.1");
    assert_eq!(whole.spec.text("controlPlaneKubelet.evictionHard"), "memory.available<1Gi");
    // This value depends on another default.
    assert_eq!(whole.spec.text("kubelet.clusterDNS"), "169.254.20.10");
}

#[test]
fn local_and_metal_have_no_cloud_controller() {
    for cloud in ["local", "metal"] {
        let (whole, groups) =
            completed(&options(|o| o.cloud = cloud.into())).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(whole.metadata["labels"]["alpha.kops.k8s.io/cloud"], cloud);
        assert!(
            !whole.spec.has("kubelet.cloudProvider") && !whole.spec.has("cloudControllerManager")
        );
        assert!(
            !whole.spec.has("api.loadBalancer")
                && !whole.to_yaml(VersionName::V1alpha2).contains("cloudProvider: aws")
        );
        assert_eq!(groups.len(), 3);
    }
}

#[test]
fn assigns_subnet_ranges() {
    let cidrs = |zones: &[&str], topology: &str| -> Vec<String> {
        let options = options(|o| {
            o.zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
            o.topology = topology.into();
        });
        let (cluster, _) = made(&options).unwrap_or_else(|e| panic!("{e}"));
        cluster.spec.items("networking.subnets").iter().map(|s| s.text("cidr").to_owned()).collect()
    };
    assert_eq!(cidrs(&["a"], "public"), ["172.20.0.0/16"]);
    assert_eq!(cidrs(&["b", "a"], "public"), ["172.20.0.0/17", "172.20.128.0/17"]);
    assert_eq!(cidrs(&["a"], "private"), ["172.20.128.0/17", "172.20.0.0/20"]);
    let nine: Vec<_> = (0..9).map(|n| format!("z{n}")).collect();
    let full = made(&options(|o| o.zones = nine)).err().unwrap_or_default();
    assert!(full.contains("no part of 172.20.0.0/16 is left for subnet \"z8\""), "{full}");
}

#[test]
fn rejects_invalid_options_with_a_remedy() {
    let cases: [Case<Options>; 16] = [
        (|o| o.name.clear(), "--name is required"),
        (|o| o.zones.clear(), "--zones is required"),
        (|o| o.cloud.clear(), "--cloud is required"),
        (|o| o.cloud = "digitalocean".into(), "cloud \"digitalocean\" is not supported"),
        (|o| o.networking = "pigeons".into(), "is not a known network"),
        (|o| o.topology = "moebius".into(), "is neither public nor private"),
        (|o| o.bastion = true, "is for --topology private"),
        (|o| o.dns = "perhaps".into(), "is not one of public, private and none"),
        (|o| o.kubernetes_version = "latest".into(), "is not a version"),
        (|o| o.network_id = "vpc-9".into(), "network \"vpc-9\" does not exist"),
        (|o| o.subnet_ids = vec!["subnet-9".into()], "subnet \"subnet-9\" does not exist"),
        (|o| o.network_cidrs = vec!["10.0.0.0".into()], "it has no prefix length"),
        (|o| o.sets = vec!["spec.chanel=x".into()], "unknown field \"chanel\""),
        (|o| o.instance_manager = "karpenter".into(), "--discovery-store is required"),
        (|o| o.control_plane_count = u32::MAX, "is more than 99"),
        (|o| o.control_plane_count = 1, ""),
    ];
    for (change, wrong) in cases {
        let error = made(&options(change)).err().unwrap_or_default();
        assert!(
            error.contains(wrong) && error.is_empty() == wrong.is_empty(),
            "{wrong:?}: {error}"
        );
    }
}

#[test]
fn completion_rejects_invalid_specs() {
    let cases: [Case<Object>; 7] = [
        (|c| c.spec.put("etcdClusters", json!([])), "spec.etcdClusters: Required"),
        (
            |c| {
                let two = json!([{"name": "a", "instanceGroup": "m"}, {"name": "b", "instanceGroup": "n"}]);
                c.spec.put("etcdClusters", json!([{"name": "main", "etcdMembers": two}]));
            },
            "Should be an odd number of control-plane-zones",
        ),
        (
            |c| c.spec.put("networking.nonMasqueradeCIDR", "172.16.0.0/12"),
            "cannot overlap with networkCIDR",
        ),
        (
            |c| c.spec.put("networking.serviceClusterIPRange", "172.20.0.0/20"),
            "must not overlap serviceClusterIPRange",
        ),
        (|c| c.spec.put("networking.serviceClusterIPRange", "100.64.0.0/30"), "is too small"),
        (
            |c| {
                c.spec.put("networking.topology.dns", "Public");
                c.metadata = json!({"name": "a.example.org"});
            },
            "one DNS zone for \"a.example.org\" does not exist",
        ),
        (
            |c| c.spec.put("serviceAccountIssuerDiscovery.discoveryStore", "file:///tmp/x"),
            "S3 is the only supported VFS for discoveryStore",
        ),
    ];
    for (change, wrong) in cases {
        let (mut cluster, groups) = made(&options(|_| {})).unwrap_or_else(|e| panic!("{e}"));
        change(&mut cluster);
        let error = complete(&cluster, &groups, &world(), &Machines::default()).err();
        let error = error.map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(wrong), "{wrong:?}: {error}");
    }
}

#[test]
fn survives_malformed_specs() {
    let (cluster, groups) = made(&options(|_| {})).unwrap_or_else(|e| panic!("{e}"));
    let mut paths = Vec::new();
    collect(&cluster.spec, "", &mut paths);
    for path in paths {
        for strange in [Value::Null, json!(7), json!("x"), json!([[]]), json!({"a": {}})] {
            let mut cluster = cluster.clone();
            cluster.spec.put(&path, strange);
            // The result may be a value or an error, but not a panic.
            let whole = complete(&cluster, &groups, &world(), &Machines::default());
            if let (Ok(whole), Some(group)) = (whole, groups.first())
                && let Ok(group) = complete_group(&whole, group, &channel(), &world())
            {
                let _ = node_config(&whole, &group, &NodeInputs::default());
            }
        }
    }
}

fn collect(tree: &Value, at: &str, paths: &mut Vec<String>) {
    for (key, value) in tree.as_object().into_iter().flatten() {
        let path = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        collect(value, &path, paths);
        paths.push(path);
    }
}

fn inputs(whole: &Object) -> NodeInputs {
    let keyset = |id: &str| NodeKeyset {
        primary_id: id.to_owned(),
        certificates: format!("certificate {id}\n"),
        public_keys: format!("key {id}\n"),
    };
    let names = [
        "kubernetes-ca",
        "etcd-clients-ca",
        "apiserver-aggregator-ca",
        "service-account",
        "etcd-manager-ca-main",
        "etcd-peers-ca-main",
        "etcd-manager-ca-events",
        "etcd-peers-ca-events",
        "kubelet",
    ];
    let mut inputs = NodeInputs { kops: "1.36.2".into(), ..NodeInputs::default() };
    inputs.keysets = names.map(|name| (name.to_owned(), keyset(name))).into();
    // Each error names the file whose hash is missing.
    let group = Object {
        kind: Kind::InstanceGroup,
        metadata: json!({"name": "m"}),
        spec: json!({"role": "ControlPlane"}),
    };
    for _ in 0..40 {
        let Err(kops_core::Error::Unknown { name, .. }) = node_config(whole, &group, &inputs)
        else {
            break;
        };
        inputs.hashes.insert(name, "0".repeat(64));
    }
    inputs
}

#[test]
fn workers_get_only_the_fields_they_need() {
    let (whole, groups) =
        completed(&options(|o| o.cloud = "local".into())).unwrap_or_else(|e| panic!("{e}"));
    let inputs = inputs(&whole);
    let config = |role: &str| {
        let group =
            groups.iter().find(|g| g.spec.text("role") == role).unwrap_or_else(|| panic!("{role}"));
        let group =
            complete_group(&whole, group, &channel(), &world()).unwrap_or_else(|e| panic!("{e}"));
        node_config(&whole, &group, &inputs).unwrap_or_else(|e| panic!("{e}"))
    };
    let (worker, control_plane) = (config("Node"), config("ControlPlane"));
    for secret in [
        "configStore:",
        "etcd-clients-ca",
        "service-account",
        "certificate kubernetes-ca",
        "ControlPlaneConfig",
    ] {
        assert!(!worker.contains(secret), "{secret}:\n{worker}");
        assert!(control_plane.contains(secret), "{secret}:\n{control_plane}");
    }
    assert!(worker.contains("kubernetes-ca: kubernetes-ca"), "{worker}");
}

#[test]
fn rejects_downloads_without_a_known_hash() {
    let (whole, groups) = completed(&options(|_| {})).unwrap_or_else(|e| panic!("{e}"));
    let group =
        complete_group(&whole, &groups[0], &channel(), &world()).unwrap_or_else(|e| panic!("{e}"));
    let mut inputs = inputs(&whole);
    inputs.keysets.remove("service-account");
    let error =
        node_config(&whole, &group, &inputs).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("keyset \"service-account\" does not exist"), "{error}");
    inputs.hashes.clear();
    let error =
        node_config(&whole, &group, &inputs).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("its hash must be known"), "{error}");
}

#[test]
fn kubelets_wait_for_the_control_plane() {
    let (cluster, groups) = made(&options(|o| o.kubernetes_version = "1.34.0".into()))
        .unwrap_or_else(|e| panic!("{e}"));
    let machines = Machines { kubelet: Some("1.33.2".into()) };
    let whole = complete(&cluster, &groups, &world(), &machines).unwrap_or_else(|e| panic!("{e}"));
    // A field of kubelets before 1.34.
    assert!(
        whole.spec.flag("kubelet.registerSchedulable")
            && !whole.spec.flag("controlPlaneKubelet.registerSchedulable")
    );
}
