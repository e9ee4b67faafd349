//! Tests of the model of clusters on GCE and its Terraform configurations.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use kops_core::{
    Error, World,
    model::gce::{GceInputs, Kind as Made, Model, gce},
    render::terraform::{self, Files, Settings},
};
use serde_json::json;

use crate::{
    golden::{read, source},
    mock::{cases, world},
    node::Golden,
    resources::{complete_all, node_inputs},
    terraform::{Case, Prepared, compare_data, compare_main, prepared},
};

/// Configurations that differ from upstream's, with the reason.
const MISSED: &[(&str, &str)] = &[];
/// Data files that differ, with the reason.
const DATA_MISSED: &[(&str, &str)] = &[];

fn written(golden: &Golden, name: &str, case: &Path) -> Result<Files, String> {
    let Prepared { cluster, groups, node, ssh_keys, addons, settings, .. } =
        prepared(golden, name, case, world(true))?;
    let inputs = GceInputs { node, ssh_keys, addons };
    let model = gce(&cluster, &groups, &inputs).map_err(|e| e.to_string())?;
    terraform::gce(&model, &settings).map_err(|e| e.to_string())
}

/// Returns our output for each of upstream's GCE cases, computed once.
fn all(source: &Path) -> &'static [Case] {
    static ALL: OnceLock<Vec<Case>> = OnceLock::new();
    ALL.get_or_init(|| {
        let golden = Golden::read(source);
        let is_on_gce =
            |case: &Path| read(&case.join("kubernetes.tf")).contains("provider \"google\"");
        let write = |(name, case): (String, PathBuf)| {
            let files = written(&golden.with_fetched(&case), &name, &case);
            (name, case, files)
        };
        cases(source).into_iter().filter(|(_, case)| is_on_gce(case)).map(write).collect()
    })
}

#[test]
fn terraform_matches_upstream() {
    let Some(source) = source() else { return };
    compare_main("kubernetes.tf of GCE", all(&source), MISSED);
}

#[test]
fn terraform_data_files_match_upstream() {
    let Some(source) = source() else { return };
    compare_data("data of GCE", all(&source), DATA_MISSED);
}

const CLUSTER: &str = "
apiVersion: kops.k8s.io/v1alpha2
kind: Cluster
metadata: {name: small.example.com}
spec:
  api: {loadBalancer: {type: Public}}
  channel: stable
  cloudProvider: gce
  configBase: gs://store/small.example.com
  etcdClusters:
  - {name: main, etcdMembers: [{name: a, instanceGroup: masters}]}
  iam: {}
  kubernetesApiAccess: [198.51.100.0/24]
  kubernetesVersion: 1.34.0
  networking: {cni: {}}
  nonMasqueradeCIDR: 100.64.0.0/10
  project: demo
  sshAccess: [198.51.100.0/24]
  subnets:
  - {name: us-test1, region: us-test1, type: Private}
  topology: {dns: {type: None}}
";

fn group(name: &str, role: &str) -> Object {
    let mut group = Object::new(Kind::InstanceGroup, name);
    group.spec = json!({
        "role": role, "image": "demo/image-1", "machineType": "e2-medium", "subnets": ["us-test1"],
        "zones": ["us-test1-a"], "minSize": 1, "maxSize": 1,
    });
    group
}

struct Small {
    cluster: Object,
    groups: Vec<Object>,
    inputs: GceInputs,
}

impl Small {
    /// Returns the completed cluster.
    fn new() -> Self {
        Self::with_groups(2)
    }

    /// Returns a cluster with this number of groups.
    fn with_groups(count: usize) -> Self {
        let workers = (1..count).map(|number| group(&format!("workers-{number}"), "Node"));
        let groups: Vec<_> =
            [group("masters", "ControlPlane")].into_iter().chain(workers).collect();
        Self::complete(CLUSTER, &groups)
    }

