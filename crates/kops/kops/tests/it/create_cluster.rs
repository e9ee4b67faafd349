//! Tests of `create cluster`: flags, clouds, and refusals that store nothing. With `KOPS_SOURCE`, upstream's goldens.

use std::fs;

use kops_api::yaml;
use serde_json::Value;

use crate::stored::TestStore;

const CHANNEL: &str = "spec:\n  images:\n  - {name: img-amd, providerID: aws, architectureID: amd64}\n  - {name: img-arm, providerID: aws, architectureID: arm64}\n  kopsVersions:\n  - {range: '>=1.36.0', kubernetesVersion: 1.36.1}\n";
const KNOWN: &str = "defaultMachineTypes: {ControlPlane: m5.large, Node: m5.large, Bastion: t3.micro}\nnetworks:\n  vpc-1: {cidr: 10.0.0.0/16, subnets: [{id: subnet-1, zone: us-east-1a, cidr: 10.0.1.0/24}, {id: subnet-2, zone: us-east-1a, cidr: 10.0.2.0/24}]}\ndnsZones: [{id: Z1, name: example.com}]\n";

struct Demo {
    place: TestStore,
}

impl Demo {
    fn new() -> Self {
        let place = TestStore::new();
        place.write("channel", CHANNEL);
        place.write("known", KNOWN);
        Self { place }
    }

    /// Runs `create cluster` for AWS without calls.
    fn create(&self, flags: &[&str]) -> Result<String, String> {
        let (channel, known) = (self.place.path("channel"), self.place.path("known"));
        let mut all = vec!["create", "cluster", "demo.example.com", "--zones", "us-east-1a"];
        all.extend(["--channel", &channel, "--known", &known, "--target", "terraform"]);
        all.extend(flags);
        self.place.kops(&all)
    }

    /// Returns the objects that `create cluster --dry-run` shows.
    fn objects(&self, flags: &[&str]) -> Vec<Value> {
        let all: Vec<_> = flags.iter().copied().chain(["--dry-run", "-o", "json"]).collect();
        let shown = self.create(&all).unwrap_or_else(|e| panic!("{flags:?}: {e}"));
        serde_json::from_str(&shown).unwrap_or_else(|e| panic!("{e}: {shown}"))
    }
}

fn group<'a>(objects: &'a [Value], role: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["spec"]["role"] == role);
    found.unwrap_or_else(|| panic!("no group of role {role}"))
}

#[test]
fn sets_fields_of_the_cluster_by_flags() {
    let demo = Demo::new();
    for (flags, path, want) in [
        (
            &["--cloud-labels", "Owner=John Doe,Team=A"][..],
            "/spec/cloudLabels/Owner",
            "\"John Doe\"",
        ),
        (&["--disable-subnet-tags"], "/spec/DisableSubnetTags", "true"),
        (&["--api-loadbalancer-type", "internal"], "/spec/api/loadBalancer/type", "\"Internal\""),
        (&["--api-ssl-certificate", "arn:x"], "/spec/api/loadBalancer/sslCertificate", "\"arn:x\""),
        (
            &["--discovery-store", "s3://public"],
            "/spec/serviceAccountIssuerDiscovery/discoveryStore",
            "\"s3://public/demo.example.com\"",
        ),
        (&["--network-id", "vpc-1"], "/spec/networkID", "\"vpc-1\""),
        (&["--subnets", "subnet-1"], "/spec/subnets/0/id", "\"subnet-1\""),
        (
            &["-t", "private", "--subnets", "subnet-1", "--utility-subnets", "subnet-2"],
            "/spec/subnets/1/id",
            "\"subnet-2\"",
        ),
        (&["--ipv6"], "/spec/nonMasqueradeCIDR", "\"::/0\""),
        (
            &["--etcd-storage-type", "gp2"],
            "/spec/etcdClusters/0/etcdMembers/0/volumeType",
            "\"gp2\"",
        ),
        (&["--encrypt-etcd-storage"], "/spec/etcdClusters/0/etcdMembers/0/encryptedVolume", "true"),
        (&["--kubernetes-feature-gates", "-A,+B"], "/spec/kubelet/featureGates/A", "\"false\""),
        (&[], "/spec/cloudProvider", "\"aws\""),
        (&[], "/spec/kubernetesVersion", "\"1.36.1\""),
    ] {
        let objects = demo.objects(flags);
        let found = objects[0].pointer(path).map(Value::to_string);
        assert_eq!(found.as_deref(), Some(want), "{flags:?}: {}", objects[0]);
    }
    let plain = demo.objects(&["--encrypt-etcd-storage=false"]);
    assert!(plain[0].pointer("/spec/etcdClusters/0/etcdMembers/0/encryptedVolume").is_none());
    // The zones name the cloud.
    let named = demo.objects(&["--cloud", "aws"]);
    assert_eq!(named, demo.objects(&[]));
}

