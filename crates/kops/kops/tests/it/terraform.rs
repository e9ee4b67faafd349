//! Tests of `update cluster --target=terraform`: required inputs, written files, and secrets.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::stored::TestStore;

const CLUSTER: &str = "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata: {name: demo.example.com}\nspec:\n  channel: stable\n  cloudProvider: aws\n  configBase: s3://store/demo.example.com\n  kubernetesVersion: 1.36.1\n  networkCIDR: 10.0.0.0/16\n  networking: {cni: {}}\n  nonMasqueradeCIDR: 100.64.0.0/10\n  authorization: {rbac: {}}\n  iam: {}\n  kubernetesApiAccess: [198.51.100.0/24]\n  etcdClusters:\n  - {name: main, etcdMembers: [{name: a, instanceGroup: cp}]}\n  subnets: [{name: a, zone: eu-west-1a, type: Public, cidr: 10.0.0.0/20}]\n  topology: {dns: {type: Public}}\n---\napiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  name: cp\n  labels: {kops.k8s.io/cluster: demo.example.com}\nspec: {role: Master, image: ami-1, machineType: m5.large, minSize: 1, maxSize: 1, subnets: [a]}\n---\napiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  name: workers\n  labels: {kops.k8s.io/cluster: demo.example.com}\nspec: {role: Node, image: ami-1, machineType: m5.large, minSize: 2, maxSize: 4, subnets: [a]}\n";
const KNOWN: &str = "account: \"123456789012\"\nimages: {ami-1: {id: ami-1, rootDevice: /dev/xvda}}\nbucketRegions: {store: eu-west-1}\ndnsZones: [{id: Z1, name: example.com}]\n";
const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO4gY2xhaW0gb2YgYW55Ym9keSBoZXJlIGlzIG1lYW50 a@b\n";

struct Demo {
    place: TestStore,
}

impl Demo {
    fn new() -> Self {
        Self::of(CLUSTER)
    }

    fn of(cluster: &str) -> Self {
        let demo = Self { place: TestStore::new() };
        let file = demo.place.file(cluster);
        demo.place.kops(&["create", "-f", &file]).unwrap_or_else(|e| panic!("{e}"));
        demo.place.write(
            "addons/bootstrap-channel.yaml",
            "spec:\n  addons:\n  - {name: coredns, id: a, manifest: coredns/a.yaml}\n",
        );
        demo.place.write("addons/coredns/a.yaml", "kind: List\n");
        demo.place.write("id.pub", KEY);
        demo
    }

    fn update(&self, known: &str) -> Result<String, String> {
        self.place.write("known.yaml", known);
        let (known, addons) = (self.place.path("known.yaml"), self.place.path("addons"));
        let (out, key) = (self.place.path("out"), self.place.path("id.pub"));
        self.place.kops(&[
            "update",
            "cluster",
            "demo.example.com",
            "--target=terraform",
            "--out",
            &out,
            "--known",
            &known,
            "--addons",
            &addons,
            "--ssh-public-key",
            &key,
        ])
    }

    /// Returns the table with the hashes that the command reports as missing.
    fn known(&self) -> String {
        self.with_hashes(KNOWN)
    }

    fn with_hashes(&self, known: &str) -> String {
        let refused = self.update(known).expect_err("no hash is known");
        let urls: Vec<&str> = refused.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        assert!(urls.iter().any(|url| url.ends_with("linux/amd64/nodeup")), "{refused}");
        let files =
            urls.iter().map(|url| format!("- {{canonical: '{url}', sha: {}}}\n", "a1".repeat(32)));
        format!("{known}files:\n{}", files.collect::<String>())
    }

    /// Returns all written files, by name.
    fn written(&self) -> Vec<(String, String)> {
        let (mut open, mut all) = (vec![PathBuf::from(self.place.path("out"))], Vec::new());
        while let Some(next) = open.pop() {
            for entry in fs::read_dir(next).unwrap_or_else(|e| panic!("{e}")) {
                let path = entry.unwrap_or_else(|e| panic!("{e}")).path();
                if path.is_dir() {
                    open.push(path);
                } else {
                    all.push((
                        path.display().to_string(),
                        fs::read_to_string(path).unwrap_or_else(|e| panic!("{e}")),
                    ));
                }
            }
        }
        all.sort();
        all
    }
}