    fn complete(text: &str, groups: &[Object]) -> Self {
        let (cluster, groups) = complete_all(text, groups, &World::default());
        let channel = "spec: {addons: []}\n".to_owned();
        let addons = [("bootstrap-channel.yaml".to_owned(), channel)].into();
        let inputs = GceInputs { node: node_inputs(), addons, ..GceInputs::default() };
        Self { cluster, groups, inputs }
    }

    fn model(&mut self) -> Result<Model, Error> {
        loop {
            match gce(&self.cluster, &self.groups, &self.inputs) {
                Err(Error::Unknown { what: "file", name, .. }) => {
                    self.inputs.node.hashes.insert(name, "0".repeat(64));
                }
                done => return done,
            }
        }
    }

    /// Returns the main file of the configuration.
    fn main(&mut self) -> Result<String, Error> {
        let settings = Settings { cluster: self.cluster.name().to_owned(), ..Settings::default() };
        let files = terraform::gce(&self.model()?, &settings)?;
        Ok(String::from_utf8_lossy(&files["kubernetes.tf"]).into_owned())
    }
}

#[test]
fn machines_read_a_store_in_cloud_storage() {
    let main = Small::new().main().unwrap_or_else(|e| panic!("{e}"));
    for part in [
        "provider \"google\" {\n  alias   = \"files\"\n  project = \"demo\"\n  region  = \"us-test1\"\n}",
        "\"configuration_aliases\" = [google.files]",
        "resource \"google_storage_bucket_object\" \"kops-version-txt\" {\n  bucket   = \"store\"",
        "  name     = \"small.example.com/kops-version.txt\"\n  provider = google.files\n}",
        // Control planes write etcd's backups into the bucket. Workers read kops-controller's answers.
        "\"objectadmin-store-serviceaccount-controlplane\" {\n  bucket = \"store\"\n  member = format(\"serviceAccount:%s\", google_service_account.control-plane.email)\n  role   = \"roles/storage.objectAdmin\"\n}",
    ] {
        assert!(main.contains(part), "{part}:\n{main}");
    }
    assert_eq!(main.matches("google_storage_bucket_iam_member").count(), 1);
    assert!(!main.contains("aws"), "{main}");
}

#[test]
fn pods_have_addresses_of_the_network() {
    let text = CLUSTER.replace("networking: {cni: {}}", "networking: {gce: {}}");
    let text = text.replace("  nonMasqueradeCIDR: 100.64.0.0/10\n", "");
    let groups = [group("masters", "ControlPlane"), group("bastions", "Bastion")];
    let main = Small::complete(&text, &groups).main().unwrap_or_else(|e| panic!("{e}"));
    for part in [
        "    alias_ip_range {\n      ip_cidr_range         = \"/24\"\n      subnetwork_range_name = \"pods-small-example-com\"\n    }",
        "  secondary_ip_range {\n    ip_cidr_range = \"10.4.0.0/14\"\n    range_name    = \"pods-small-example-com\"\n  }",
        "can_ip_forward = false",
        "\"pod-cidrs-to-https-api-small-example-com\"",
        // Sources by tag have no range, so that the rule for IPv6 is not disabled.
        "name        = \"bastion-to-node-ssh-ipv6-small-example-com\"",
        "email  = google_service_account.bastion.email",
    ] {
        assert!(main.contains(part), "{part}:\n{main}");
    }
    let bastions = main.split("\"google_compute_instance_template\" \"bastions-").nth(1);
    let bastions = bastions.and_then(|rest| rest.split("\nresource").next()).unwrap_or_default();
    assert!(bastions.contains("access_config {") && !bastions.contains("user-data"), "{bastions}");
    assert!(!main.contains("ssh-external-to-node"), "{main}");
}