#[test]
fn sets_fields_of_groups_by_flags() {
    let demo = Demo::new();
    for (flags, role, path, want) in [
        (
            &["--control-plane-size", "m5.xlarge"][..],
            "Master",
            "/spec/machineType",
            "\"m5.xlarge\"",
        ),
        (
            &["--node-size", "m6g.large,m7g.large"],
            "Node",
            "/spec/mixedInstancesPolicy/instances/1",
            "\"m7g.large\"",
        ),
        // The name determines the architecture.
        (&["--node-size", "m6g.large"], "Node", "/spec/image", "\"img-arm\""),
        (&[], "Node", "/spec/image", "\"img-amd\""),
        (&["--image", "i"], "Master", "/spec/image", "\"i\""),
        (&["--image", "i", "--node-image", "n"], "Node", "/spec/image", "\"n\""),
        (&["--image", "i", "--control-plane-image", "c"], "Master", "/spec/image", "\"c\""),
        (&["--control-plane-volume-size", "30"], "Master", "/spec/rootVolumeSize", "30"),
        (&["--node-volume-size", "31"], "Node", "/spec/rootVolumeSize", "31"),
        (&["--control-plane-volume-type", "gp3"], "Master", "/spec/rootVolumeType", "\"gp3\""),
        (&["--node-volume-type", "io1"], "Node", "/spec/rootVolumeType", "\"io1\""),
        (&["--control-plane-tenancy", "dedicated"], "Master", "/spec/tenancy", "\"dedicated\""),
        (&["--node-tenancy", "dedicated"], "Node", "/spec/tenancy", "\"dedicated\""),
        (
            &["--control-plane-security-groups", "sg-1,sg-2"],
            "Master",
            "/spec/additionalSecurityGroups/1",
            "\"sg-2\"",
        ),
        (
            &["--node-security-groups", "sg-3"],
            "Node",
            "/spec/additionalSecurityGroups/0",
            "\"sg-3\"",
        ),
        (&["--associate-public-ip=false"], "Node", "/spec/associatePublicIp", "false"),
        (
            &["--bastion", "-t", "private", "--bastion-image", "b"],
            "Bastion",
            "/spec/image",
            "\"b\"",
        ),
        (
            &["--instance-manager", "karpenter", "--discovery-store", "s3://p"],
            "Node",
            "/spec/manager",
            "\"Karpenter\"",
        ),
    ] {
        let objects = demo.objects(flags);
        let group = group(&objects, role);
        let found = group.pointer(path).map(Value::to_string);
        assert_eq!(found.as_deref(), Some(want), "{flags:?}: {group}");
    }
}

#[test]
fn rejects_flags_of_aws_on_gce() {
    let demo = Demo::new();
    for flag in [
        "--control-plane-tenancy=a",
        "--node-tenancy=a",
        "--control-plane-security-groups=a",
        "--node-security-groups=a",
        "--instance-manager=karpenter",
        "--encrypt-etcd-storage=true",
        "--utility-subnets=a",
        "--disable-subnet-tags",
        "--ipv6",
        "--api-ssl-certificate=a",
        "--discovery-store=s3://a/b",
    ] {
        let error = demo.create(&["--cloud", "gce", flag]).expect_err(flag);
        assert!(error.contains("is for --cloud aws, not --cloud gce"), "{flag}: {error}");
    }
}

