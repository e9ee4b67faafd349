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
/// The label of Nodes on GCE that may run the proxy of the metadata server.
const METADATA_PROXY_LABEL: &str = "cloud.google.com/metadata-proxy-ready";

/// The most control planes: each is a group and a member of every etcd cluster.
const MOST_CONTROL_PLANES: usize = 99;

fn new_group(name: &str, role: &str, count: usize) -> Object {
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
pub(super) fn create_control_planes(
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
        let mut group = new_group(&name, "ControlPlane", 1);
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

pub(super) fn create_nodes(
    options: &Options,
    cluster: &mut Object,
    subnets: &Subnets,
) -> Result<Vec<Object>, Error> {
    match options.instance_manager.as_str() {
        "cloudgroups" => {}
        "karpenter" => return create_karpenter(options, cluster),
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
        let mut group = new_group(&format!("nodes-{zone}"), "Node", count);
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

fn create_karpenter(options: &Options, cluster: &mut Object) -> Result<Vec<Object>, Error> {
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

pub(super) fn create_api_servers(
    options: &Options,
    cluster: &Object,
    subnets: &Subnets,
) -> Vec<Object> {
    if options.api_server_count == 0 {
        return Vec::new();
    }
    let make = |(zone, count): (&String, usize)| {
        let mut group = new_group(&format!("apiserver-{zone}"), "APIServer", count);
        group.spec.put("subnets", subnets.of(zone));
        set_zone(cluster, &mut group, zone);
        group
    };
    shares(&options.zones, options.api_server_count as usize).map(make).collect()
}

pub(super) fn create_bastions(options: &Options, cluster: &Object) -> Option<Object> {
    if !options.bastion {
        return None;
    }
    let mut group = new_group("bastions", "Bastion", 1);
    if options.ipv6 {
        group.spec.put("subnets", subnet_names(&cluster.spec, |kind| kind == "DualStack"));
    }
    if cluster.cloud() == CloudName::Gce {
        group.spec.put("zones", options.all_zones());
    }
    set_image(&mut group, &options.bastion_image);
    Some(group)
}

fn subnet_names(spec: &Value, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let subnets = spec.items("networking.subnets").iter();
    subnets.filter(|s| is_wanted(s.text("type"))).map(|s| s.text("name").to_owned()).collect()
}

/// Completes a group that options leave partly unset, and adds the labels.
pub(super) fn complete(
    options: &Options,
    cluster: &Object,
    group: &mut Object,
    channel: &Channel,
    world: &World,
) -> Result<(), Error> {
    complete_machines(cluster, group, &options.image, channel, world)?;
    set_labels(cluster, group);
    Ok(())
}

/// The options of `create instancegroup`.
#[derive(Debug)]
pub struct NewGroup<'a> {
    /// The name.
    pub name: &'a str,
    /// The role as in a specification.
    pub role: &'a str,
    /// The subnets; empty for all but utility subnets.
    pub subnets: &'a [String],
    /// The zones.
    pub zones: &'a [String],
    /// The image; empty for the one that the channel recommends.
    pub image: &'a str,
}

/// Creates an instance group of a stored cluster: one machine, or two workers.
pub fn create_group(
    cluster: &Object,
    options: &NewGroup<'_>,
    channel: &Channel,
    world: &World,
) -> Result<Object, Error> {
    let (name, role) = (options.name, options.role);
    if role == "ControlPlane" && options.subnets.is_empty() {
        let field = format!("--subnet of control-plane instance group {name}");
        return Err(Error::Missing { field, hint: ": a control plane is in one subnet" });
    }
    if cluster.cloud() == CloudName::Gce && options.zones.is_empty() {
        let field = format!("--zone of instance group {name}");
        return Err(Error::Missing { field, hint: ": subnets on GCE span all zones of a region" });
    }
    let mut group = new_group(name, role, usize::from(role == "Node") + 1);
    if !options.subnets.is_empty() {
        group.spec.put("subnets", options.subnets);
    }
    if !options.zones.is_empty() {
        group.spec.put("zones", options.zones);
    }
    complete_machines(cluster, &mut group, options.image, channel, world)?;
    set_labels(cluster, &mut group);
    if cluster.cloud() == CloudName::Gce {
        let labels = json!({GROUP_LABEL: name, METADATA_PROXY_LABEL: "true"});
        group.spec.put("nodeLabels", labels);
    }
    Ok(group)
}

/// Sets the labels that name a group and its cluster.
fn set_labels(cluster: &Object, group: &mut Object) {
    group.spec.put("nodeLabels", json!({ GROUP_LABEL: group.name() }));
    group.metadata.put("labels", json!({ CLUSTER_LABEL: cluster.name() }));
}

/// Sets the machine type, image and subnets that the group does not name.
pub(crate) fn complete_machines(
    cluster: &Object,
    group: &mut Object,
    image: &str,
    channel: &Channel,
    world: &World,
) -> Result<(), Error> {
    let architecture = world.architecture(group.spec.text("machineType"));
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
        ("APIServer", true) => {
            subnet_names(&cluster.spec, |kind| !["Private", "Utility"].contains(&kind))
        }
        _ => subnet_names(&cluster.spec, |kind| !["DualStack", "Utility"].contains(&kind)),
    };
    let found = if found.is_empty() {
        subnet_names(&cluster.spec, |kind| kind != "Utility")
    } else {
        found
    };
    if found.is_empty() {
        let field = format!("spec.subnets of instance group {}", group.name());
        return Err(Error::Missing { field, hint: ": the cluster has no suitable subnet" });
    }
    group.spec.put("subnets", found);
    Ok(())
}

/// The options for the machines of a role.
struct RoleOptions<'o> {
    volume_size: u32,
    volume_type: &'o String,
    tenancy: &'o String,
    security_groups: &'o [String],
}

impl Options {
    /// Returns the options for the machines of a role; `None` for a role without any.
    fn of_role(&self, role: &str) -> Option<RoleOptions<'_>> {
        match role {
            "ControlPlane" => Some(RoleOptions {
                volume_size: self.control_plane_volume_size,
                volume_type: &self.control_plane_volume_type,
                tenancy: &self.control_plane_tenancy,
                security_groups: &self.control_plane_security_groups,
            }),
            "Node" => Some(RoleOptions {
                volume_size: self.node_volume_size,
                volume_type: &self.node_volume_type,
                tenancy: &self.node_tenancy,
                security_groups: &self.node_security_groups,
            }),
            _ => None,
        }
    }
}

/// Applies the options for the machines of a group's role.
pub(super) fn apply_role_options(options: &Options, group: &mut Object) {
    if let Some(public) = options.associate_public_ip {
        group.spec.put("associatePublicIP", public);
    }
    let Some(own) = options.of_role(group.spec.text("role")) else { return };
    if own.volume_size > 0 {
        group.spec.put("rootVolume.size", own.volume_size);
    }
    if !own.volume_type.is_empty() {
        group.spec.put("rootVolume.type", own.volume_type.clone());
    }
    if !own.tenancy.is_empty() {
        group.spec.put("tenancy", own.tenancy.clone());
    }
    if !own.security_groups.is_empty() {
        group.spec.put("additionalSecurityGroups", own.security_groups);
    }
}
