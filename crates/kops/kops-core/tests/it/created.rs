//! Tests of `create cluster` against upstream's goldens.

use api_meta::Tree as _;
use kops_api::{VersionName, validate_group};
use kops_core::{
    MachineType, Machines, Version,
    channel::Channel,
    complete,
    create::{Options, create},
};
use serde_json::Value;

use crate::{
    golden::{difference, read, source},
    mock::{assert_missed, world},
};

/// Cases that differ from upstream's, with the reason.
const MISSED: &[(&str, &str)] = &[];

/// Parses the options of upstream's test files, ignoring case.
fn options(tree: &Value) -> Options {
    let mut options = Options { store: "memfs://tests".to_owned(), ..Options::default() };
    for (key, value) in tree.as_object().into_iter().flatten() {
        let text = || value.as_str().unwrap_or_else(|| panic!("{key}: {value}")).to_owned();
        let items = || value.as_array().into_iter().flatten().filter_map(Value::as_str);
        let texts = || items().map(str::to_owned).collect();
        let number = || value.as_u64().unwrap_or_default() as u32;
        match key.to_ascii_lowercase().as_str() {
            "clustername" => options.name = text(),
            "cloudprovider" => options.cloud = text(),
            "kubernetesversion" => options.kubernetes_version = text(),
            "kubernetesfeaturegates" => options.feature_gates = texts(),
            "sshaccess" => options.ssh_access = texts(),
            "discoverystore" => options.discovery_store = text(),
            "zones" => options.zones = texts(),
            "controlplanezones" => options.control_plane_zones = texts(),
            "controlplanecount" => options.control_plane_count = number(),
            "apiservercount" => options.api_server_count = number(),
            "nodecount" => options.node_count = number(),
            "bastion" => options.bastion = value.as_bool() == Some(true),
            "instancemanager" => options.instance_manager = text(),
            "image" => options.image = text(),
            "controlplaneimage" => options.control_plane_image = text(),
            "nodeimage" => options.node_image = text(),
            "controlplanesizes" => options.control_plane_sizes = texts(),
            "nodesizes" => options.node_sizes = texts(),
            "controlplanevolumesize" => options.control_plane_volume_size = number(),
            "controlplanevolumetype" => options.control_plane_volume_type = text(),
            "nodevolumesize" => options.node_volume_size = number(),
            "nodevolumetype" => options.node_volume_type = text(),
            "controlplanesecuritygroups" => options.control_plane_security_groups = texts(),
            "nodesecuritygroups" => options.node_security_groups = texts(),
            "encryptetcdstorage" => options.encrypt_etcd_storage = value.as_bool(),
            "networking" => options.networking = text(),
            "networkid" => options.network_id = text(),
            "networkcidrs" => options.network_cidrs = texts(),
            "subnetids" => options.subnet_ids = texts(),
            "utilitysubnetids" => options.utility_subnet_ids = texts(),
            "egress" => options.egress = text(),
            "ipv6" => options.ipv6 = value.as_bool() == Some(true),
            "topology" => options.topology = text(),
            "dnstype" => options.dns = text(),
            "project" => options.project = text(),
            "gceserviceaccount" => options.gce_service_account = text(),
            "cloudlabels" => options.cloud_labels = text(),
            "sets" => options.sets = texts(),
            other => panic!("the test does not know option {other}"),
        }
    }
    options
}

/// Returns the mock cloud after the setup of upstream's `create cluster` tests.
fn mock(gce: bool) -> kops_core::World {
    let mut world = world(gce);
    let network = world.networks.entry("vpc-12345678".to_owned()).or_default();
    network.cidr = "10.0.0.0/12".to_owned();
    let subnet = |id: &str, cidr: &str| kops_core::Subnet {
        id: id.to_owned(),
        zone: "us-test-1a".to_owned(),
        cidr: cidr.to_owned(),
    };
    network.subnets = vec![subnet("subnet-1", "10.10.0.0/24"), subnet("subnet-2", "10.11.0.0/24")];
    let arm = MachineType { architecture: "arm64".to_owned(), gpu: false, disks: 0 };
    world.machine_types = [("m6g.xlarge".to_owned(), arm)].into();
    world
}

fn created(tree: &Value, channel: &Channel) -> Result<String, String> {
    let options = options(tree);
    let world = mock(options.cloud == "gce");
    let kops: Version = "1.36.2".parse().map_err(|e: kops_core::Error| e.to_string())?;
    let (mut cluster, mut groups) =
        create(&options, channel, &world, &kops).map_err(|e| e.to_string())?;
    // The created cluster is valid, and can be completed.
    let problems = groups.iter().flat_map(|group| validate_group(group, Some(&cluster)));
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem.to_string());
    }
    complete(&cluster, &groups, &world, &Machines::default()).map_err(|e| e.to_string())?;
    groups.sort_by(|a, b| a.name().cmp(b.name()));
    cluster.metadata.put("creationTimestamp", "2017-01-01T00:00:00Z");
    let mut written = vec![cluster.to_yaml(VersionName::V1alpha2)];
    for mut group in groups {
        group.metadata.put("creationTimestamp", "2017-01-01T00:00:00Z");
        written.push(group.to_yaml(VersionName::V1alpha2));
    }
    let written: Vec<_> = written.iter().map(|text| text.trim()).collect();
    Ok(written.join("\n\n---\n\n"))
}

#[test]
fn creates_clusters_as_upstream_does() {
    let Some(source) = source() else { return };
    let channel =
        Channel::read("stable", read(&source.join("channels/stable")).as_bytes()).unwrap();
    let cases = std::fs::read_dir(source.join("tests/integration/create_cluster")).unwrap();
    let mut cases: Vec<_> = cases.map(|case| case.unwrap().path()).collect();
    cases.sort();
    let (mut missed, mut count) = (Vec::new(), 0);
    for case in cases {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let options = read(&case.join("options.yaml"));
        let options = api_codec::from_yaml(options.as_bytes()).unwrap();
        if !["aws", "gce"].contains(&options.text("CloudProvider")) {
            continue;
        }
        count += 1;
        let why = match created(&options, &channel) {
            Ok(ours) => difference(&ours, read(&case.join("expected-v1alpha2.yaml")).trim()),
            Err(error) => Some(error),
        };
        missed.extend(why.map(|why| (name, why)));
    }
    assert_missed("create cluster", count, &missed, MISSED);
}
