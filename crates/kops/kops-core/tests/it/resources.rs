//! Tests of the AWS model and its Terraform configuration, with a small cluster of our own.

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use kops_core::{
    DnsZone, Error, Image, Machines, NodeInputs, NodeKeyset, World,
    channel::Channel,
    complete, complete_group,
    direct::Selection,
    model::aws::{AwsInputs, Body, Kind as Made, Model, Ref, aws},
    render::terraform::{self, Files, Settings},
};
use serde_json::json;

const CLUSTER: &str = "
apiVersion: kops.k8s.io/v1alpha2
kind: Cluster
metadata: {name: small.example.com}
spec:
  api: {loadBalancer: {type: Public, class: Network}}
  channel: stable
  cloudProvider: aws
  configBase: s3://store/small.example.com
  etcdClusters:
  - {name: main, etcdMembers: [{name: a, instanceGroup: masters}]}
  iam: {}
  kubernetesApiAccess: [198.51.100.0/24]
  kubernetesVersion: 1.34.0
  networkCIDR: 10.0.0.0/16
  networking: {cni: {}}
  nonMasqueradeCIDR: 100.64.0.0/10
  sshAccess: [198.51.100.0/24]
  subnets:
  - {name: inside, type: Private, zone: eu-west-1a, cidr: 10.0.32.0/19}
  - {name: outside, type: Utility, zone: eu-west-1a, cidr: 10.0.0.0/22}
  topology: {dns: {type: Public}}
";

fn group(name: &str, role: &str) -> Object {
    let mut group = Object::new(Kind::InstanceGroup, name);
    group.spec = json!({
        "role": role, "image": "ami-1", "machineType": "m5.large", "subnets": ["inside"],
        "minSize": 1, "maxSize": 1,
    });
    group
}

fn world() -> World {
    let zone = DnsZone {
        id: "Z1".to_owned(),
        name: "example.com".to_owned(),
        private: Some(false),
        ..DnsZone::default()
    };
    let image = Image { id: "ami-1".to_owned(), root_device: "/dev/xvda".to_owned() };
    World {
        account: "123456789012".to_owned(),
        zones: vec![zone],
        images: [(image.id.clone(), image)].into(),
        ..World::default()
    }
}

/// Completes a cluster and its groups.
pub(crate) fn complete_all(text: &str, groups: &[Object], world: &World) -> (Object, Vec<Object>) {
    let cluster = Object::read("test", text.as_bytes()).unwrap_or_else(|e| panic!("{e}"));
    let cluster = complete(&cluster, groups, world, &Machines::default());
    let cluster = cluster.unwrap_or_else(|e| panic!("{e}"));
    let complete = |group: &Object| {
        complete_group(&cluster, group, &Channel::default(), world)
            .unwrap_or_else(|e| panic!("{e}"))
    };
    let groups = groups.iter().map(complete).collect();
    (cluster, groups)
}

/// Returns the inputs of the machines' configurations, without hashes.
pub(crate) fn node_inputs() -> NodeInputs {
    let names = [
        "kubernetes-ca",
        "apiserver-aggregator-ca",
        "etcd-clients-ca",
        "etcd-manager-ca-main",
        "etcd-peers-ca-main",
        "service-account",
    ];
    let keysets = names.map(|name| (name.to_owned(), NodeKeyset::default())).into();
    NodeInputs { kops: "1.36.2".to_owned(), keysets, ..NodeInputs::default() }
}

pub(crate) struct Small {
    cluster: Object,
    groups: Vec<Object>,
    inputs: AwsInputs,
}

impl Small {
    /// Returns the completed cluster, with the hashes of all its machines' downloads.
    pub(crate) fn new() -> Self {
        Self::complete(CLUSTER, &[group("masters", "ControlPlane"), group("workers", "Node")])
    }

    /// Returns a cluster with this number of groups, whose machines announce their termination.
    pub(crate) fn with_groups(count: usize) -> Self {
        let handler = "spec:\n  nodeTerminationHandler: {enabled: true, enableSQSTerminationDraining: true}\n";
        let workers = (1..count).map(|number| group(&format!("workers-{number}"), "Node"));
        let groups: Vec<_> =
            [group("masters", "ControlPlane")].into_iter().chain(workers).collect();
        Self::complete(&CLUSTER.replace("spec:\n", handler), &groups)
    }

