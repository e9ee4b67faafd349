//! Creates the instance groups.

use api_meta::Tree as _;
use kops_api::{Kind, Object};
use serde_json::{Value, json};

use super::{network::Subnets, options::Options};
use crate::{
    channel::Channel,
    cluster::{CloudName, Cluster},
    error::Error,
    version::Version,
    world::World,
};

const GROUP_LABEL: &str = "kops.k8s.io/instancegroup";
const CLUSTER_LABEL: &str = "kops.k8s.io/cluster";

/// The most control planes: each is a group and a member of every etcd cluster.
const MOST_CONTROL_PLANES: usize = 99;

fn group(name: &str, role: &str, count: usize) -> Object {
    let mut group = Object::new(Kind::InstanceGroup, name);
    group.spec = json!({"role": role, "minSize": count, "maxSize": count});
    group
}

/// Sets a group's zone on GCE, where the subnet spans the region.
fn set_zone(cluster: &Object, group: &mut Object, zone: &str) {
    if cluster.cloud() == CloudName::Gce {
        group.spec.put("zones", json!([zone]));
    }
}

/// Sets the machine types. On AWS, several sizes are alternatives.
fn set_sizes(cluster: &Object, group: &mut Object, sizes: &[String]) {
    if let Some(first) = sizes.first() {
        group.spec.put("machineType", first.clone());
    }
    if sizes.len() > 1 && cluster.cloud() == CloudName::Aws {
        group.spec.put("mixedInstancesPolicy.instances", sizes);
    }
}

fn set_image(group: &mut Object, image: &str) {
    if !image.is_empty() {
        group.spec.put("image", image);
    }
}

/// Creates one group per control-plane machine, alternating among the zones.
pub(super) fn control_planes(
    options: &Options,
    cluster: &Object,
    subnets: &Subnets,
) -> Result<Vec<Object>, Error> {
    let own = &options.control_plane_zones;
    let zones = if own.is_empty() { &options.zones } else { own };
    let count = match options.control_plane_count as usize {
        0 if own.is_empty() => 1,
        0 => own.len(),
        count if count < own.len() => {
            let reason = format!(
                "is less than the {} zones of --control-plane-zones: make it as many, or leave it out",
                own.len()
            );
            return Err(Error::value("--control-plane-count", count.to_string(), reason));
        }
        count if count > MOST_CONTROL_PLANES => {
            let reason = format!(
                "is more than {MOST_CONTROL_PLANES}: etcd gets slower with each member, and seven \
                 tolerate enough failures"
            );
            return Err(Error::value("--control-plane-count", count.to_string(), reason));
        }
        count => count,
    };
    let make = |number: usize| {
        let zone = &zones[number % zones.len()];
        let name = if count > zones.len() {
            format!("control-plane-{zone}-{}", 1 + number / zones.len())
        } else {
            format!("control-plane-{zone}")
        };
        let mut group = group(&name, "ControlPlane", 1);
        // Additional subnets are for workers.
        if let Some(subnet) = subnets.of(zone).first() {
            let dual = options.ipv6 && options.topology == "private";
            let prefix = if dual { "dualstack-" } else { "" };
            group.spec.put("subnets", json!([format!("{prefix}{subnet}")]));
        }
        set_zone(cluster, &mut group, zone);
        set_sizes(cluster, &mut group, &options.control_plane_sizes);
        set_image(&mut group, &options.control_plane_image);
        group
    };
    Ok((0..count).map(make).collect())
}

/// Distributes `count` machines evenly over zones; the first zones get the remainder.
fn shares(zones: &[String], count: usize) -> impl Iterator<Item = (&String, usize)> {
    let (each, rest) = (count / zones.len().max(1), count % zones.len().max(1));
    zones.iter().enumerate().map(move |(number, zone)| (zone, each + usize::from(number < rest)))
}

pub(super) fn nodes(
    options: &Options,
    cluster: &mut Object,
    subnets: &Subnets,
) -> Result<Vec<Object>, Error> {
    match options.instance_manager.as_str() {
        "cloudgroups" => {}
        "karpenter" => return karpenter(options, cluster),
        other => {
            return Err(Error::value(
                "--instance-manager",
                other,
                "is neither cloudgroups nor karpenter",
            ));
        }
    }
    let count =
        if options.node_count == 0 { options.zones.len() } else { options.node_count as usize };
    let make = |(zone, count): (&String, usize)| {
        let mut group = group(&format!("nodes-{zone}"), "Node", count);
        let all = subnets.of(zone);
        // With additional subnets, the first one may be small.
        let own = if all.len() > 1 { &all[1..] } else { all };
        group.spec.put("subnets", own);
        set_zone(cluster, &mut group, zone);
        set_sizes(cluster, &mut group, &options.node_sizes);
        set_image(&mut group, &options.node_image);
        group
    };
    Ok(shares(&options.zones, count).map(make).collect())
}

fn karpenter(options: &Options, cluster: &mut Object) -> Result<Vec<Object>, Error> {
    if options.discovery_store.is_empty() {
        let hint = ": Karpenter authenticates by it";
        return Err(Error::Missing { field: "--discovery-store".into(), hint });
    }
    cluster.spec.put("karpenter.enabled", true);
    let mut group = Object::new(Kind::InstanceGroup, "nodes");
    group.spec = json!({"role": "Node", "manager": "Karpenter"});
    if options.node_count > 0 {
        group.spec.put("minSize", options.node_count);
    }
    set_sizes(cluster, &mut group, &options.node_sizes);
    Ok(vec![group])
}

