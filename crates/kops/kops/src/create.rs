//! Runs `kops create cluster`: builds a cluster and its groups from flags.

use api_meta::Tree as _;
use kops_api::{Object, VersionName};
use kops_aws::{CloudFacts, query_creation};
use kops_core::{
    Cluster as _,
    create::{Options, cloud_of_zone},
    model::aws::fingerprint,
};
use kops_store::{KOPS_VERSION, Registry, read_channel};
use version::KUBERNETES_VERSION;
use vfs::{Precondition, Secrecy};

use crate::{
    change,
    environment::CommandEnvironment,
    error::Error,
    flags::{CloudFlag, Clouds, CreateCluster, Target, UpdateCluster},
    input::read_text,
    update,
};

/// The cloud whose resources only Terraform creates.
const GCE: &str = "gce";

/// Returns the options that the flags describe. With cloud local, some have other defaults.
fn options(command: &CreateCluster, state: &str, name: &str) -> Result<Options, Error> {
    let name = command.cluster.as_deref().unwrap_or(name);
    let guess = || command.zones.iter().find_map(|zone| cloud_of_zone(zone)).map(str::to_owned);
    let cloud = command.cloud.clone().or_else(guess).unwrap_or_default();
    let local = cloud == "local";
    check_cloud(command, &cloud)?;
    let or_local = |values: &[String], default: &[&str]| {
        if values.is_empty() && local {
            default.iter().map(|text| (*text).to_owned()).collect()
        } else {
            values.to_vec()
        }
    };
    let usual = Options::default();
    let networking = if local { "cni" } else { usual.networking.as_str() };
    let own_version = KUBERNETES_VERSION.trim_start_matches('v');
    let version = match command.kubernetes_version.as_str() {
        "" if local => own_version,
        version => version,
    };
    let etcd = or_local(&command.etcd_clusters, &["main"]);
    let (machines, network) = (&command.machines, &command.network);
    Ok(Options {
        name: name.to_owned(),
        store: state.to_owned(),
        zones: or_local(&command.zones, &["local"]),
        cloud,
        channel: command.channel.clone(),
        kubernetes_version: version.to_owned(),
        feature_gates: command.kubernetes_feature_gates.clone(),
        authorization: command.authorization.clone(),
        admin_access: command.admin_access.clone(),
        ssh_access: command.ssh_access.clone(),
        discovery_store: network.discovery_store.clone(),
        control_plane_zones: command.control_plane_zones.clone(),
        control_plane_count: command.control_plane_count,
        node_count: command.node_count,
        bastion: machines.bastion,
        instance_manager: machines.instance_manager.clone(),
        image: machines.image.clone(),
        control_plane_image: machines.control_plane_image.clone(),
        node_image: machines.node_image.clone(),
        bastion_image: machines.bastion_image.clone(),
        control_plane_sizes: machines.control_plane_size.clone(),
        node_sizes: machines.node_size.clone(),
        control_plane_volume_size: machines.control_plane_volume_size,
        node_volume_size: machines.node_volume_size,
        control_plane_volume_type: machines.control_plane_volume_type.clone(),
        node_volume_type: machines.node_volume_type.clone(),
        control_plane_tenancy: machines.control_plane_tenancy.clone(),
        node_tenancy: machines.node_tenancy.clone(),
        control_plane_security_groups: machines.control_plane_security_groups.clone(),
        node_security_groups: machines.node_security_groups.clone(),
        associate_public_ip: machines.associate_public_ip,
        etcd_clusters: if etcd.is_empty() { usual.etcd_clusters.clone() } else { etcd },
        etcd_storage_type: machines.etcd_storage_type.clone(),
        encrypt_etcd_storage: machines.encrypt_etcd_storage,
        networking: command.networking.clone().unwrap_or_else(|| networking.to_owned()),
        network_id: network.network_id.clone(),
        network_cidrs: command.network_cidr.clone(),
        subnet_ids: network.subnets.clone(),
        utility_subnet_ids: network.utility_subnets.clone(),
        ipv6: network.ipv6,
        topology: command.topology.clone(),
        dns: command.dns.clone(),
        dns_zone: command.dns_zone.clone(),
        disable_subnet_tags: network.disable_subnet_tags,
        api_public_name: command.api_public_name.clone(),
        api_load_balancer_type: network.api_loadbalancer_type.clone(),
        api_ssl_certificate: network.api_ssl_certificate.clone(),
        cloud_labels: command.cloud_labels.clone(),
        project: command.gce.project.clone().unwrap_or_default(),
        gce_service_account: command.gce.gce_service_account.clone().unwrap_or_default(),
        sets: command.set.clone(),
        unsets: command.unset.clone(),
        ..usual
    })
}

/// Rejects unsupported clouds, and flags of other clouds.
fn check_cloud(command: &CreateCluster, cloud: &str) -> Result<(), Error> {
    if !["", "aws", "gce", "local", "metal"].contains(&cloud) {
        return Err(Error::CloudFlag(cloud.to_owned()));
    }
    // Without a cloud, the creation fails by itself.
    let mut flags = command.cloud_flags();
    let foreign = flags.find(|one| !cloud.is_empty() && !one.clouds.contains(cloud));
    // Networks on GCE have no range.
    let network_cidr = CloudFlag { flag: "--network-cidr", clouds: Clouds::Aws };
    let foreign =
        foreign.or((cloud == GCE && !command.network_cidr.is_empty()).then_some(network_cidr));
    if let Some(CloudFlag { flag, clouds }) = foreign {
        return Err(Error::ForeignFlag { flag, of: clouds.words(), cloud: cloud.to_owned() });
    }
    if command.target.out.is_some() && command.target.program == Target::Direct {
        return Err(Error::TargetFlag { flag: "--out", target: Target::Terraform });
    }
    if cloud == GCE && command.gce.project.as_deref().is_none_or(str::is_empty) {
        return Err(Error::Flag { flag: "--project", problem: "is required with --cloud gce" });
    }
    if cloud == GCE && command.yes && command.target.program == Target::Direct {
        let cluster = command.cluster.clone().unwrap_or_default();
        return Err(Error::TerraformOnly { cluster });
    }
    Ok(())
}