#[test]
fn writes_configuration_and_keeps_keys_in_the_store() {
    let demo = Demo::new();
    let known = demo.known();
    let keyset = "demo.example.com/pki/private/kubernetes-ca/keyset.yaml";
    assert!(!demo.place.has(keyset), "what was refused has left keys");
    let output = demo.update(&known).unwrap();
    let out = demo.place.path("out");
    let expected = format!(
        "\nTerraform output has been placed into {out}\nRun these commands to apply the configuration:\n   cd {out}\n   terraform plan\n   terraform apply\n\n"
    );
    assert_eq!(output, expected);
    let written = demo.written();
    let main = written.iter().find(|(name, _)| name.ends_with("/kubernetes.tf"));
    let main = main.map(|(_, text)| text.as_str()).unwrap_or_default();
    for part in [
        "resource \"aws_autoscaling_group\" \"workers-demo-example-com\" {",
        "resource \"aws_key_pair\" \"kubernetes-demo-example-com-",
        "\"${path.module}/data/aws_s3_object_demo.example.com-addons-coredns-a_content\"",
    ] {
        assert!(main.contains(part), "{part}:\n{main}");
    }
    // Private keys in PEM, also within base64.
    for (name, text) in &written {
        assert!(!text.contains("PRIVATE KEY") && !text.contains("UFJJVkFURSBLRVk"), "{name}");
    }
    assert!(demo.place.read(keyset).contains("privateMaterial"));
    // A second run writes the same keys and the same files.
    let output = demo.update(&known).unwrap();
    assert!(
        output
            .ends_with("Changes may require instances to restart: kops rolling-update cluster\n\n"),
        "{output}"
    );
    assert_eq!(demo.written(), written);
}