#[test]
fn keeps_machines_with_gpus_and_spot_machines_on_their_host() {
    let mut small = Small::new();
    for (field, value, preemptible, model) in [
        ("machineType", json!("g2-standard-4"), "false", "STANDARD"),
        (
            "guestAccelerators",
            json!([{"acceleratorType": "nvidia-t4", "acceleratorCount": 2}]),
            "false",
            "STANDARD",
        ),
        ("gcpProvisioningModel", json!("SPOT"), "true", "SPOT"),
    ] {
        let before = small.groups[1].clone();
        small.groups[1].spec.put(field, value);
        let main = small.main().unwrap_or_else(|e| panic!("{e}"));
        let scheduling = format!(
            "    on_host_maintenance = \"TERMINATE\"\n    preemptible         = {preemptible}\n    provisioning_model  = \"{model}\"\n"
        );
        assert!(main.contains(&scheduling), "{field}:\n{main}");
        let gpus = "  guest_accelerator {\n    count = 2\n    type  = \"nvidia-t4\"\n  }\n";
        assert_eq!(main.contains(gpus), field == "guestAccelerators", "{main}");
        small.groups[1] = before;
    }
}

#[test]
fn builds_a_thousand_groups() {
    let mut small = Small::with_groups(1000);
    let model = small.model().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(model.of_kind(Made::InstanceGroupManager).count(), 1000);
    assert_eq!(model.of_kind(Made::InstanceTemplate).count(), 1000);
    // Service accounts and firewall rules are those of roles.
    assert_eq!(model.of_kind(Made::ServiceAccount).count(), 2);
    assert_eq!(model.of_kind(Made::FirewallRule).count(), 15);
}

#[test]
fn escapes_templates_and_quotes() {
    let mut small = Small::new();
    let hostile = "${file(\"/etc/shadow\")} %{ if true } \"} resource \"x\" \"y\" {\n\\";
    small.cluster.spec.put("cloudLabels", json!({ hostile: hostile }));
    let spec = &mut small.groups[1].spec;
    spec.put("nodeLabels", json!({ "a": hostile }));
    spec.put("taints", json!([format!("{hostile}=b:NoSchedule")]));
    spec.put("machineType", "${a}");
    spec.put("image", "demo/${a}");
    spec.put("rootVolume.type", "${a}");
    small.inputs.ssh_keys = vec![format!("ssh-ed25519 ${{a}} {}", "x".repeat(100_000))];
    let settings = Settings {
        cluster: hostile.to_owned(),
        provider: [("zone".to_owned(), hostile.to_owned())].into(),
        ..Settings::default()
    };
    let model = small.model().unwrap_or_else(|e| panic!("{e}"));
    let files = terraform::gce(&model, &settings).unwrap_or_else(|e| panic!("{e}"));
    let main = String::from_utf8_lossy(&files["kubernetes.tf"]).into_owned();
    // The configuration's own templates name files.
    let escaped = ["$${", "%%{", "\\\"", "${path.module}/data/"];
    let rest = escaped.iter().fold(main.clone(), |text, part| text.replace(part, ""));
    for start in ["${", "%{", "\"} resource", "\"x\""] {
        assert!(!rest.contains(start), "{start}: {main}");
    }
    assert!(main.contains("\"admin: ssh-ed25519 $${a} xxx"), "{main}");
    let refused = Settings {
        provider: [("zone = 1\nx".to_owned(), String::new())].into(),
        ..Settings::default()
    };
    let error = terraform::gce(&model, &refused).err().map(|e| e.to_string());
    assert!(error.unwrap_or_default().contains("is not an identifier in Terraform"));
}

#[test]
fn rejects_a_new_subnet_with_the_name_of_an_existing_one() {
    let new = json!({"name": "us-test1", "region": "us-test1", "cidr": "10.0.0.0/8"});
    let id = "us-test1-small-example-com";
    let existing = json!({"name": "b", "region": "us-test1", "id": id});
    for subnets in [json!([new, existing]), json!([existing, new])] {
        let mut small = Small::new();
        small.cluster.spec.put("networking.subnets", subnets);
        let refused = small.model().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains("is the name of two resources (Subnetwork)"), "{refused}");
    }
}