/// Builds the cluster and groups that the options describe. Facts that the user's table lacks are queried from AWS,
/// unless Terraform creates the cluster's resources.
async fn build_objects(
    command: &CreateCluster,
    options: &Options,
    context: &CommandEnvironment<'_>,
) -> Result<(Object, Vec<Object>), Error> {
    let facts = CloudFacts::read(command.target.known.as_deref())?;
    let mut world = facts.world();
    let channel = read_channel(&options.channel, options.kubernetes_version.is_empty())?;
    let is_asked = options.cloud == "aws" && command.target.program == Target::Direct;
    // Without a name or zone, the creation fails by itself.
    if is_asked && !options.name.is_empty() && !options.zones.is_empty() {
        world = query_creation(options, world, context.environment).await?;
    }
    let (cluster, groups) =
        kops_core::create::create(options, &channel, &world, &KOPS_VERSION.parse()?)?;
    facts.check(cluster.cloud())?;
    let is_typed = |group: &Object| {
        cluster.cloud().is_bare()
            || group.spec.text("manager") == "Karpenter"
            || !group.spec.text("machineType").is_empty()
    };
    if let Some(group) = groups.iter().find(|group| !is_typed(group)) {
        return Err(Error::MachineType { group: group.name().to_owned() });
    }
    Ok((cluster, groups))
}

/// An SSH key to store with a new cluster.
struct SshKey {
    path: String,
    content: String,
}

/// Reads the SSH key that the flags name.
fn read_ssh_key(command: &CreateCluster, cluster: &str) -> Result<Option<SshKey>, Error> {
    let Some(file) = &command.machines.ssh_public_key else { return Ok(None) };
    let content = read_text(file)?;
    let fingerprint = fingerprint(&content)?.replace(':', "");
    Ok(Some(SshKey { path: format!("{cluster}/pki/ssh/public/admin/{fingerprint}"), content }))
}

pub(crate) async fn run(
    registry: &Registry,
    command: &CreateCluster,
    state: &str,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    if command.dry_run && command.output.is_empty() {
        return Err(Error::Flag { flag: "--dry-run", problem: "needs --output" });
    }
    if !command.dry_run && !command.output.is_empty() {
        return Err(Error::Flag { flag: "--output", problem: "is for --dry-run" });
    }
    let options = options(command, state, name)?;
    let name = options.name.clone();
    if !name.is_empty() && registry.cluster(&name)?.is_some() {
        let problem = "already exists; use 'kops update cluster' to apply changes";
        return Err(kops_store::Error::object("cluster", &name, problem).into());
    }
    let (cluster, groups) = build_objects(command, &options, context).await?;
    let key = read_ssh_key(command, &name)?;
    let objects: Vec<Object> = std::iter::once(cluster).chain(groups.clone()).collect();
    if command.dry_run {
        return show(&objects, &command.output, context);
    }
    change::store_objects(registry, &name, objects, context)?;
    if let Some(key) = key {
        let absent = Precondition::Absent;
        registry.write_object(&key.path, key.content.as_bytes(), &absent, Secrecy::Open)?;
    }
    if command.yes || command.target.program == Target::Terraform {
        return apply(registry, command, &name, context).await;
    }
    if options.cloud == GCE {
        return suggest(&name, &groups, "--target=terraform", context);
    }
    writeln!(context.out, "Previewing changes that will be made:\n")?;
    if let Err(cause) = apply(registry, command, &name, context).await {
        return Err(Error::Preview { cluster: name, cause: Box::new(cause) });
    }
    suggest(&name, &groups, "--yes", context)
}

/// Shows or makes the changes of a stored cluster.
async fn apply(
    registry: &Registry,
    command: &CreateCluster,
    name: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let update = UpdateCluster {
        yes: command.yes,
        target: command.target.clone(),
        ..UpdateCluster::default()
    };
    update::run(registry, &update, name, context).await
}

/// Prints the commands that usually follow. `flag` is that of the update.
fn suggest(
    name: &str,
    groups: &[Object],
    flag: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let out = &mut context.out;
    writeln!(out, "\nCluster configuration has been created.\n")?;
    writeln!(out, "Suggestions:\n * list clusters with: kops get cluster")?;
    writeln!(out, " * edit this cluster with: kops edit cluster {name}")?;
    for (role, what) in [("Node", "node"), ("ControlPlane", "control-plane")] {
        if let Some(group) = groups.iter().find(|group| group.spec.text("role") == role) {
            let group = group.name();
            writeln!(
                out,
                " * edit your {what} instance group: kops edit ig --name={name} {group}"
            )?;
        }
    }
    writeln!(
        out,
        "\nFinally configure your cluster with: kops update cluster --name {name} {flag}\n"
    )?;
    Ok(())
}

fn show(
    objects: &[Object],
    output: &str,
    context: &mut CommandEnvironment<'_>,
) -> Result<(), Error> {
    let version = VersionName::V1alpha2;
    if output == "json" {
        let all: Vec<_> =
            objects.iter().map(|object| object.to_tree(version).to_string()).collect();
        writeln!(context.out, "[{}]", all.join(","))?;
        return Ok(());
    }
    let all: Vec<_> = objects.iter().map(|object| object.to_yaml(version)).collect();
    write!(context.out, "{}", all.join("\n---\n\n"))?;
    Ok(())
}