#[test]
fn stores_nothing_when_refused() {
    let demo = Demo::new();
    let key = demo.place.path("id.pub");
    fs::write(&key, "no key\n").unwrap();
    let missing = demo.place.path("none");
    for (flags, reason) in [
        (&["--cloud", "digitalocean"][..], "use --cloud local, metal, aws or gce"),
        (&["--cloud", "gce"], "--project is required with --cloud gce"),
        (&["--cloud", "gce", "--network-cidr", "10.0.0.0/8"], "is for --cloud aws, not"),
        (&["--cloud", "openstack", "--os-network", "n"], "cloud \"openstack\" is not supported"),
        (&["--cloud", "x\"; rm"], "is not supported"),
        (&["--project", "p"], "--project is for --cloud gce, not --cloud aws"),
        (&["--gce-service-account", "a"], "--gce-service-account is for --cloud gce"),
        (&["--os-dns-servers", "1"], "--os-dns-servers is for --cloud openstack"),
        (&["--os-ext-net", "1"], "--os-ext-net is for --cloud openstack"),
        (&["--os-ext-subnet", "1"], "--os-ext-subnet is for --cloud openstack"),
        (&["--os-kubelet-ignore-az"], "--os-kubelet-ignore-az is for --cloud openstack"),
        (&["--os-lb-floating-subnet", "1"], "--os-lb-floating-subnet is for"),
        (&["--os-network", "1"], "--os-network is for --cloud openstack"),
        (&["--os-octavia=true"], "--os-octavia is for --cloud openstack"),
        (&["--os-octavia-provider", "1"], "--os-octavia-provider is for --cloud openstack"),
        (&["--cloud", "local"], "--target=terraform is for --cloud aws or gce, not --cloud local"),
        (&["--dry-run"], "--dry-run needs --output"),
        (&["-o", "yaml"], "--output is for --dry-run"),
        (&["--subnets", "subnet-9"], "subnet \"subnet-9\" does not exist"),
        (&["--network-id", "vpc-9"], "network \"vpc-9\" does not exist"),
        (&["--subnets", "subnet-1,subnet-2"], "is in the same zone as"),
        (&["--bastion"], "is for --topology private"),
        (&["--api-loadbalancer-type", "odd"], "is neither public nor internal"),
        (&["--cloud-labels", "a"], "is not of the form key=value"),
        (&["--instance-manager", "x"], "is neither cloudgroups nor karpenter"),
        (&["--node-volume-size", "-1"], "unexpected argument"),
        (&["--ssh-public-key", &key], "SSH"),
        (&["--ssh-public-key", &missing], "reading"),
    ] {
        let error = demo.create(flags).expect_err(reason);
        assert!(error.contains(reason), "{flags:?}: {error}");
        assert!(!demo.place.has("demo.example.com"), "{flags:?} has stored something");
    }
    for (flags, reason) in [
        (
            &["--node-size", "m5.large"][..],
            "--node-size is for --cloud aws or gce, not --cloud local",
        ),
        (&["--image", "i"], "--image is for --cloud aws"),
        (&["--ssh-public-key", "k"], "--ssh-public-key is for --cloud aws"),
        (&["--out", "o"], "--out is for --cloud aws"),
        (&["--ipv6"], "--ipv6 is for --cloud aws"),
        (&["--api-ssl-certificate", "a"], "--api-ssl-certificate is for --cloud aws"),
    ] {
        let mut all = vec!["create", "cluster", "demo.local", "--cloud", "local"];
        all.extend(flags);
        let error = demo.place.kops(&all).expect_err(reason);
        assert!(error.contains(reason), "{flags:?}: {error}");
        assert!(!demo.place.has("demo.local"), "{flags:?} has stored something");
    }
    for (flags, reason) in [
        (&["--cloud", "aws", "demo.example.com"][..], "--zones is required"),
        (&["--cloud", "aws", "--zones", "us-east-1a"], "--name is required"),
        (&["demo.example.com", "--zones", "fsn1"], "--cloud is required"),
        (&["demo.example.com", "--zones", "../x", "--cloud", "aws"], "is not the name of a region"),
    ] {
        let all = [&["create", "cluster", "--kubernetes-version", "1.36.1"][..], flags].concat();
        let error = demo.place.kops(&all).expect_err(reason);
        assert!(error.contains(reason), "{flags:?}: {error}");
    }
    // Without a table, the machine types are unknown.
    fs::write(demo.place.path("known"), "{}").unwrap();
    let error = demo.create(&[]).expect_err("no machine type");
    assert!(error.contains("has no machine type"), "{error}");
    assert!(!demo.place.has("demo.example.com"));
}