    fn complete(cluster: &str, groups: &[Object]) -> Self {
        let (cluster, groups) = complete_all(cluster, groups, &world());
        let channel = "kind: Addons\nspec:\n  addons:\n  - {name: coredns.addons.k8s.io, id: k8s-1.12, manifest: coredns/a.yaml}\n";
        let inputs = AwsInputs {
            node: node_inputs(),
            world: world(),
            addons: [
                ("bootstrap-channel.yaml".to_owned(), channel.to_owned()),
                ("coredns/a.yaml".to_owned(), "kind: List\n".to_owned()),
            ]
            .into(),
            ..AwsInputs::default()
        };
        Self { cluster, groups, inputs }
    }

    pub(crate) fn model(&mut self) -> Result<Model, Error> {
        loop {
            match aws(&self.cluster, &self.groups, &self.inputs) {
                Err(Error::Unknown { what: "file", name, .. }) => {
                    self.inputs.node.hashes.insert(name, "0".repeat(64));
                }
                done => return done,
            }
        }
    }

    fn files(&mut self) -> Result<Files, Error> {
        let settings = Settings {
            cluster: self.cluster.name().to_owned(),
            files_region: "eu-west-1".to_owned(),
            ..Settings::default()
        };
        terraform::aws(&self.model()?, &settings, &Selection::default())
    }

    /// Returns the error of rendering the cluster.
    fn refused(&mut self) -> String {
        match self.files() {
            Ok(_) => panic!("it was not refused"),
            Err(error) => error.to_string(),
        }
    }
}

fn text(files: &Files, name: &str) -> String {
    let content = files.get(name).unwrap_or_else(|| panic!("{name} of {:?}", files.keys()));
    String::from_utf8_lossy(content).into_owned()
}

#[test]
fn resources_reference_each_other() {
    let model = Small::new().model().unwrap_or_else(|e| panic!("{e}"));
    for resource in model.resources.values() {
        for to in resource.body.refs() {
            assert!(model.find(to).is_some(), "{} refers to {to:?}", resource.name);
        }
    }
    let group = Ref::new(Made::ScalingGroup, "masters.masters.small.example.com");
    let Some(Body::ScalingGroup(group)) = model.find(&group).map(|found| &found.body) else {
        panic!("no group of control planes");
    };
    let targets: Vec<_> = group.target_groups.iter().map(|to| to.kind).collect();
    assert_eq!(targets, [Made::TargetGroup]);
    let nat = model.of_kind(Made::NatGateway).next().map(|found| found.body.refs());
    let stands = Ref::new(Made::Subnet, "outside.small.example.com");
    assert!(nat.is_some_and(|refs| refs.contains(&&stands)));
    // The zone exists already: it is in the model, but nothing creates it.
    let zone = model.of_kind(Made::Zone).next().and_then(|zone| zone.shared.clone());
    assert_eq!(zone.as_deref(), Some("/hostedzone/Z1"));
}

#[test]
fn terraform_contains_the_whole_cluster() {
    let files = Small::new().files().unwrap_or_else(|e| panic!("{e}"));
    let main = text(&files, "kubernetes.tf");
    for part in [
        "resource \"aws_nat_gateway\" \"eu-west-1a-small-example-com\" {",
        "  zone_id = \"/hostedzone/Z1\"\n",
        "  cidr_block                       = \"10.0.0.0/16\"",
        "content                = file(\"${path.module}/data/aws_s3_object_small.example.com-addons-coredns.addons.k8s.io-k8s-1.12_content\")",
        "provider \"aws\" {\n  alias  = \"files\"\n  region = \"eu-west-1\"\n}",
    ] {
        assert!(
            main.contains(part),
            "{part}:
{main}"
        );
    }
    // Every referenced file exists, and every file is referenced.
    for name in files.keys().filter(|name| name.starts_with("data/")) {
        assert!(main.contains(&format!("\"${{path.module}}/{name}\"")), "{name}");
    }
    assert_eq!(main.matches("${path.module}/").count(), files.len() - 1);
    let script = text(&files, "data/aws_launch_template_workers.small.example.com_user_data");
    assert!(
        script.contains("export AWS_REGION=eu-west-1\n")
            && script.contains("InstanceGroupName: workers\n")
    );
    let policy = text(&files, "data/aws_iam_role_policy_nodes.small.example.com_policy");
    assert!(!policy.contains("s3:"), "workers have no key to the store:\n{policy}");
}

