//! Launch templates of groups.

use api_meta::Tree as _;
use kops_api::Object;
use serde_json::Value;

use super::{
    context::{Context, text_at},
    graph::Model,
    names,
    volumes::disk,
};
use crate::{
    aws::{BlockDevice, Disk, Ebs, Kind, LaunchTemplate, MetadataService, Ref, SpotOptions, Tags},
    error::Error,
    model::user_data::of_group,
};

/// AWS' limit on user data, in bytes.
const USER_DATA: usize = 16 * 1024;

pub(super) fn add(
    context: &Context<'_>,
    model: &mut Model,
    group: &Object,
    name: &str,
    tags: Tags,
) -> Result<Ref, Error> {
    let spec = &group.spec;
    let subnets = context.subnets_of(group)?;
    let public =
        subnets.first().is_some_and(|one| ["Public", "Utility"].contains(&one.text("type")));
    let public = public && spec.opt_flag("associatePublicIP") != Some(false);
    let ipv6 = subnets.iter().any(|one| !one.text("ipv6CIDR").is_empty());
    let machine_type = machine_type(spec);
    let image = context.image(spec.text("image"))?;
    let spot = text_at(spec, "maxPrice").filter(|_| !spec.has("mixedInstancesPolicy"));
    let template = LaunchTemplate {
        image: image.id.clone(),
        devices: devices(context, spec, &image.root_device, &machine_type)?,
        machine_type: Some(machine_type).filter(|text| !text.is_empty()),
        profile: profile(context, group),
        key: ssh_key(context)?,
        optimized: spec.opt_flag("rootVolume.optimization"),
        cpu_credits: text_at(spec, "cpuCredits"),
        monitoring: spec.flag("detailedInstanceMonitoring"),
        metadata: MetadataService {
            hops: spec.opt_int("instanceMetadata.httpPutResponseHopLimit").unwrap_or(1),
            tokens: text_at(spec, "instanceMetadata.httpTokens").unwrap_or("required".to_owned()),
            ipv6,
        },
        public_address: Some(public),
        ipv6_addresses: i64::from(ipv6),
        security_groups: security_groups(context, model, group),
        tenancy: text_at(spec, "tenancy"),
        spot: spot.map(|price| SpotOptions {
            price,
            minutes: spec.opt_int("spotDurationInMinutes"),
            interruption: text_at(spec, "instanceInterruptionBehavior"),
        }),
        user_data: user_data(context, group)?,
    };
    Ok(model.add(name, tags, template))
}

fn user_data(context: &Context<'_>, group: &Object) -> Result<Vec<u8>, Error> {
    Ok(of_group(context.cluster, group, &context.inputs.node, USER_DATA)?.into_bytes())
}

/// Returns the first machine type of a group; the others are for the mixture.
fn machine_type(spec: &Value) -> String {
    spec.text("machineType").split(',').next().unwrap_or_default().to_owned()
}

fn profile(context: &Context<'_>, group: &Object) -> Ref {
    let name = match text_at(&group.spec, "iam.profile") {
        Some(profile) => names::last_part(&profile).to_owned(),
        None => names::iam(context.name, group.spec.text("role")),
    };
    Ref::new(Kind::InstanceProfile, name)
}

fn ssh_key(context: &Context<'_>) -> Result<Option<Ref>, Error> {
    let name = match context.spec.at("sshKeyName").as_str() {
        Some("") => None,
        Some(name) => Some(name.to_owned()),
        None => context
            .inputs
            .ssh_keys
            .first()
            .map(|public| context.ssh_key_name(public))
            .transpose()?,
    };
    Ok(name.map(|name| Ref::new(Kind::SshKey, name)))
}

/// Returns the security groups of a group's machines, the cluster's first.
fn security_groups(context: &Context<'_>, model: &mut Model, group: &Object) -> Vec<Ref> {
    let role = group.spec.text("role");
    let own = match text_at(&group.spec, "securityGroupOverride") {
        Some(id) => (id.clone(), context.existing_group(model, format!("{id}-{role}"), &id)),
        None => {
            let name = names::security_group(context.name, role);
            (String::new(), Ref::new(Kind::SecurityGroup, name))
        }
    };
    let mut all = vec![own];
    let serves = ["ControlPlane", "APIServer"].contains(&role);
    if serves && context.network_balancer() == Some(true) {
        for id in context.spec.texts("api.loadBalancer.additionalSecurityGroups") {
            all.push((id.to_owned(), context.existing_group(model, format!("nlb-{id}"), id)));
        }
    }
    for id in group.spec.texts("additionalSecurityGroups") {
        all.push((id.to_owned(), context.existing_group(model, id.to_owned(), id)));
    }
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.into_iter().map(|(_, group)| group).collect()
}

/// Returns a machine's disks: the root disk, those of the spec, and instance stores.
fn devices(
    context: &Context<'_>,
    spec: &Value,
    root: &str,
    machine_type: &str,
) -> Result<Vec<BlockDevice>, Error> {
    let mut devices =
        vec![BlockDevice { device: root.to_owned(), disk: Disk::Ebs(root_disk(spec)) }];
    let mut further: Vec<BlockDevice> = spec.items("volumes").iter().map(further_disk).collect();
    further.sort_by(|a, b| a.device.cmp(&b.device));
    devices.extend(further);
    let known = context.inputs.world.machine_types.get(machine_type);
    let own = known.map_or(0, |one| one.disks);
    for (number, letter) in (b'c'..=b'v').take(own.into()).enumerate() {
        let device = format!("/dev/sd{}", char::from(letter));
        devices
            .push(BlockDevice { device, disk: Disk::InstanceStore(format!("ephemeral{number}")) });
    }
    Ok(devices)
}

fn root_disk(spec: &Value) -> Ebs {
    let volume = spec.at("rootVolume");
    let usual = match spec.text("role") {
        "ControlPlane" => 64,
        "Bastion" => 32,
        _ => 128,
    };
    let size = volume.opt_int("size").filter(|size| *size > 0).unwrap_or(usual);
    let class = text_at(volume, "type").unwrap_or("gp3".to_owned());
    Ebs {
        encrypted: volume.opt_flag("encryption") != Some(false),
        // A key applies only if encryption is requested.
        key: text_at(volume, "encryptionKey").filter(|_| volume.flag("encryption")),
        deleted_with_machine: true,
        ..disk(size, &class, volume.opt_int("iops"), volume.opt_int("throughput"))
    }
}

fn further_disk(volume: &Value) -> BlockDevice {
    let class = text_at(volume, "type").unwrap_or("gp3".to_owned());
    let (iops, throughput) = (volume.opt_int("iops"), volume.opt_int("throughput"));
    let ebs = Ebs {
        encrypted: volume.opt_flag("encrypted") != Some(false),
        key: text_at(volume, "key"),
        deleted_with_machine: volume.opt_flag("deleteOnTermination") != Some(false),
        ..disk(volume.int("size"), &class, iops, throughput)
    };
    BlockDevice { device: volume.text("device").to_owned(), disk: Disk::Ebs(ebs) }
}