pub(super) fn api_servers(options: &Options, cluster: &Object, subnets: &Subnets) -> Vec<Object> {
    if options.api_server_count == 0 {
        return Vec::new();
    }
    let make = |(zone, count): (&String, usize)| {
        let mut group = group(&format!("apiserver-{zone}"), "APIServer", count);
        group.spec.put("subnets", subnets.of(zone));
        set_zone(cluster, &mut group, zone);
        group
    };
    shares(&options.zones, options.api_server_count as usize).map(make).collect()
}

pub(super) fn bastions(options: &Options, cluster: &Object) -> Option<Object> {
    if !options.bastion {
        return None;
    }
    let mut group = group("bastions", "Bastion", 1);
    if options.ipv6 {
        group.spec.put("subnets", names(&cluster.spec, |kind| kind == "DualStack"));
    }
    if cluster.cloud() == CloudName::Gce {
        group.spec.put("zones", options.all_zones());
    }
    set_image(&mut group, &options.bastion_image);
    Some(group)
}

fn names(spec: &Value, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let subnets = spec.items("networking.subnets").iter();
    subnets.filter(|s| is_wanted(s.text("type"))).map(|s| s.text("name").to_owned()).collect()
}

/// Completes a group that options leave partly unset, and adds the labels.
pub(super) fn finish(
    options: &Options,
    cluster: &Object,
    group: &mut Object,
    channel: &Channel,
    world: &World,
) -> Result<(), Error> {
    fill(cluster, group, &options.image, channel, world)?;
    group.spec.put("nodeLabels", json!({ GROUP_LABEL: group.name() }));
    group.metadata.put("labels", json!({ CLUSTER_LABEL: cluster.name() }));
    Ok(())
}

/// Sets the machine type, image and subnets that the group does not name.
pub(crate) fn fill(
    cluster: &Object,
    group: &mut Object,
    image: &str,
    channel: &Channel,
    world: &World,
) -> Result<(), Error> {
    let architecture = world.machine_types.get(group.spec.text("machineType"));
    let architecture = architecture.map_or("amd64", |machine| machine.architecture.as_str());
    if group.spec.text("image").is_empty() && !cluster.cloud().is_bare() {
        let version: Version = cluster.spec.text("kubernetesVersion").parse()?;
        let image = match image {
            "" => channel.image(cluster.cloud().word(), &version, architecture),
            image => Some(image),
        };
        let hint = ", because the channel recommends none for this version and architecture";
        set_image(group, image.ok_or(Error::Missing { field: "--image".into(), hint })?);
    }
    let role = group.spec.text("role").to_owned();
    let managed = group.spec.text("manager") == "Karpenter";
    if let (Some(kind), false) = (machine_type(cluster, &role, world), managed) {
        group.spec.put_default("machineType", kind);
    }
    set_subnets(cluster, group, &role)
}

fn machine_type<'w>(cluster: &Object, role: &str, world: &'w World) -> Option<&'w str> {
    match (cluster.cloud(), role) {
        (CloudName::Gce, "Bastion") => Some("e2-micro"),
        (CloudName::Gce, _) => Some("e2-medium"),
        _ => world.default_machine_types.get(role).map(String::as_str),
    }
}

fn set_subnets(cluster: &Object, group: &mut Object, role: &str) -> Result<(), Error> {
    if !group.spec.items("subnets").is_empty() {
        return Ok(());
    }
    let found = match (role, cluster.is_ipv6_only()) {
        ("APIServer", true) => names(&cluster.spec, |kind| !["Private", "Utility"].contains(&kind)),
        _ => names(&cluster.spec, |kind| !["DualStack", "Utility"].contains(&kind)),
    };
    let found =
        if found.is_empty() { names(&cluster.spec, |kind| kind != "Utility") } else { found };
    if found.is_empty() {
        let field = format!("spec.subnets of instance group {}", group.name());
        return Err(Error::Missing { field, hint: ": the cluster has no suitable subnet" });
    }
    group.spec.put("subnets", found);
    Ok(())
}

/// Applies the flags for groups of a role.
pub(super) fn extras(options: &Options, group: &mut Object) {
    let o = options;
    let (size, kind, tenancy, security) = match group.spec.text("role") {
        "ControlPlane" => (
            o.control_plane_volume_size,
            &o.control_plane_volume_type,
            &o.control_plane_tenancy,
            &o.control_plane_security_groups,
        ),
        "Node" => {
            (o.node_volume_size, &o.node_volume_type, &o.node_tenancy, &o.node_security_groups)
        }
        _ => (0, &String::new(), &String::new(), &Vec::new()),
    };
    if let Some(public) = o.associate_public_ip {
        group.spec.put("associatePublicIP", public);
    }
    if size > 0 {
        group.spec.put("rootVolume.size", size);
    }
    if !kind.is_empty() {
        group.spec.put("rootVolume.type", kind.clone());
    }
    if !tenancy.is_empty() {
        group.spec.put("tenancy", tenancy.clone());
    }
    if !security.is_empty() {
        group.spec.put("additionalSecurityGroups", security.as_slice());
    }
}