#[test]
fn users_input_stays_data() {
    let mut small = Small::new();
    let hostile =
        "x\" }\nresource \"null_resource\" \"a\" { ${file(\"/etc/shadow\")} %{ for a in b }";
    small.cluster.spec.put("cloudLabels", json!({hostile: hostile}));
    let files = small.files().unwrap_or_else(|e| panic!("{e}"));
    let main = text(&files, "kubernetes.tf");
    assert!(main.contains("$${file(") && main.contains("%%{ for"));
    for line in main.lines().filter(|line| line.contains("null_resource")) {
        assert!(
            line.trim_start().starts_with('"')
                || line.trim_start().starts_with("key ")
                || line.trim_start().starts_with("value "),
            "{line}"
        );
        assert!(!line.replace("$${", "").contains("${"), "{line}");
    }
}

#[test]
fn names_do_not_lead_out_of_the_directory() {
    for name in
        ["../../../../root/.ssh/authorized_keys", "a/b", "a b", "a\"b", "${a}", "a\nb", ".."]
    {
        let mut small = Small::new();
        small.groups[1].metadata.put("name", name);
        let refused = small.refused();
        let reasons =
            ["is not a plain name", "is not the name of an object", "is not an identifier"];
        assert!(reasons.iter().any(|reason| refused.contains(reason)), "{name:?}: {refused}");
    }
    let mut small = Small::new();
    let channel = "spec:\n  addons:\n  - {name: a, manifest: ../../config}\n";
    small.inputs.addons.insert("bootstrap-channel.yaml".to_owned(), channel.to_owned());
    small.inputs.addons.insert("../../config".to_owned(), String::new());
    assert!(small.refused().contains("is not the name of an object"));
}

#[test]
fn rejects_unknown_resources_by_name() {
    type Change = fn(&mut Small);
    let cases: [(Change, &str); 10] = [
        (|s| s.inputs.world.account.clear(), "account is required"),
        (|s| s.inputs.world.images.clear(), "image \"ami-1\" does not exist"),
        (|s| s.inputs.addons.clear(), "\"addons/bootstrap-channel.yaml\" does not exist"),
        (
            |s| s.cluster.spec.put("configStore.base", "file:///state"),
            "is not a bucket of the form s3://BUCKET/PATH",
        ),
        (
            |s| {
                s.groups[1]
                    .spec
                    .put("mixedInstancesPolicy.instanceRequirements", json!({"cpu": {}}))
            },
            "spec.mixedInstancesPolicy.instanceRequirements of instance group \"workers\" is not supported",
        ),
        (
            |s| {
                let content = "#".repeat(20_000);
                let part = json!([{"name": "a", "type": "text/x-shellscript", "content": content}]);
                s.groups[1].spec.put("additionalUserData", part);
            },
            "limit of 16384 on aws: set compressUserData",
        ),
        (|s| s.cluster.spec.put("cloudProvider", json!({"gce": {}})), "a model of cloud gce"),
        (
            |s| s.cluster.spec.put("additionalPolicies.node", "{}"),
            "spec.additionalPolicies.node: \"{}\" is not a list of statements",
        ),
        (
            |s| s.cluster.spec.put("networking.networkID", "vpc-1"),
            "the internet gateway of VPC \"vpc-1\" does not exist",
        ),
        (
            |s| {
                let subnets = json!([{"name": "inside", "type": "Private", "zone": "eu-west-1a",
                    "cidr": "10.0.32.0/19", "egress": "i-1"}]);
                s.cluster.spec.put("networking.subnets", subnets);
                s.cluster.spec.put("api.loadBalancer.type", "Internal");
            },
            "a route to 0.0.0.0/0 by machine i-1 with Terraform is not supported",
        ),
    ];
    for (change, reason) in cases {
        let mut small = Small::new();
        change(&mut small);
        let refused = small.refused();
        assert!(refused.contains(reason), "{reason}: {refused}");
    }
}