#[test]
fn rejects_what_gce_or_the_model_cannot_have() {
    type Change = fn(&mut Small);
    let cases: [(Change, &str); 23] = [
        (
            |s| s.groups[1].spec.put("zones", json!(["us"])),
            "\"us\" is not a zone of the subnets' region us-test1",
        ),
        (|s| s.groups[1].spec.put("zones", json!(["us-test1-"])), "is not a zone of"),
        (|s| s.groups[1].spec.put("zones", json!(["us-test1-a\""])), "is not a name on GCE"),
        (|s| s.groups[1].spec.put("zones", json!(["us-test2-a"])), "is not a zone of"),
        (|s| s.groups[1].spec.put("zones", json!([])), "spec.zones of instance group workers-1"),
        (
            |s| s.groups[0].spec.put("zones", json!(["us-test1-a", "us-test1-b"])),
            "is behind the API's load balancer, so it must be in one zone",
        ),
        (
            |s| {
                s.cluster.spec.remove("api.loadBalancer");
                s.groups[0].spec.put("zones", json!(["us-test1-a", "us-test1-b"]));
            },
            "has an etcd disk, so it must be in one zone",
        ),
        (
            |s| {
                s.cluster
                    .spec
                    .put("networking.subnets", json!([{"name": "a", "cidr": "10.0.0.0/8"}]))
            },
            "spec.subnets[a].region is required",
        ),
        (
            |s| {
                s.cluster.spec.put(
                    "networking.subnets",
                    json!([{"name": "a", "region": "r-1"}, {"name": "b", "region": "r-2"}]),
                );
            },
            "is another region than r-1",
        ),
        (|s| s.cluster.spec.put("networking.networkID", "a/b/c"), "NETWORK nor PROJECT/NETWORK"),
        (|s| s.cluster.spec.put("networking.networkID", "/b"), "NETWORK nor PROJECT/NETWORK"),
        (|s| drop(s.cluster.spec.remove("cloudProvider.gce.project")), "spec.project is required"),
        (
            |s| s.cluster.spec.put("configStore.base", "file:///tmp/store"),
            "is not a bucket of the form gs://BUCKET/PATH or s3://BUCKET/PATH",
        ),
        (|s| s.cluster.spec.put("api.loadBalancer.type", "Odd"), "is neither Public nor Internal"),
        (|s| s.cluster.spec.put("networking.nonMasqueradeCIDR", "::/0"), "an IPv6 cluster on gce"),
        (
            |s| s.cluster.spec.put("api.loadBalancer.sslCertificate", "arn:x"),
            "spec.api.loadBalancer.sslCertificate of cluster",
        ),
        (|s| s.groups[1].spec.put("maxPrice", "1"), "spec.maxPrice of instance group"),
        (|s| s.groups[1].spec.put("image", "a/b/c"), "is neither PROJECT/NAME nor NAME"),
        (|s| s.groups[1] = group(&"a".repeat(59), "Node"), "at most 58 lower-case letters"),
        (|s| s.groups[1] = group("nodes.a", "Node"), "\"nodes.a\" is not a name on GCE"),
        (|s| s.groups[1].spec.put("subnets", json!(["us-test1", "us-test1"])), "several subnets"),
        (
            |s| {
                let part = json!([{"name": "a.sh", "type": "text/x-shellscript", "content": "x".repeat(1 << 18)}]);
                s.groups[1].spec.put("additionalUserData", part);
            },
            "more than the limit of 262144 on gce",
        ),
        (
            |s| {
                let name = format!("{}.example.com", "1".repeat(70));
                s.cluster.metadata.put("name", name);
            },
            "is not a name on GCE",
        ),
    ];
    for (change, reason) in cases {
        let mut small = Small::new();
        change(&mut small);
        let refused = small.model().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
}