#[test]
fn stores_the_ssh_key_with_the_cluster() {
    let demo = Demo::new();
    let key = demo.place.path("id.pub");
    let text =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO4gY2xhaW0gb2YgYW55Ym9keSBoZXJlIGlzIG1lYW50 a@b\n";
    fs::write(&key, text).unwrap();
    // Terraform's configuration needs more facts than are known here. The cluster is stored before.
    demo.create(&["--ssh-public-key", &key]).expect_err("unknown facts");
    assert!(demo.place.has("demo.example.com/config"));
    let directory = demo.place.store_path("demo.example.com/pki/ssh/public/admin");
    let stored: Vec<_> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(stored.len(), 1);
    assert_eq!(fs::read_to_string(&stored[0]).unwrap(), text);
    let again = demo.create(&[]).expect_err("exists");
    assert!(
        again.contains("already exists; use 'kops update cluster' to apply changes"),
        "{again}"
    );
}

/// Upstream's flag for an option of its test files.
const OPTIONS: [(&str, &str); 33] = [
    ("CloudProvider", "--cloud"),
    ("KubernetesVersion", "--kubernetes-version"),
    ("KubernetesFeatureGates", "--kubernetes-feature-gates"),
    ("SSHAccess", "--ssh-access"),
    ("DiscoveryStore", "--discovery-store"),
    ("Zones", "--zones"),
    ("ControlPlaneZones", "--control-plane-zones"),
    ("ControlPlaneCount", "--control-plane-count"),
    ("NodeCount", "--node-count"),
    ("Bastion", "--bastion"),
    ("InstanceManager", "--instance-manager"),
    ("Image", "--image"),
    ("ControlPlaneImage", "--control-plane-image"),
    ("NodeImage", "--node-image"),
    ("ControlPlaneSizes", "--control-plane-size"),
    ("NodeSizes", "--node-size"),
    ("ControlPlaneVolumeSize", "--control-plane-volume-size"),
    ("ControlPlaneVolumeType", "--control-plane-volume-type"),
    ("NodeVolumeSize", "--node-volume-size"),
    ("NodeVolumeType", "--node-volume-type"),
    ("ControlPlaneSecurityGroups", "--control-plane-security-groups"),
    ("NodeSecurityGroups", "--node-security-groups"),
    ("EncryptEtcdStorage", "--encrypt-etcd-storage"),
    ("Networking", "--networking"),
    ("NetworkID", "--network-id"),
    ("NetworkCIDRs", "--network-cidr"),
    ("SubnetIDs", "--subnets"),
    ("UtilitySubnetIDs", "--utility-subnets"),
    ("IPv6", "--ipv6"),
    ("Topology", "--topology"),
    ("DNSType", "--dns"),
    ("CloudLabels", "--cloud-labels"),
    ("Sets", "--set"),
];
/// Options without a flag, or with one behind a feature flag.
const NO_FLAGS: [&str; 4] = ["ClusterName", "APIServerCount", "Egress", "Project"];