#[test]
fn rejects_missing_facts_before_storing_anything() {
    let demo = Demo::new();
    let known = demo.known();
    for (from, to, reason) in [
        ("account: \"123456789012\"\n", "", "account is required"),
        ("account: \"123456789012\"", "account: \"1 or 2\"", "is not a number"),
        ("ami-1: {", "ami-2: {", "image \"ami-1\" does not exist"),
        ("{store: eu-west-1}", "{}", "bucket \"store\" is in no known region"),
        ("images:", "image:", "unknown field `image`"),
        ("example.com}", "example.org}", "one DNS zone for \"demo.example.com\""),
    ] {
        let refused = demo.update(&known.replace(from, to)).unwrap_err();
        assert!(refused.contains(reason), "{to:?}: {refused}");
    }
    demo.place.write("id.pub", "-----BEGIN OPENSSH PRIVATE KEY-----\n");
    let refused = demo.update(&known).unwrap_err();
    assert!(refused.contains("is not a line in OpenSSH's format"), "{refused}");
    fs::remove_dir_all(demo.place.path("addons")).unwrap();
    demo.place.write("id.pub", KEY);
    let refused = demo.update(&known).unwrap_err();
    assert!(refused.contains("reading add-ons in"), "{refused}");
    assert!(
        !demo.place.has("demo.example.com/pki") && !Path::new(&demo.place.path("out")).exists()
    );
    for (flags, reason) in [
        (["--out", "x"], "--out is for --target=terraform"),
        (["--phase", "assets"], "invalid value 'assets'"),
    ] {
        let arguments =
            [["update", "cluster"], ["demo.example.com", flags[0]], [flags[1], "--yes"]];
        let refused = demo.place.kops(&arguments.concat()).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    let refused = demo.place.kops(&["update", "cluster", "demo.example.com"]).unwrap_err();
    assert!(refused.contains("read its configuration at s3://store/demo.example.com"), "{refused}");
}

const ON_GCE: &str = "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata: {name: demo.example.com}\nspec:\n  channel: stable\n  cloudProvider: gce\n  configBase: gs://store/demo.example.com\n  kubernetesVersion: 1.36.1\n  networking: {cni: {}}\n  nonMasqueradeCIDR: 100.64.0.0/10\n  authorization: {rbac: {}}\n  iam: {}\n  kubernetesApiAccess: [198.51.100.0/24]\n  project: demo\n  etcdClusters:\n  - {name: main, etcdMembers: [{name: a, instanceGroup: cp}]}\n  subnets: [{name: us-test1, region: us-test1, type: Public, cidr: 10.0.0.0/20}]\n  topology: {dns: {type: None}}\n  api: {loadBalancer: {type: Public}}\n---\napiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  name: cp\n  labels: {kops.k8s.io/cluster: demo.example.com}\nspec: {role: Master, image: a/b, machineType: e2-medium, minSize: 1, maxSize: 1, subnets: [us-test1], zones: [us-test1-a]}\n---\napiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  name: workers\n  labels: {kops.k8s.io/cluster: demo.example.com}\nspec: {role: Node, image: a/b, machineType: e2-medium, minSize: 2, maxSize: 4, subnets: [us-test1], zones: [us-test1-a]}\n";

#[test]
fn writes_configuration_of_a_cluster_on_gce() {
    let demo = Demo::of(ON_GCE);
    let known = demo.with_hashes("machineTypes: {}\n");
    demo.update(&known).unwrap();
    let written = demo.written();
    let main = written.iter().find(|(name, _)| name.ends_with("/kubernetes.tf"));
    let main = main.map(|(_, text)| text.as_str()).unwrap_or_default();
    for part in [
        "resource \"google_compute_instance_group_manager\" \"a-workers-demo-example-com\" {",
        "\"ssh-keys\"                        = \"admin: ssh-ed25519 ",
        "resource \"google_storage_bucket_object\" \"kops-version-txt\" {",
        "\"${path.module}/data/google_compute_instance_template_cp-demo-example-com_metadata_user-data\"",
    ] {
        assert!(main.contains(part), "{part}:\n{main}");
    }
    for (name, text) in &written {
        assert!(!text.contains("PRIVATE KEY") && !text.contains("UFJJVkFURSBLRVk"), "{name}");
    }
    let keyset = "demo.example.com/pki/private/kubernetes-ca/keyset.yaml";
    assert!(demo.place.read(keyset).contains("privateMaterial"));
    // A second run writes the same keys and the same files, even if the SSH key has another comment.
    demo.place.write("id.pub", &KEY.replace("a@b", "c@d"));
    demo.update(&known).unwrap();
    assert_eq!(demo.written(), written);
}

#[test]
fn rejects_what_needs_the_api_of_gce() {
    let demo = Demo::of(ON_GCE);
    let refused = demo.update(KNOWN).expect_err("facts of AWS");
    assert!(refused.contains("account in the file of --known"), "{refused}");
    let name = "demo.example.com";
    let only = "only Terraform creates";
    for (arguments, reason) in [
        (&["update", "cluster", name][..], only),
        (&["update", "cluster", name, "--yes"], only),
        (
            &["update", "cluster", name, "--target=terraform", "--phase", "network"],
            "--phase is not supported on gce",
        ),
        (&["rolling-update", "cluster", name, "--yes"], "cloud gce is not supported"),
        (&["validate", "cluster", name], "cloud gce is not supported"),
        (&["get", "instances", name], "cloud gce is not supported"),
        (&["delete", "instance", "a", "--name", name, "--yes"], "cloud gce is not supported"),
        (&["reconcile", "cluster", name, "--yes"], "cloud gce is not supported"),
        (&["delete", "cluster", name, "--yes"], "may have machines in its cloud"),
    ] {
        let refused = demo.place.kops(arguments).expect_err(reason);
        assert!(refused.contains(reason), "{arguments:?}: {refused}");
    }
    assert!(!demo.place.has("demo.example.com/pki"), "what was refused has left keys");
}

#[test]
fn creates_a_cluster_on_gce() {
    let place = TestStore::new();
    place.write("channel", "spec:\n  images:\n  - {name: a/b, providerID: gce, architectureID: amd64}\n  kopsVersions:\n  - {range: '>=1.36.0', kubernetesVersion: 1.36.1}\n");
    let channel = place.path("channel");
    let create = |more: &[&str]| {
        let mut all = vec!["create", "cluster", "new.example.com", "--zones", "us-test1-a"];
        all.extend(["--cloud", "gce", "--channel", &channel]);
        all.extend(more);
        place.kops(&all)
    };
    let refused = create(&["--project", "demo", "--yes"]).expect_err("direct calls");
    assert!(refused.contains("only Terraform creates"), "{refused}");
    place.write("known", "defaultMachineTypes: {Node: n4}\n");
    let known = place.path("known");
    let refused = create(&["--project", "demo", "--known", &known]).expect_err("a fact of AWS");
    assert!(refused.contains("defaultMachineTypes in the file of --known"), "{refused}");
    assert!(!place.has("new.example.com"), "what was refused has been stored");
    let shown = create(&["--project", "demo", "--gce-service-account", "a@b", "--node-size", "n4"]);
    let shown = shown.unwrap_or_else(|e| panic!("{e}"));
    let next = "kops update cluster --name new.example.com --target=terraform";
    assert!(shown.contains(next), "{shown}");
    let stored = place.read("new.example.com/config");
    assert!(stored.contains("project: demo"), "{stored}");
    assert!(stored.contains("gceServiceAccount: a@b"), "{stored}");
    let nodes = place.read("new.example.com/instancegroup/nodes-us-test1-a");
    assert!(nodes.contains("machineType: n4") && nodes.contains("image: a/b"), "{nodes}");
}