/// Returns the command line of a test file; `None` for a case that needs an option without a flag.
fn command_line(options: &Value) -> Option<Vec<String>> {
    let mut all = vec!["create".to_owned(), "cluster".to_owned()];
    for (key, value) in options.as_object().into_iter().flatten() {
        let is = |name: &str| name.eq_ignore_ascii_case(key);
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        if is("ClusterName") {
            all.push(text(value));
            continue;
        }
        if NO_FLAGS.iter().any(|name| is(name)) {
            return None;
        }
        let found = OPTIONS.iter().find(|(name, _)| is(name));
        let (_, flag) = found.unwrap_or_else(|| panic!("no flag for option {key}"));
        match value {
            Value::Bool(true) => all.push((*flag).to_owned()),
            Value::Bool(false) if *flag == "--encrypt-etcd-storage" => {
                all.push(format!("{flag}=false"));
            }
            Value::Bool(false) => {}
            Value::Array(items) if *flag == "--set" => {
                all.extend(items.iter().map(|item| format!("{flag}={}", text(item))));
            }
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(text).collect();
                all.push(format!("{flag}={}", items.join(",")));
            }
            value => all.push(format!("{flag}={}", text(value))),
        }
    }
    Some(all)
}

#[test]
fn creates_clusters_as_upstreams_command_does() {
    let Some(source) = std::env::var_os("KOPS_SOURCE").map(std::path::PathBuf::from) else {
        eprintln!("skipped: KOPS_SOURCE names no tree of kOps v1.36.2");
        return;
    };
    let place = TestStore::new();
    let known = place.file("defaultMachineTypes: {ControlPlane: m3.medium, Node: t2.medium, Bastion: t2.micro}\nmachineTypes: {m6g.xlarge: {architecture: arm64}}\nnetworks:\n  vpc-12345678: {cidr: 10.0.0.0/12, internetGateway: igw-1, egressOnlyGateway: eigw-1, subnets: [{id: subnet-1, zone: us-test-1a, cidr: 10.10.0.0/24}, {id: subnet-2, zone: us-test-1a, cidr: 10.11.0.0/24}]}\ndnsZones: [{id: Z1AFAKE1ZON3YO, name: example.com}, {id: Z2AFAKE1ZON3NO, name: internal.example.com, private: true}, {id: Z3AFAKE1ZOMORE, name: private.example.com, private: true}]\n");
    let channel = source.join("channels/stable").display().to_string();
    let (mut count, mut failures) = (0, Vec::new());
    for case in fs::read_dir(source.join("tests/integration/create_cluster")).unwrap() {
        let case = case.unwrap().path();
        let options = fs::read_to_string(case.join("options.yaml")).unwrap();
        let options = kops_store::parse_yaml("options", options.as_bytes()).unwrap();
        if options["CloudProvider"] != "aws" {
            continue;
        }
        let Some(line) = command_line(&options) else { continue };
        count += 1;
        let mut all: Vec<&str> = line.iter().map(String::as_str).collect();
        all.extend([
            "--known",
            &known,
            "--channel",
            &channel,
            "--target=terraform",
            "--dry-run",
            "-oyaml",
        ]);
        let want = fs::read_to_string(case.join("expected-v1alpha2.yaml")).unwrap();
        match place.kops(&all) {
            Ok(got) if documents(&got) == documents(&want) => {}
            Ok(got) => failures.push(format!("{}:\n{got}", case.display())),
            Err(error) => failures.push(format!("{}: {error}", case.display())),
        }
    }
    assert!(count > 20 && failures.is_empty(), "{count}\n{}", failures.join("\n"));
}

/// Returns the documents without the fields that depend on the test's store and time, sorted.
fn documents(text: &str) -> Vec<String> {
    let parse = |part: &str| {
        let mut tree =
            kops_store::parse_yaml("document", part.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
        for (part, fields) in
            [("metadata", &["creationTimestamp"][..]), ("spec", &["configBase", "channel"])]
        {
            if let Some(map) = tree[part].as_object_mut() {
                map.retain(|key, _| !fields.contains(&key.as_str()));
            }
        }
        yaml::to_string(&tree)
    };
    let mut all: Vec<_> =
        text.split("\n---\n").filter(|part| !part.trim().is_empty()).map(parse).collect();
    all.sort();
    all
}
